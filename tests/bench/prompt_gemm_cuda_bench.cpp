// Rates of the products of a prompt's tokens on the GPU: plain products of every instance, then the ops
// with their epilogues. Shapes of Llama-3.1-8B and 70B. Random operands, because zeros draw no power;
// weights of several layers in turns, so that the second-level cache holds none; graphs of dependent
// launches. Usage: prompt_gemm_cuda_bench [plain|ops|tune] [part of a shape's name] [least tokens] [fp8|bf16]
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/support/backends.h"

#if FUT_CUDA
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/prompt_ops.h"
#include "kernels/numeric/e4m3.h"
#include "kernels/numeric/formats.h"
#include "tests/bench/clock_sampler.h"
#include "tests/bench/cublaslt_peer.h"

namespace fut::test {
namespace {

constexpr std::int64_t kTokens[] = {512, 2048, 8192};
constexpr std::int64_t kLeastBytes = 300LL << 20;  // of the copies of a matrix

struct BenchShape {
  const char* name;
  std::int64_t rows, cols;
};
constexpr BenchShape kShapes[] = {{"8B qkv", 6144, 4096},       {"8B o", 4096, 4096},
                                  {"8B gate_up", 28672, 4096},  {"8B down", 4096, 14336},
                                  {"70B qkv", 10240, 8192},     {"70B o", 8192, 8192},
                                  {"70B gate_up", 57344, 8192}, {"70B down", 8192, 28672}};

// Random bytes on the device: as E4M3 codes of all sizes but NaN and the largest, or BF16 of about 1.
class Arrays {
 public:
  explicit Arrays(cuda::CudaBackend& backend) : backend_(backend) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0F, 1.0F);
    for (std::size_t i = 0; i < kPattern; ++i) {
      e4m3_.push_back(static_cast<std::uint8_t>(f32_to_e4m3(normal(random) * 16)));
      bf16_.push_back(f32_to_bf16(normal(random)));
    }
  }
  void* codes(std::int64_t count, int code_bytes) {
    const std::size_t bytes = static_cast<std::size_t>(count * code_bytes);
    buffers_.push_back(backend_.allocate(bytes));
    auto* data = buffers_.back().as<std::byte>();
    const auto pattern =
        code_bytes == 1 ? std::as_bytes(std::span(e4m3_)) : std::as_bytes(std::span(bf16_));
    for (std::size_t at = 0; at < bytes; at += pattern.size()) {
      const std::size_t part = std::min(pattern.size(), bytes - at);
      backend_.upload(data + at, pattern.subspan(0, part));
    }
    return data;
  }
  float* floats(std::int64_t count, float value) {
    const std::vector<float> values(static_cast<std::size_t>(count), value);
    buffers_.push_back(backend_.allocate(values.size() * 4));
    backend_.upload(buffers_.back().as<void>(), std::as_bytes(std::span(values)));
    return buffers_.back().as<float>();
  }
  std::int32_t* ints(const std::vector<std::int32_t>& values) {
    buffers_.push_back(backend_.allocate(values.size() * 4));
    backend_.upload(buffers_.back().as<void>(), std::as_bytes(std::span(values)));
    return buffers_.back().as<std::int32_t>();
  }

 private:
  static constexpr std::size_t kPattern = (4U << 20) + 4096 * 3 + 128;
  cuda::CudaBackend& backend_;
  std::vector<std::uint8_t> e4m3_;
  std::vector<std::uint16_t> bf16_;
  std::vector<DeviceBuffer> buffers_;
};

struct Measured {
  double us = 0;  // of one call
  std::string clocks;
};

// Graphs of some milliseconds, run for a while to reach the clock that power allows, then the median of those
// of the rest of the time.
Measured measured(cuda::CudaBackend& backend, double flops, const std::function<void(int)>& op,
                  float total_ms = 400) {
  static ClockSampler sampler;
  const int calls = std::clamp(static_cast<int>(10e-3 / (flops / 1.2e15)), 4, 400);
  const auto graph = backend.capture([&] {
    for (int i = 0; i < calls; ++i) op(i);
  });
  const cuda::Event begin;
  const cuda::Event end;
  std::vector<float> times;
  float spent = 0;
  while (spent < total_ms) {
    begin.record(backend.context().stream());
    graph();
    end.record(backend.context().stream());
    end.synchronize();
    spent += end.milliseconds_since(begin);
    if (spent <= 0.4F * total_ms) continue;
    if (times.empty()) sampler.begin();
    times.push_back(end.milliseconds_since(begin));
  }
  Measured result;
  result.clocks = sampler.end();
  std::sort(times.begin(), times.end());
  result.us = 1e3 * static_cast<double>(times[times.size() / 2]) / calls;
  return result;
}

