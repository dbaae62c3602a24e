// Prefill attention on the GPU: a chunk of a prompt behind what is there already, at the shapes of
// Llama-3.1. Time of one call, many in a row; TFLOP/s count what the contract asks for, without
// what tiles at the causal edge compute in vain. Skipped where there is no GPU.
#include <benchmark/benchmark.h>

#include "tests/support/backends.h"
#include "tests/support/ragged_case.h"

namespace fut::test {
namespace {

constexpr int kHeadDim = 128;
constexpr int kKvHeads = 8;

// Zeros: what numbers there are makes no difference to the time.
struct Chunk {
  Chunk(Backend& backend, int num_q_heads, int tokens, int history, bool int4)
      : arrays({{tokens, tokens + history}}),
        batch(backend, arrays),
        q(backend, halves(tokens, num_q_heads)),
        k(backend, halves(tokens, kKvHeads)),
        v(backend, halves(tokens, kKvHeads)),
        out(backend, halves(tokens, num_q_heads)),
        pages(backend,
              std::vector<std::uint8_t>(static_cast<std::size_t>(
                  arrays.num_pages * layout::KvPageDense{kKvHeads, kHeadDim}.elements() * 2))),
        raw(backend,
            std::vector<std::uint16_t>(static_cast<std::size_t>(
                arrays.num_raw_slots * layout::KvRawStore{kKvHeads, kHeadDim}.elements()))) {
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
    args.kv = KvPagesInt4{pages.data(), arrays.num_pages,     {kKvHeads, kHeadDim, kHeadDim},
                          raw.data(),   arrays.num_raw_slots, {kKvHeads, kHeadDim}};
  }

  static std::vector<std::uint16_t> halves(int tokens, int heads) {
    return std::vector<std::uint16_t>(static_cast<std::size_t>(tokens) * heads * kHeadDim);
  }

  RaggedArrays arrays;
  GuardedBatch batch;
  Guarded<std::uint16_t> q, k, v, out;
  Guarded<std::uint8_t> pages;
  Guarded<std::uint16_t> raw;
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
  const auto tokens = static_cast<int>(state.range(1));
  const auto history = static_cast<int>(state.range(2));
  const Chunk chunk(*gpu, heads, tokens, history, state.range(3) != 0);
  for (int i = 0; i < 3; ++i) gpu->attention(chunk.args);
  gpu->synchronize();
  for ([[maybe_unused]] auto _ : state) {
    for (int i = 0; i < kCalls; ++i) gpu->attention(chunk.args);
    gpu->synchronize();
  }
  const double keys = tokens * (history + (tokens + 1) / 2.0);
  const double calls = static_cast<double>(state.iterations()) * kCalls;
  state.counters["TFLOP/s"] = benchmark::Counter(4.0 * heads * kHeadDim * keys * calls * 1e-12,
                                                 benchmark::Counter::kIsRate);
  state.counters["call"] =
      benchmark::Counter(calls, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

BENCHMARK(prefill)
    ->ArgNames({"q_heads", "tokens", "behind", "int4"})
    ->ArgsProduct({{32, 64}, {512}, {0, 2048, 8192}, {0, 1}})
    ->ArgsProduct({{32}, {64, 2048}, {2048}, {0, 1}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace fut::test

BENCHMARK_MAIN();
