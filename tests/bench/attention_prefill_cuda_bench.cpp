// Prefill attention on the GPU: prompts of equal length behind what is there already, at the shapes of
// Llama-3.1. Time of one call, many in a row, with all that belongs to it (an INT4 cache: widening
// history, storing); TFLOP/s count what the contract asks for, without what tiles at the causal edge
// compute in vain. Numbers are random: zeros would take less power. Skipped where there is no GPU.
#include <algorithm>
#include <benchmark/benchmark.h>

#include "tests/support/backends.h"
#include "tests/support/ragged_case.h"

namespace fut::test {
namespace {

constexpr int kHeadDim = 128;
constexpr int kKvHeads = 8;

struct Chunk {
  Chunk(Backend& backend, int num_q_heads, const SequenceShape& sequence, int sequences, bool int4)
      : arrays(std::vector<SequenceShape>(static_cast<std::size_t>(sequences), sequence)),
        tokens(sequences * sequence.new_tokens),
        batch(backend, arrays),
        q(backend, halves(std::int64_t{tokens} * num_q_heads * kHeadDim)),
        k(backend, halves(std::int64_t{tokens} * kKvHeads * kHeadDim)),
        v(backend, halves(std::int64_t{tokens} * kKvHeads * kHeadDim)),
        out(backend, halves(std::int64_t{tokens} * num_q_heads * kHeadDim)),
        pages(backend,
              int4 ? codes(arrays.num_pages)
                   : halves(arrays.num_pages * layout::KvPageDense{kKvHeads, kHeadDim}.elements())),
        raw(backend,
            halves(arrays.num_raw_slots * layout::KvRawStore{kKvHeads, kHeadDim}.elements())) {
    const auto view = [&](const Guarded<std::uint16_t>& rows, int heads) {
      return ActivationView(rows.data(), DType::BF16, tokens, heads * kHeadDim, heads * kHeadDim);
    };
    args.q = view(q, num_q_heads);
    args.out = view(out, num_q_heads);
    args.num_q_heads = num_q_heads;
    args.num_kv_heads = kKvHeads;
    args.head_dim = kHeadDim;
    args.batch = batch.view();
    if (!int4) {
      args.kv = KvPages{pages.data(), arrays.num_pages, {kKvHeads, kHeadDim}, DType::BF16};
      return;
    }
    args.k = view(k, kKvHeads);
    args.v = view(v, kKvHeads);
    args.kv = KvPagesInt4{reinterpret_cast<std::uint8_t*>(pages.data()),
                          arrays.num_pages,
                          {kKvHeads, kHeadDim, kHeadDim},
                          raw.data(),
                          arrays.num_raw_slots,
                          {kKvHeads, kHeadDim}};
  }

  // Normally distributed, without a pattern that a chip would profit from.
  static std::vector<std::uint16_t> halves(std::int64_t count) {
    constexpr std::int64_t kDifferent = 1 << 20;
    const std::vector<float> values = normal_values(std::min(count, kDifferent), 3);
    std::vector<std::uint16_t> bits(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < bits.size(); ++i) {
      bits[i] = static_cast<std::uint16_t>(bits_of(DType::BF16, values[i % values.size()]));
    }
    return bits;
  }
  // INT4 pages: the same bytes as codes and as parameters, those being numbers of ordinary size.
  static std::vector<std::uint16_t> codes(std::int64_t num_pages) {
    constexpr std::uint16_t kQuarter = 0x3400;  // in FP16
    return std::vector<std::uint16_t>(
        static_cast<std::size_t>(num_pages *
                                 layout::KvPageInt4{kKvHeads, kHeadDim, kHeadDim}.bytes() / 2),
        kQuarter);
  }

  RaggedArrays arrays;
  int tokens;
  GuardedBatch batch;
  Guarded<std::uint16_t> q, k, v, out, pages, raw;
  AttentionArgs args;
};

void prefill(benchmark::State& state) {
  if (const std::string missing = gpu_missing(); !missing.empty()) {
    state.SkipWithError(("no GPU: " + missing).c_str());
    return;
  }
  constexpr int kCalls = 20;
  const auto gpu = gpu_backend();
  const auto heads = static_cast<int>(state.range(0));
  const auto sequences = static_cast<int>(state.range(1));
  const auto tokens = static_cast<int>(state.range(2));
  const auto history = static_cast<int>(state.range(3));
  const Chunk chunk(*gpu, heads, {tokens, tokens + history}, sequences, state.range(4) != 0);
  for (int i = 0; i < 3; ++i) gpu->attention(chunk.args);
  gpu->synchronize();
  for ([[maybe_unused]] auto _ : state) {
    for (int i = 0; i < kCalls; ++i) gpu->attention(chunk.args);
    gpu->synchronize();
  }
  const double keys = static_cast<double>(sequences) * tokens * (history + (tokens + 1) / 2.0);
  const double calls = static_cast<double>(state.iterations()) * kCalls;
  state.counters["TFLOP/s"] = benchmark::Counter(4.0 * heads * kHeadDim * keys * calls * 1e-12,
                                                 benchmark::Counter::kIsRate);
  state.counters["call"] =
      benchmark::Counter(calls, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

// 16,384 tokens in all at three lengths, and single prompts.
BENCHMARK(prefill)
    ->ArgNames({"q_heads", "sequences", "tokens", "behind", "int4"})
    ->ArgsProduct({{32}, {8}, {2048}, {0}, {0, 1}})
    ->ArgsProduct({{32}, {4}, {4096}, {0}, {0, 1}})
    ->ArgsProduct({{32}, {2}, {8192}, {0}, {0, 1}})
    ->ArgsProduct({{32}, {1}, {512, 2048}, {0, 8192}, {0, 1}})
    ->ArgsProduct({{64}, {1}, {2048}, {0, 8192}, {0, 1}})
    ->ArgsProduct({{32}, {1}, {64}, {2048}, {0, 1}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace fut::test

BENCHMARK_MAIN();
