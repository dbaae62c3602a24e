// See the header.
#include "engine/decode_loop.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "engine/upload.h"
#include "kernels/check.h"
#include "kernels/error.h"

namespace fut {

std::vector<DecodeLoop::Allocation> DecodeLoop::allocations(int max_rows) {
  const std::size_t ints = static_cast<std::size_t>(max_rows) * sizeof(std::int32_t);
  return {{&DecodeLoop::end_ids_, kMaxEndIds * ints},
          {&DecodeLoop::remaining_, ints},
          {&DecodeLoop::finished_, ints},
          {&DecodeLoop::step_, sizeof(std::uint64_t)}};
}

std::size_t DecodeLoop::device_bytes(int max_rows) {
  std::size_t sum = 0;
  for (const Allocation& a : allocations(max_rows)) sum += a.bytes;
  return sum;
}

std::size_t DecodeLoop::shared_bytes(int max_rows) {
  return static_cast<std::size_t>(StepRingView{nullptr, kMostAhead, max_rows}.bytes());
}

DecodeLoop::DecodeLoop(Backend& backend, const Model& model, KvCache& cache, Workspace& workspace,
                       SampleBuffers& sampling, int max_rows)
    : backend_(backend),
      model_(model),
      cache_(cache),
      workspace_(workspace),
      sampling_(sampling),
      max_rows_(max_rows) {
  ring_ = backend.allocate_shared(shared_bytes(max_rows));
  std::fill_n(ring_.as<std::byte>(), ring_.bytes(), std::byte{0});
  for (const Allocation& a : allocations(max_rows)) this->*a.buffer = backend.allocate(a.bytes);
  upload_values(backend, step_, std::vector<std::uint64_t>{0});
}

DecodeLoop::~DecodeLoop() {
  if (outstanding() == 0) return;
  try {
    backend_.synchronize();
  } catch (const Error&) {
    // A device that failed writes nothing any more, and said so to whoever waited for it.
  }
}

StepRingView DecodeLoop::ring() const {
  return {ring_.as<std::byte>(), kMostAhead, max_rows_};
}

StepState DecodeLoop::state() const {
  StepState s;
  s.rows = workspace_.batch().num_sequences;
  const Workspace::Advancing arrays = workspace_.advancing();
  s.token_ids = arrays.token_ids;
  s.positions = arrays.positions;
  s.kv_lengths = arrays.kv_lengths;
  sampling_.name_arrays(s);
  s.end_ids = end_ids_.as<std::int32_t>();
  s.remaining = remaining_.as<std::int32_t>();
  s.finished = finished_.as<std::int32_t>();
  s.step = step_.as<std::uint64_t>();
  s.ring = ring();
  return s;
}

void DecodeLoop::start(const Batch& batch, std::span<const DecodeRow> rows) {
  FUT_CHECK(outstanding() == 0, "{} steps are outstanding", outstanding());
  FUT_CHECK(batch.kind == StepKind::Decode && batch.sequences.size() == rows.size(),
            "{} rows for {} sequences", rows.size(), batch.sequences.size());
  running_ = false;  // until all is in place
  std::vector<std::int32_t> end_ids, remaining;
  for (const DecodeRow& row : rows) {
    const std::size_t first = end_ids.size();
    const auto known = row.end_ids.first(std::min<std::size_t>(row.end_ids.size(), kMaxEndIds));
    end_ids.insert(end_ids.end(), known.begin(), known.end());
    end_ids.resize(first + kMaxEndIds, kNoToken);
    remaining.push_back(static_cast<std::int32_t>(row.remaining_tokens));
  }
  workspace_.upload(backend_, batch);
  sampling_.upload(backend_);
  upload_values(backend_, end_ids_, end_ids);
  upload_values(backend_, remaining_, remaining);
  upload_values(backend_, finished_, std::vector<std::int32_t>(rows.size(), 0));
  sequences_ = batch.sequences;
  longest_context_ = batch.longest_context();
  running_ = true;
}

int DecodeLoop::fewer_rows(int rows) {
  // Powers of two, and half-way between: a step of a half more rows can be had for less time than the
  // recordings between would take.
  int below = rows > 1 ? 1 : 0;
  for (int power = 2; power < rows; power *= 2)
    below = power + power / 2 < rows ? power + power / 2 : power;
  return below;
}

bool DecodeLoop::runs(std::span<const SequenceId> sequences) const {
  if (!running_ || sequences.empty()) return false;
  auto row = sequences_.begin();
  for (const SequenceId id : sequences) {
    row = std::find(row, sequences_.end(), id);
    if (row == sequences_.end()) return false;
    ++row;
  }
  return std::ssize(sequences) > fewer_rows(static_cast<int>(sequences_.size()));
}

void DecodeLoop::run_step() {
  workspace_.set_longest_context(longest_context_);
  forward(backend_, model_, cache_, workspace_);
  sampling_.launch(backend_, workspace_.logits());
  backend_.advance(state());
}

const Backend::Procedure& DecodeLoop::recorded_step() {
  const auto rows = static_cast<int>(sequences_.size());
  const int items = rows * model_.config().num_kv_heads;
  auto& step = steps_[{rows, backend_.context_kind(items, longest_context_)}];
  if (!step) {
    const auto start = std::chrono::steady_clock::now();
    step = backend_.capture([this] { run_step(); });
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    ++recordings_.count;
    recordings_.seconds += taken.count();
  }
  return step;
}

void DecodeLoop::launch(int count) {
  FUT_CHECK(running_ && count <= kMostAhead, "{} steps ahead, {} at most", count, kMostAhead);
  for (; outstanding() < count; ++launched_, ++longest_context_) recorded_step()();
}

std::span<const std::int32_t> DecodeLoop::wait() {
  FUT_CHECK(outstanding() > 0, "{} steps are outstanding", outstanding());
  constexpr unsigned kLooksPerCheck = 256;
  for (unsigned looks = 1;; ++looks) {
    if (const auto tokens = poll(ring(), read_)) {
      ++read_;
      return tokens->first(sequences_.size());
    }
    // A device that failed shows nothing any more.
    if (looks % kLooksPerCheck == 0 && backend_.idle() && !poll(ring(), read_)) {
      throw runtime_failure("the device ended without the tokens of step {}", read_);
    }
    std::this_thread::yield();
  }
}

}  // namespace fut
