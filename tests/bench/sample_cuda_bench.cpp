// How long sample and advance take on the GPU: microseconds a call in a graph of dependent calls, logits
// in the second-level cache as the head leaves them. Prints one line a case.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <random>
#include <vector>

#include "tests/support/backends.h"

#if FUT_CUDA
#include "kernels/cuda/cuda_ops.h"
#include "tests/support/on_device.h"
#endif

#if FUT_CUDA
namespace fut::test {
namespace {

constexpr int kVocabulary = 128256;

struct Case {
  const char* name;
  SampleParams params;
};

// Bulk and peak as a language model's head has them; `deviation` of the bulk.
std::vector<float> logits_of(int rows, float deviation, bool peak) {
  std::vector<float> values = normal_values(std::int64_t{rows} * kVocabulary, 7, deviation);
  std::mt19937 random(8);
  for (int row = 0; peak && row < rows; ++row) {
    for (int i = 0; i < 60; ++i) {
      const std::size_t place =
          static_cast<std::size_t>(row) * kVocabulary + random() % kVocabulary;
      values[place] = 10 + 8 * static_cast<float>(random() % 1024) / 1024;
    }
  }
  return values;
}

// Of a call among many in a graph.
double microseconds(OnDevice& device, const std::function<void()>& call) {
  const cuda::Stream& stream = device.context().stream();
  constexpr int kCalls = 40;
  const cuda::Graph graph(stream, [&] {
    for (int i = 0; i < kCalls; ++i) call();
  });
  double best = 1e30;
  for (int i = 0; i < 12; ++i) {
    const cuda::Event begin;
    const cuda::Event end;
    begin.record(stream);
    graph.launch(stream);
    end.record(stream);
    end.synchronize();
    best = std::min(best, 1e3 * static_cast<double>(end.milliseconds_since(begin)) / kCalls);
  }
  return best;
}

double advance_microseconds(int rows) {
  OnDevice device;
  const auto count = static_cast<std::size_t>(rows);
  const auto ints = [&](std::size_t size, std::int32_t value) {
    const std::vector<std::int32_t> values(size, value);
    return device.copy(std::span<const std::int32_t>(values));
  };
  const std::vector<std::uint64_t> zeros(count);
  StepRingView ring{nullptr, 64, rows};
  const cuda::PinnedMemory memory(static_cast<std::size_t>(ring.bytes()));
  ring.data = memory.bytes().data();
  StepState state;
  state.rows = rows;
  state.next_ids = ints(count, 5);
  state.token_ids = ints(count, 0);
  state.positions = ints(count, 0);
  state.kv_lengths = ints(count, 1);
  state.draw_index = device.copy(std::span<const std::uint64_t>(zeros));
  state.history = ints(count, 0);
  state.history_limits = ints(count, 0);
  state.history_windows = ints(count, 64);
  state.history_begins = ints(count, 0);
  state.history_ends = ints(count, 0);
  state.end_ids = ints(count * kMaxEndIds, kNoToken);
  state.remaining = ints(count, 1000000);
  state.finished = ints(count, 0);
  state.step = device.copy(std::span<const std::uint64_t>(zeros).first(1));
  state.ring = ring;
  return microseconds(device, [&] { cuda::advance(state, device.context()); });
}

double sample_microseconds(int rows, const SampleParams& params, const std::vector<float>& logits,
                           int history_length) {
  OnDevice device;
  std::vector<SampleParams> all(static_cast<std::size_t>(rows), params);
  std::vector<std::uint64_t> draws(static_cast<std::size_t>(rows));
  std::vector<std::int32_t> ends(static_cast<std::size_t>(rows) + 1, 0);
  for (std::size_t i = 0; i < draws.size(); ++i) {
    draws[i] = i;
    ends[i + 1] = ends[i] + history_length;
  }
  std::vector<std::int32_t> history(static_cast<std::size_t>(ends.back()) + 1);
  for (std::size_t i = 0; i < history.size(); ++i) {
    history[i] = static_cast<std::int32_t>(i * 7919 % kVocabulary);
  }
  std::int32_t* indptr = device.copy(std::span<const std::int32_t>(ends));
  const std::vector<std::int32_t> ids(static_cast<std::size_t>(rows));
  SampleArgs args;
  args.logits = {device.copy(std::span<const float>(logits)), rows, kVocabulary, kVocabulary};
  args.params = device.copy(std::span<const SampleParams>(all));
  args.draw_index = device.copy(std::span<const std::uint64_t>(draws));
  args.history = device.copy(std::span<const std::int32_t>(history));
  args.history_begins = indptr;
  args.history_ends = indptr + 1;
  args.next_ids = device.copy(std::span<const std::int32_t>(ids));
  return microseconds(device, [&] { cuda::sample(args, device.context()); });
}

std::vector<Case> cases() {
  SampleParams greedy;
  greedy.temperature = 0;
  SampleParams top_k;
  top_k.temperature = 0.7F;
  top_k.top_k = 40;
  top_k.top_p = 0.95F;
  SampleParams top_p = top_k;
  top_p.top_k = 0;
  SampleParams min_p;
  min_p.temperature = 0.7F;
  min_p.min_p = 0.05F;
  SampleParams plain;
  plain.temperature = 0.7F;
  SampleParams flat;
  flat.temperature = 1e30F;
  return {{"greedy", greedy},         {"0.7, top-k 40, top-p 0.95", top_k},
          {"0.7, top-p 0.95", top_p}, {"0.7, min-p 0.05", min_p},
          {"0.7 alone", plain},       {"1e30 alone", flat}};
}

void run() {
  const struct {
    const char* name;
    float deviation;
    bool peak;
  } kLogits[] = {{"peaked", 2, true}, {"normal, deviation 2", 2, false}};
  for (const int rows : {1, 8, 32}) {
    std::printf("%2d rows, advance %7.2f us\n", rows, advance_microseconds(rows));
    for (const auto& l : kLogits) {
      const std::vector<float> logits = logits_of(rows, l.deviation, l.peak);
      for (const Case& c : cases()) {
        std::printf("%2d rows, %-20s %-26s %7.2f us\n", rows, l.name, c.name,
                    sample_microseconds(rows, c.params, logits, 0));
      }
      Case penalties = cases()[0];
      penalties.params.repetition_penalty = 1.1F;
      for (const int length : {64, 8192}) {
        std::printf("%2d rows, %-20s greedy, penalties over %-4d %7.2f us\n", rows, l.name, length,
                    sample_microseconds(rows, penalties.params, logits, length));
      }
    }
  }
}

}  // namespace
}  // namespace fut::test

int main() {
  const std::string missing = fut::test::gpu_missing();
  if (!missing.empty()) {
    std::fprintf(stderr, "no GPU: %s\n", missing.c_str());
    return 1;
  }
  fut::test::run();
  return 0;
}
#else
int main() {
  std::fprintf(stderr, "built without CUDA\n");
  return 1;
}
#endif
