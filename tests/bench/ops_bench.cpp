// Each op of the CPU backend where it stands in a whole step of a model, and the step itself.
// Prints microseconds a call, GB/s and GFLOP/s beside two roofs measured in the same run: how fast
// all threads read memory that no cache holds, and how fast they multiply and add unfused.
// A case is a model, a precision, and so many sequences of a length of which some tokens are run.
//   ops_bench [--benchmark_filter=REGEX]     FUT_BENCH_THREADS chooses the number of threads
#include <algorithm>
#include <benchmark/benchmark.h>
#include <cstdlib>
#include <fmt/format.h>
#include <string>
#include <string_view>

#include "tests/bench/bench_step.h"

namespace fut {
namespace {

constexpr ModelShape kDemo6m = {"demo-6m", 256, 6, 2, 1, 128, 768, 4096};
constexpr ModelShape kNovels19m = {"novels-19m", 384, 8, 4, 1, 128, 1152, 6144};
// Two layers of the real thing: more weights than any cache holds.
constexpr ModelShape kLlama8b = {"2-layers-of-llama-3.1-8b", 4096, 2, 32, 8, 128, 14336, 4096};

int bench_threads() {
  const char* value = std::getenv("FUT_BENCH_THREADS");
  return value == nullptr ? 0 : std::atoi(value);
}

void add(OpTotal& sum, const OpTotal& total) {
  sum.calls += total.calls;
  sum.seconds += total.seconds;
  sum.cost.bytes += total.cost.bytes;
  sum.cost.flops += total.cost.flops;
}

struct Case {
  ModelShape model;
  Arithmetic arithmetic;
  StepShape step;
};

// Runs whole steps, so that an op finds the caches as it does in earnest, and reports one op (or
// all of them together).
void bench_step(benchmark::State& state, const Case& c, int op) {
  BenchStep step(c.model, c.arithmetic, c.step, bench_threads());
  OpTotals warm_up{};
  step.run(warm_up);
  OpTotal sum;
  for (auto _ : state) {
    OpTotals totals{};
    step.run(totals);
    double step_seconds = 0;
    for (int i = 0; i < kNumOps; ++i) {
      const OpTotal& total = totals[static_cast<std::size_t>(i)];
      step_seconds += total.seconds;
      if (op < 0 || op == i) add(sum, total);
    }
    // The time of the step, not of the op: some ops are so short that they would never fill the
    // time that a benchmark is given.
    state.SetIterationTime(step_seconds);
  }
  state.counters["us/call"] = sum.seconds / sum.calls * 1e6;
  state.counters["GB/s"] = static_cast<double>(sum.cost.bytes) / sum.seconds / 1e9;
  state.counters["GFLOP/s"] = static_cast<double>(sum.cost.flops) / sum.seconds / 1e9;
  if (op < 0) {
    state.counters["tokens/s"] =
        static_cast<double>(state.iterations()) * step.num_tokens() / sum.seconds;
  }
  state.SetLabel(step.description());
}

struct Roofs {
  void (*multiply_add)(std::int64_t rounds);
  double flops_per_round;
  void (*read)(const float* data, std::int64_t count);  // count a multiple of 64, data aligned
};

// The roofs, once for each instruction set. Six chains of products and six of sums, none of which
// feeds another: the most that unfused arithmetic can do. And sums over memory, four registers wide.
// Written out, because a loop over them would go through memory where it is not unrolled.
#define FUT_ROOFS(build, width, ...)                                                      \
  namespace build {                                                                       \
  typedef float Floats __attribute__((vector_size((width)*4)));                           \
  __VA_ARGS__ void multiply_add(std::int64_t rounds) {                                    \
    Floats p0 = Floats{} + 1.0F, p1 = p0, p2 = p0, p3 = p0, p4 = p0, p5 = p0;             \
    Floats s0 = p0, s1 = p0, s2 = p0, s3 = p0, s4 = p0, s5 = p0;                          \
    for (std::int64_t round = 0; round < rounds; ++round) {                               \
      p0 *= 1.0000001F, p1 *= 1.0000001F, p2 *= 1.0000001F;                               \
      p3 *= 1.0000001F, p4 *= 1.0000001F, p5 *= 1.0000001F;                               \
      s0 += 1e-7F, s1 += 1e-7F, s2 += 1e-7F, s3 += 1e-7F, s4 += 1e-7F, s5 += 1e-7F;       \
    }                                                                                     \
    Floats all = (p0 + p1) + (p2 + p3) + (p4 + p5) + (s0 + s1) + (s2 + s3) + (s4 + s5);   \
    benchmark::DoNotOptimize(all);                                                        \
  }                                                                                       \
  __VA_ARGS__ void read(const float* data, std::int64_t count) {                          \
    Floats s0 = {}, s1 = {}, s2 = {}, s3 = {};                                            \
    const auto* vectors = reinterpret_cast<const Floats*>(data);                          \
    for (std::int64_t i = 0; i < count / (width); i += 4) {                               \
      s0 += vectors[i], s1 += vectors[i + 1], s2 += vectors[i + 2], s3 += vectors[i + 3]; \
    }                                                                                     \
    Floats all = (s0 + s1) + (s2 + s3);                                                   \
    benchmark::DoNotOptimize(all);                                                        \
  }                                                                                       \
  constexpr Roofs kRoofs = {&multiply_add, 12.0 * (width), &read};                        \
  }

FUT_ROOFS(baseline, 4, )
#if defined(__x86_64__)
FUT_ROOFS(avx2, 8, __attribute__((target("avx2"))))
FUT_ROOFS(avx512, 16, __attribute__((target("avx512f"))))
#endif
#undef FUT_ROOFS

// Of the build that the backend uses.
const Roofs& roofs() {
#if defined(__x86_64__)
  const std::string_view build = cpu::usable_vector_loops().back()->name;
  if (build == "AVX2") return avx2::kRoofs;
  if (build == "AVX-512") return avx512::kRoofs;
#endif
  return baseline::kRoofs;
}

void bench_read_roof(benchmark::State& state) {
  constexpr std::int64_t kFloats = 256LL << 20;  // 1 GiB: more than any cache
  constexpr std::int64_t kPiece = 1 << 16;
  cpu::CpuBackend memory(1);
  const DeviceBuffer buffer = memory.allocate(kFloats * sizeof(float));
  std::fill_n(buffer.as<float>(), kFloats, 1.0F);
  cpu::ThreadPool pool(bench_threads());
  for (auto _ : state) {
    pool.parallel_for(kFloats / kPiece, kPiece, [&](std::int64_t begin, std::int64_t end, int) {
      roofs().read(buffer.as<float>() + begin * kPiece, (end - begin) * kPiece);
    });
  }
  state.counters["GB/s"] = benchmark::Counter(sizeof(float) * static_cast<double>(kFloats) / 1e9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}

void bench_multiply_add_roof(benchmark::State& state) {
  constexpr std::int64_t kRounds = 100000;
  cpu::ThreadPool pool(bench_threads());
  const std::int64_t pieces = 8LL * pool.num_threads();
  for (auto _ : state) {
    pool.parallel_for(pieces, kRounds, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t i = begin; i < end; ++i) roofs().multiply_add(kRounds);
    });
  }
  state.counters["GFLOP/s"] =
      benchmark::Counter(roofs().flops_per_round * static_cast<double>(kRounds * pieces) / 1e9,
                         benchmark::Counter::kIsIterationInvariantRate);
}

void register_all() {
  benchmark::RegisterBenchmark("roof/read_memory", &bench_read_roof)->UseRealTime();
  benchmark::RegisterBenchmark("roof/multiply_add", &bench_multiply_add_roof)->UseRealTime();
  using enum Arithmetic;
  const Case cases[] = {{kDemo6m, Plain, {1, 1, 256}},      {kDemo6m, Int4, {1, 1, 256}},
                        {kDemo6m, Plain, {1, 512, 1024}},   {kNovels19m, Plain, {1, 1, 256}},
                        {kNovels19m, Bf16, {1, 1, 256}},    {kNovels19m, Fp8, {1, 1, 256}},
                        {kNovels19m, Int4, {1, 1, 256}},    {kNovels19m, Int4, {16, 1, 512}},
                        {kNovels19m, Plain, {1, 512, 512}}, {kNovels19m, Plain, {1, 512, 1024}},
                        {kNovels19m, Fp8, {1, 512, 1024}},  {kLlama8b, Plain, {1, 1, 1024}},
                        {kLlama8b, Plain, {1, 8, 1024}},    {kLlama8b, Plain, {1, 64, 1024}},
                        {kLlama8b, Int4, {1, 1, 1024}},     {kLlama8b, Int4, {8, 1, 1024}}};
  for (const Case& c : cases) {
    const std::string suffix = fmt::format("/{}/{}/sequences:{}/tokens:{}/length:{}", c.model.name,
                                           kArithmeticNames[static_cast<std::size_t>(c.arithmetic)],
                                           c.step.sequences, c.step.tokens, c.step.length);
    for (int op = -1; op < kNumOps; ++op) {
      const std::string name = (op < 0 ? "step" : kOpNames[static_cast<std::size_t>(op)]) + suffix;
      benchmark::RegisterBenchmark(name.c_str(),
                                   [c, op](benchmark::State& state) { bench_step(state, c, op); })
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

}  // namespace
}  // namespace fut

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  fut::register_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
