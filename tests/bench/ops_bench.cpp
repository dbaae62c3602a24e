// Each op of the CPU backend where it stands in a whole step of a model, and the step itself.
// Prints microseconds a call, GB/s and GFLOP/s beside two roofs measured in the same run: how fast
// all threads read memory that no cache holds, and how fast they multiply and add unfused.
//   ops_bench [--benchmark_filter=REGEX]     FUT_BENCH_THREADS chooses the number of threads
#include <algorithm>
#include <array>
#include <benchmark/benchmark.h>
#include <chrono>
#include <cstdlib>
#include <fmt/format.h>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/numeric/formats.h"
#include "kernels/op_cost.h"

namespace fut {
namespace {

using Clock = std::chrono::steady_clock;

struct ModelShape {
  const char* name;
  int hidden, layers, num_q_heads, num_kv_heads, head_dim, ffn, vocab;

  [[nodiscard]] std::int64_t q_cols() const { return std::int64_t{num_q_heads} * head_dim; }
  [[nodiscard]] std::int64_t kv_cols() const { return std::int64_t{num_kv_heads} * head_dim; }
};

constexpr ModelShape kDemo6m = {"demo-6m", 256, 6, 2, 1, 128, 768, 4096};
constexpr ModelShape kNovels19m = {"novels-19m", 384, 8, 4, 1, 128, 1152, 6144};
// Two layers of the real thing: more weights than any cache holds.
constexpr ModelShape kLlama8b = {"2-layers-of-llama-3.1-8b", 4096, 2, 32, 8, 128, 14336, 4096};

enum class Op { Embed, Qkv, Attention, OutProj, GateUp, Down, LmHead, Sample };
constexpr int kNumOps = 8;
constexpr std::array<const char*, kNumOps> kOpNames = {
    "embed",          "qkv_rope_append",
    "attention",      "linear_residual(o_proj)",
    "gate_up_swiglu", "linear_residual(down_proj)",
    "lm_head",        "sample"};

int bench_threads() {
  const char* value = std::getenv("FUT_BENCH_THREADS");
  return value == nullptr ? 0 : std::atoi(value);
}

// What one op did in one step: calls, time, and its cost from op_cost.h.
struct OpTotal {
  int calls = 0;
  double seconds = 0;
  OpCost cost;
};

void add(OpTotal& sum, const OpTotal& total) {
  sum.calls += total.calls;
  sum.seconds += total.seconds;
  sum.cost.bytes += total.cost.bytes;
  sum.cost.flops += total.cost.flops;
}

// A model of random BF16 weights, and one sequence of `length` tokens of which the last `tokens`
// are run.
class Step {
 public:
  Step(const ModelShape& shape, int tokens, int length)
      : shape_(shape), tokens_(tokens), length_(length), backend_(bench_threads()) {
    embedding_ = weight(shape.vocab, shape.hidden);
    for (int i = 0; i < shape.layers; ++i) layers_.push_back(make_layer());
    gain_ = floats(shape.hidden);
    rope_ = floats(std::int64_t{length} * shape.head_dim / 2);
    x_ = matrix(tokens, shape.hidden);
    q_ = matrix(tokens, shape.q_cols());
    attended_ = matrix(tokens, shape.q_cols());
    ffn_ = matrix(tokens, shape.ffn);
    logits_ = matrix(1, shape.vocab);
    for (int i = 0; i < tokens; ++i) {
      token_ids_.push_back(i % shape.vocab);
      positions_.push_back(length - tokens + i);
    }
    const auto pages = static_cast<std::int32_t>(layout::pages_for_tokens(length));
    for (std::int32_t i = 0; i < pages; ++i) page_table_.push_back(i);
    q_indptr_ = {0, tokens};
    kv_indptr_ = {0, pages};
    kv_lengths_ = {length};
    logit_rows_ = {tokens - 1};
    params_.temperature = 0.8F;
    params_.top_k = 40;
    params_.top_p = 0.95F;
  }

  // The whole step; adds up what each op did.
  void run(std::array<OpTotal, kNumOps>& totals) {
    call(totals, Op::Embed, EmbedArgs{token_ids_.data(), tokens_, embedding_, x_});
    for (const Layer& layer : layers_) run_layer(layer, totals);
    call(totals, Op::LmHead,
         LmHeadArgs{input(x_), logit_rows_.data(), 1, gain_, kEps, embedding_, logits_});
    call(totals, Op::Sample,
         SampleArgs{input(logits_), &params_, &draw_, nullptr, history_indptr_.data(), &next_id_});
    // The residual stream must not grow from step to step.
    std::fill_n(x_.data, x_.rows * x_.cols, 0.0F);
  }

  [[nodiscard]] std::string description() const { return backend_.description(); }

 private:
  static constexpr float kEps = 1e-5F;

  struct Layer {
    WeightMatrix q, k, v, o, gate, up, down;
    KvPages kv;
  };

  static MatrixView<const float> input(const MatrixView<float>& m) {
    return {m.data, m.rows, m.cols, m.row_stride};
  }

  WeightMatrix weight(std::int64_t rows, std::int64_t cols) {
    buffers_.push_back(backend_.allocate(static_cast<std::size_t>(rows * cols) * 2));
    auto* data = buffers_.back().as<std::uint16_t>();
    std::uniform_real_distribution<float> values(-0.05F, 0.05F);
    for (std::int64_t i = 0; i < rows * cols; ++i) data[i] = f32_to_bf16(values(random_));
    return {DType::BF16, data, rows, cols};
  }

