// See the header; the arithmetic of sampling is the op's.
#include "engine/sampling.h"

#include <algorithm>

#include "kernels/check.h"

namespace fut {
namespace {

bool has_penalty(const SampleParams& p) {
  return p.repetition_penalty != 1.0F || p.presence_penalty != 0.0F || p.frequency_penalty != 0.0F;
}

template <class T>
void put(Backend& backend, const DeviceBuffer& destination, const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  FUT_CHECK(bytes.size() <= destination.bytes(), "{} bytes of sampling state, room for {}",
            bytes.size(), destination.bytes());
  backend.upload(destination.as<std::byte>(), bytes);
}

}  // namespace

SampleBuffers::SampleBuffers(Backend& backend, int max_rows, std::int64_t max_history) {
  const auto rows = static_cast<std::size_t>(max_rows);
  device_params_ = backend.allocate(rows * sizeof(SampleParams));
  device_draw_index_ = backend.allocate(rows * sizeof(std::uint64_t));
  device_history_ = backend.allocate(static_cast<std::size_t>(max_history) * sizeof(std::int32_t));
  device_history_indptr_ = backend.allocate((rows + 1) * sizeof(std::int32_t));
  device_next_ids_ = backend.allocate(rows * sizeof(std::int32_t));
  clear();
}

void SampleBuffers::clear() {
  params_.clear();
  draw_index_.clear();
  history_.clear();
  history_indptr_.assign(1, 0);
}

void SampleBuffers::add(const SamplingParams& params, std::span<const std::int32_t> tokens) {
  params_.push_back(params.sample);
  draw_index_.push_back(tokens.size());
  if (has_penalty(params.sample)) {
    const std::size_t window =
        params.repeat_last_n < 0
            ? tokens.size()
            : std::min(tokens.size(), static_cast<std::size_t>(params.repeat_last_n));
    const auto recent = tokens.last(window);
    history_.insert(history_.end(), recent.begin(), recent.end());
  }
  history_indptr_.push_back(static_cast<std::int32_t>(history_.size()));
}

std::vector<std::int32_t> SampleBuffers::draw(Backend& backend, MatrixView<const float> logits) {
  put(backend, device_params_, params_);
  put(backend, device_draw_index_, draw_index_);
  put(backend, device_history_, history_);
  put(backend, device_history_indptr_, history_indptr_);
  SampleArgs args;
  args.logits = logits;
  args.params = device_params_.as<SampleParams>();
  args.draw_index = device_draw_index_.as<std::uint64_t>();
  args.history = device_history_.as<std::int32_t>();
  args.history_indptr = device_history_indptr_.as<std::int32_t>();
  args.next_ids = device_next_ids_.as<std::int32_t>();
  backend.sample(args);
  std::vector<std::int32_t> ids(params_.size());
  backend.download(std::as_writable_bytes(std::span(ids)), args.next_ids);
  return ids;
}

}  // namespace fut