void print(const std::string& name, double flops, const Measured& m) {
  std::printf("%-66s %9.2f us  %6.3f PFLOP/s  %s\n", name.c_str(), m.us, flops / m.us * 1e-9,
              m.clocks.c_str());
  std::fflush(stdout);
}

int copies_of(std::int64_t bytes) {
  return static_cast<int>(std::max<std::int64_t>(2, (kLeastBytes + bytes - 1) / bytes));
}

// One way to do a plain product, with results in BF16.
struct Choice {
  int tile_rows, cluster;
  bool spread = true;
  int lag = cuda::kPromptLag;
  int group = 0;  // 0: the plan's
  bool stores = true;
  [[nodiscard]] std::string name() const {
    return "rows " + std::to_string(tile_rows) + ", cluster " + std::to_string(cluster) +
           (spread ? "" : ", not spread") + ", lag " + std::to_string(lag) +
           (group > 0 ? ", band of " + std::to_string(group) : "") +
           (stores ? "" : ", without stores");
  }
};
constexpr Choice kChoices[] = {{256, 2}, {256, 1}, {128, 2}, {128, 2, false}};
constexpr Choice kTuning[] = {
    {256, 2, true, 1},    {256, 2, true, 2},     {256, 2, true, 3},          {256, 2, true, 4},
    {256, 2, true, 3, 4}, {256, 2, true, 3, 16}, {256, 2, true, 3, 0, false}};

std::string problem_name(const BenchShape& shape, int code_bytes, std::int64_t tokens) {
  return std::string(shape.name) + (code_bytes == 1 ? " FP8, M " : " BF16, M ") +
         std::to_string(tokens) + ", ";
}
double flops_of(const BenchShape& shape, std::int64_t tokens) {
  return 2e0 * static_cast<double>(tokens) * static_cast<double>(shape.rows) *
         static_cast<double>(shape.cols);
}

void plain(cuda::CudaBackend& backend, CublasLtPeer& peer, const BenchShape& shape, int code_bytes,
           std::int64_t least_tokens, std::span<const Choice> choices) {
  Arrays arrays(backend);
  const std::int64_t bytes = shape.rows * shape.cols * code_bytes;
  const int copies = copies_of(bytes);
  const auto* weights =
      static_cast<const std::uint8_t*>(arrays.codes(shape.rows * shape.cols * copies, code_bytes));
  auto* out = static_cast<std::uint16_t*>(arrays.codes(kTokens[2] * shape.rows, 2));
  cuda::PromptProduct product;
  product.x = arrays.codes(kTokens[2] * shape.cols, code_bytes);
  product.x_stride = shape.cols;
  product.num_parts = 1;
  product.row_scales = arrays.floats(shape.rows, 1e-3F);
  product.cols = static_cast<int>(shape.cols);
  product.code_bytes = code_bytes;
  for (const std::int64_t tokens : kTokens) {
    if (tokens < least_tokens) continue;
    product.tokens = tokens;
    const double flops = flops_of(shape, tokens);
    const std::string name = problem_name(shape, code_bytes, tokens);
    for (const Choice& c : choices) {
      const Measured time = measured(backend, flops, [&](int i) {
        product.parts[0] = {weights + i % copies * bytes, 0, static_cast<int>(shape.rows)};
        cuda::PromptGemmPlan plan = cuda::make_prompt_plan(product, c.tile_rows, c.cluster,
                                                           c.spread, backend.context().machine());
        plan.args.lag = c.lag;
        if (c.group > 0) plan.args.group = std::min(c.group, plan.args.token_groups);
        if (!c.stores) plan.args.num_tokens = 0;
        cuda::prompt_project_bf16(product, plan, {out, tokens, shape.rows, shape.rows},
                                  backend.context());
      });
      print(name + c.name(), flops, time);
    }
    if (!peer.is_there()) continue;
    // The fastest of its ways in a short run, then as above.
    const auto call = [&](int way) {
      return [&, way](int i) {
        peer.multiply(way, product.x, weights + i % copies * bytes, out,
                      backend.context().stream());
      };
    };
    const int ways = peer.choose({tokens, shape.rows, shape.cols, code_bytes});
    int best = 0;
    double least = 0;
    for (int way = 0; way < ways; ++way) {
      const double us = measured(backend, flops, call(way), 60).us;
      if (way == 0 || us < least) best = way, least = us;
    }
    print(name + "cuBLASLt, way " + std::to_string(best), flops,
          measured(backend, flops, call(best)));
  }
}

