// See the header; the arithmetic of sampling is the op's.
#include "engine/sampling.h"

#include <algorithm>
#include <limits>

#include "engine/upload.h"
#include "kernels/check.h"

namespace fut {
namespace {

bool has_penalty(const SampleParams& p) {
  return p.repetition_penalty != 1.0F || p.presence_penalty != 0.0F || p.frequency_penalty != 0.0F;
}

}  // namespace

std::vector<SampleBuffers::Allocation> SampleBuffers::allocations(int max_rows, int max_tokens) {
  using B = SampleBuffers;
  const auto rows = static_cast<std::size_t>(max_rows);
  const std::size_t ints = rows * sizeof(std::int32_t);
  return {{&B::device_params_, rows * sizeof(SampleParams)},
          {&B::device_draw_index_, rows * sizeof(std::uint64_t)},
          {&B::device_history_, ints * static_cast<std::size_t>(max_tokens)},
          {&B::device_begins_, ints},
          {&B::device_ends_, ints},
          {&B::device_limits_, ints},
          {&B::device_windows_, ints},
          {&B::device_next_ids_, ints}};
}

std::size_t SampleBuffers::bytes(int max_rows, int max_tokens) {
  std::size_t sum = 0;
  for (const Allocation& a : allocations(max_rows, max_tokens)) sum += a.bytes;
  return sum;
}

SampleBuffers::SampleBuffers(Backend& backend, int max_rows, int max_tokens)
    : max_tokens_(max_tokens) {
  FUT_CHECK(std::int64_t{max_rows} * max_tokens <= std::numeric_limits<std::int32_t>::max(),
            "histories of {} rows of {} tokens", max_rows, max_tokens);
  for (const Allocation& a : allocations(max_rows, max_tokens)) {
    this->*a.buffer = backend.allocate(a.bytes);
  }
}

void SampleBuffers::clear() {
  params_.clear();
  draw_index_.clear();
  histories_.clear();
  for (auto* values : {&begins_, &ends_, &limits_, &windows_}) values->clear();
}

void SampleBuffers::add(const SamplingParams& params, std::span<const std::int32_t> tokens) {
  const auto first = static_cast<std::int32_t>(params_.size()) * max_tokens_;
  const bool sees = has_penalty(params.sample) && params.repeat_last_n != 0;
  const std::int32_t window = params.repeat_last_n < 0 ? kWholeHistory : params.repeat_last_n;
  const std::size_t seen =
      sees ? std::min(tokens.size(), static_cast<std::size_t>(window)) : std::size_t{0};
  const auto recent = tokens.last(seen);
  params_.push_back(params.sample);
  draw_index_.push_back(tokens.size());
  histories_.emplace_back(recent.begin(), recent.end());
  begins_.push_back(first);
  ends_.push_back(first + static_cast<std::int32_t>(seen));
  limits_.push_back(sees ? first + max_tokens_ : first);
  windows_.push_back(window);
}

void SampleBuffers::upload(Backend& backend) {
  upload_values(backend, device_params_, params_);
  upload_values(backend, device_draw_index_, draw_index_);
  for (std::size_t row = 0; row < histories_.size(); ++row) {
    if (histories_[row].empty()) continue;
    upload_values(backend, device_history_, histories_[row],
                  static_cast<std::size_t>(begins_[row]));
  }
  upload_values(backend, device_begins_, begins_);
  upload_values(backend, device_ends_, ends_);
  upload_values(backend, device_limits_, limits_);
  upload_values(backend, device_windows_, windows_);
}

void SampleBuffers::launch(Backend& backend, const MatrixView<float>& logits) const {
  SampleArgs args;
  args.logits = {logits.data, logits.rows, logits.cols, logits.row_stride};
  args.params = device_params_.as<SampleParams>();
  args.draw_index = device_draw_index_.as<std::uint64_t>();
  args.history = device_history_.as<std::int32_t>();
  args.history_begins = device_begins_.as<std::int32_t>();
  args.history_ends = device_ends_.as<std::int32_t>();
  args.next_ids = device_next_ids_.as<std::int32_t>();
  backend.sample(args);
}

std::vector<std::int32_t> SampleBuffers::draw(Backend& backend, const MatrixView<float>& logits) {
  upload(backend);
  launch(backend, logits);
  std::vector<std::int32_t> ids(params_.size());
  backend.download(std::as_writable_bytes(std::span(ids)), device_next_ids_.as<std::int32_t>());
  return ids;
}

void SampleBuffers::name_arrays(StepState& state) const {
  state.next_ids = device_next_ids_.as<std::int32_t>();
  state.draw_index = device_draw_index_.as<std::uint64_t>();
  state.history = device_history_.as<std::int32_t>();
  state.history_limits = device_limits_.as<std::int32_t>();
  state.history_windows = device_windows_.as<std::int32_t>();
  state.history_begins = device_begins_.as<std::int32_t>();
  state.history_ends = device_ends_.as<std::int32_t>();
}

}  // namespace fut