  float* floats(std::int64_t count) {
    buffers_.push_back(backend_.allocate(static_cast<std::size_t>(count) * 4));
    auto* data = buffers_.back().as<float>();
    std::uniform_real_distribution<float> values(-1.0F, 1.0F);
    for (std::int64_t i = 0; i < count; ++i) data[i] = values(random_);
    return data;
  }

  MatrixView<float> matrix(std::int64_t rows, std::int64_t cols) {
    return {floats(rows * cols), rows, cols, cols};
  }

  Layer make_layer() {
    const layout::KvPageF32 page = {shape_.num_kv_heads, shape_.head_dim};
    const auto pages = static_cast<int>(layout::pages_for_tokens(length_));
    return {
        weight(shape_.q_cols(), shape_.hidden),  weight(shape_.kv_cols(), shape_.hidden),
        weight(shape_.kv_cols(), shape_.hidden), weight(shape_.hidden, shape_.q_cols()),
        weight(shape_.ffn, shape_.hidden),       weight(shape_.ffn, shape_.hidden),
        weight(shape_.hidden, shape_.ffn),       {floats(pages * page.elements()), pages, page}};
  }

  void run_layer(const Layer& layer, std::array<OpTotal, kNumOps>& totals) {
    const RaggedBatch batch = {1,
                               tokens_,
                               token_ids_.data(),
                               positions_.data(),
                               q_indptr_.data(),
                               kv_indptr_.data(),
                               page_table_.data(),
                               kv_lengths_.data()};
    call(totals, Op::Qkv,
         QkvRopeAppendArgs{input(x_), gain_, kEps, layer.q, layer.k, layer.v, shape_.num_q_heads,
                           shape_.num_kv_heads, shape_.head_dim, rope_, rope_, length_, batch,
                           layer.kv, q_});
    call(totals, Op::Attention,
         AttentionArgs{input(q_), shape_.num_q_heads, shape_.num_kv_heads, shape_.head_dim, batch,
                       layer.kv, attended_});
    call(totals, Op::OutProj, LinearResidualArgs{input(attended_), layer.o, x_});
    call(totals, Op::GateUp, GateUpSwigluArgs{input(x_), gain_, kEps, layer.gate, layer.up, ffn_});
    call(totals, Op::Down, LinearResidualArgs{input(ffn_), layer.down, x_});
  }

  void execute(const EmbedArgs& a) { backend_.embed(a); }
  void execute(const QkvRopeAppendArgs& a) { backend_.qkv_rope_append(a); }
  void execute(const AttentionArgs& a) { backend_.attention(a); }
  void execute(const LinearResidualArgs& a) { backend_.linear_residual(a); }
  void execute(const GateUpSwigluArgs& a) { backend_.gate_up_swiglu(a); }
  void execute(const LmHeadArgs& a) { backend_.lm_head(a); }
  void execute(const SampleArgs& a) { backend_.sample(a); }

  template <class Args>
  void call(std::array<OpTotal, kNumOps>& totals, Op op, const Args& args) {
    const Clock::time_point start = Clock::now();
    execute(args);
    OpTotal& total = totals[static_cast<std::size_t>(op)];
    total.seconds += std::chrono::duration<double>(Clock::now() - start).count();
    const OpCost once = cost(args);
    total.cost.bytes += once.bytes;
    total.cost.flops += once.flops;
    ++total.calls;
  }

  ModelShape shape_;
  int tokens_, length_;
  cpu::CpuBackend backend_;
  std::mt19937 random_{1};
  std::vector<DeviceBuffer> buffers_;
  std::vector<Layer> layers_;
  WeightMatrix embedding_;
  float* gain_ = nullptr;
  float* rope_ = nullptr;
  MatrixView<float> x_, q_, attended_, ffn_, logits_;
  std::vector<std::int32_t> token_ids_, positions_, page_table_, q_indptr_, kv_indptr_, kv_lengths_,
      logit_rows_;
  std::vector<std::int32_t> history_indptr_ = {0, 0};
  SampleParams params_;
  std::uint64_t draw_ = 0;
  std::int32_t next_id_ = 0;
};

// Runs whole steps, so that an op finds the caches as it does in earnest, and reports one op (or
// all of them together).
void bench_step(benchmark::State& state, const ModelShape& shape, int tokens, int length, int op) {
  Step step(shape, tokens, length);
  std::array<OpTotal, kNumOps> warm_up{};
  step.run(warm_up);
  OpTotal sum;
  for (auto _ : state) {
    std::array<OpTotal, kNumOps> totals{};
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
    state.counters["tokens/s"] = static_cast<double>(state.iterations()) * tokens / sum.seconds;
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
  struct Case {
    ModelShape shape;
    int tokens, length;
  };
  const Case cases[] = {{kDemo6m, 1, 256},      {kDemo6m, 512, 1024},    {kNovels19m, 1, 256},
                        {kNovels19m, 512, 512}, {kNovels19m, 512, 1024}, {kLlama8b, 1, 1024},
                        {kLlama8b, 8, 1024},    {kLlama8b, 64, 1024}};
  for (const Case& c : cases) {
    const std::string suffix =
        fmt::format("/{}/tokens:{}/length:{}", c.shape.name, c.tokens, c.length);
    for (int op = -1; op < kNumOps; ++op) {
      const std::string name = (op < 0 ? "step" : kOpNames[static_cast<std::size_t>(op)]) + suffix;
      benchmark::RegisterBenchmark(
          name.c_str(),
          [c, op](benchmark::State& state) { bench_step(state, c.shape, c.tokens, c.length, op); })
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