// The ops as the engine calls them, norms included.
class Ops {
 public:
  Ops(cuda::CudaBackend& backend, const char* name, int hidden, int ffn, int q_heads, bool fp8)
      : backend_(backend),
        arrays_(backend),
        name_(std::string(name) + (fp8 ? " FP8" : " BF16")),
        hidden_(hidden),
        ffn_(ffn),
        q_heads_(q_heads),
        fp8_(fp8),
        copies_(copies_of(std::int64_t{hidden} * hidden * code_bytes())),
        residual_(arrays_.codes(kTokens[2] * hidden, 2)),
        operand_(arrays_.codes(kTokens[2] * ffn, code_bytes())),
        out_(arrays_.codes(kTokens[2] * std::max(ffn, 16384), 2)),
        scales_(arrays_.floats(2LL * ffn, 1e-4F)),
        turns_(arrays_.floats(kTokens[2] * kHeadDim, 0.7F)),
        pages_(arrays_.codes(kTokens[2] * 2 * kKvHeads * kHeadDim, 2)) {
    std::vector<std::int32_t> positions;
    std::vector<std::int32_t> table;
    for (std::int64_t t = 0; t < kTokens[2]; ++t) {
      positions.push_back(static_cast<std::int32_t>(t));
      if (t % layout::kPageTokens == 0)
        table.push_back(static_cast<std::int32_t>(t / layout::kPageTokens));
    }
    positions_ = arrays_.ints(positions);
    table_ = arrays_.ints(table);
  }

  void run(std::int64_t least_tokens) {
    for (const std::int64_t tokens : kTokens) {
      if (tokens < least_tokens) continue;
      linear("o", hidden_, tokens);
      linear("down", ffn_, tokens);
      gate_up(tokens);
      qkv(tokens);
    }
  }

 private:
  static constexpr int kHeadDim = 128;
  static constexpr int kKvHeads = 8;
  [[nodiscard]] int code_bytes() const { return fp8_ ? 1 : 2; }

  // Matrix i of some copies; all have room for the largest.
  Weights weights(int i, std::int64_t rows, std::int64_t cols) {
    const std::int64_t bytes = rows * cols * code_bytes();
    if (bytes * copies_of(bytes) > room_) {
      room_ = bytes * copies_of(bytes);
      weights_ = static_cast<std::uint8_t*>(arrays_.codes(room_ / code_bytes(), code_bytes()));
    }
    const std::uint8_t* at = weights_ + i % copies_of(bytes) * bytes;
    if (fp8_) return E4m3Matrix{at, scales_, rows, cols};
    return DenseMatrix{DType::BF16, at, rows, cols};
  }
  [[nodiscard]] static ActivationView view(void* data, DType type, std::int64_t rows,
                                           std::int64_t cols) {
    return {data, type, rows, cols, cols};
  }
  void measure(const char* op, std::int64_t tokens, std::int64_t rows, std::int64_t cols,
               const std::function<void(int)>& call) {
    (void)weights(0, rows, cols);
    const double flops =
        2e0 * static_cast<double>(tokens) * static_cast<double>(rows) * static_cast<double>(cols);
    print(name_ + " " + op + ", M " + std::to_string(tokens), flops,
          measured(backend_, flops, call));
  }

  void linear(const char* op, std::int64_t cols, std::int64_t tokens) {
    measure(op, tokens, hidden_, cols, [&](int i) {
      backend_.linear_residual({.x = view(operand_, fp8_ ? DType::E4M3 : DType::BF16, tokens, cols),
                                .weight = weights(i, hidden_, cols),
                                .residual = view(residual_, DType::BF16, tokens, hidden_)});
    });
  }
  void gate_up(std::int64_t tokens) {
    measure("gate_up", tokens, 2LL * ffn_, hidden_, [&](int i) {
      backend_.gate_up_swiglu({.x = view(residual_, DType::BF16, tokens, hidden_),
                               .eps = 1e-5F,
                               .weights = weights(i, 2LL * ffn_, hidden_),
                               .out = view(out_, fp8_ ? DType::E4M3 : DType::BF16, tokens, ffn_)});
    });
  }
  void qkv(std::int64_t tokens) {
    const std::int64_t rows = (q_heads_ + 2LL * kKvHeads) * kHeadDim;
    const auto m = static_cast<int>(tokens);
    std::int32_t* const indptr = arrays_.ints({0, m, 0, m / layout::kPageTokens, m});
    measure("qkv", tokens, rows, hidden_, [&](int i) {
      QkvRopeAppendArgs a;
      a.x = view(residual_, DType::BF16, tokens, hidden_);
      a.eps = 1e-5F;
      a.weights = weights(i, rows, hidden_);
      a.num_q_heads = q_heads_;
      a.num_kv_heads = kKvHeads;
      a.head_dim = kHeadDim;
      a.rope_cos = turns_;
      a.rope_sin = turns_;
      a.rope_positions = static_cast<int>(kTokens[2]);
      a.batch = {1, m, positions_, positions_, indptr, indptr + 2, table_, indptr + 4, indptr};
      a.kv = {pages_,
              static_cast<int>(kTokens[2] / layout::kPageTokens),
              {kKvHeads, kHeadDim},
              DType::BF16};
      a.q_out = view(out_, DType::BF16, tokens, std::int64_t{q_heads_} * kHeadDim);
      backend_.qkv_rope_append(a);
    });
  }

  cuda::CudaBackend& backend_;
  Arrays arrays_;
  std::string name_;
  int hidden_, ffn_, q_heads_;
  bool fp8_;
  int copies_;
  void *residual_, *operand_, *out_;
  float *scales_, *turns_;
  void* pages_;
  std::int32_t *positions_ = nullptr, *table_ = nullptr;
  std::uint8_t* weights_ = nullptr;
  std::int64_t room_ = 0;
};

struct Selection {
  std::string what;  // nothing: all
  std::string part;  // of a shape's name
  std::int64_t least_tokens = 0;
  std::string format;  // fp8, bf16 or both
};

void run_all(const Selection& chosen) {
  cuda::CudaBackend backend(0);
  CublasLtPeer peer;
  std::printf("%s\n", backend.description().c_str());
  const auto has = [&](const char* name) {
    return std::string(name).find(chosen.part) != std::string::npos;
  };
  for (const bool fp8 : {true, false}) {
    if (!chosen.format.empty() && (chosen.format == "fp8") != fp8) continue;
    for (const BenchShape& shape : kShapes) {
      if (!has(shape.name) || chosen.what == "ops") continue;
      const std::span<const Choice> choices =
          chosen.what == "tune" ? std::span<const Choice>(kTuning) : kChoices;
      plain(backend, peer, shape, fp8 ? 1 : 2, chosen.least_tokens, choices);
    }
    if (!chosen.what.empty() && chosen.what != "ops") continue;
    if (has("8B")) Ops(backend, "8B", 4096, 14336, 32, fp8).run(chosen.least_tokens);
    if (has("70B")) Ops(backend, "70B", 8192, 28672, 64, fp8).run(chosen.least_tokens);
  }
}

}  // namespace
}  // namespace fut::test

int main(int argc, char** argv) {
  const auto given = [&](int i) { return std::string(argc > i ? argv[i] : ""); };
  fut::test::run_all({given(1), given(2), argc > 3 ? std::stol(given(3)) : 0, given(4)});
  return 0;
}

#else

int main() {
  std::puts("built without CUDA: nothing to measure");
  return 0;
}

#endif
