// linear_residual with INT4 weights on the GPU: the bits of the CPU where all sums are exact, the same
// bits at every number of tokens where they are not, and nothing written beside its rows.
#include <cmath>
#include <gtest/gtest.h>
#include <random>

#include "kernels/numeric/formats.h"
#include "tests/support/backends.h"
#include "tests/support/packed_weights.h"

#if FUT_CUDA
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/int4_batch_plan.h"
#include "tests/support/on_device.h"
#endif

namespace fut::test {
namespace {

#if FUT_CUDA

constexpr int kTokens = 32;
constexpr int kGap = 4;  // columns between rows of the residual, and rows around it
// Of those: a number, for what is added to a NaN by mistake leaves no trace.
constexpr float kUntouched = 12345.0F;

struct Shape4 {
  int rows;
  int cols;
  int group;
};

// o_proj and down_proj of Llama-3.1-8B and 70B; few groups; rows that fill no strip.
constexpr Shape4 kShapes[] = {{4096, 4096, 128}, {4096, 4096, 64},  {4096, 14336, 128},
                              {4096, 14336, 64}, {8192, 8192, 128}, {8192, 28672, 128},
                              {40, 128, 128},    {200, 256, 64},    {24, 384, 128},
                              {16, 1152, 64},    {1000, 2048, 128}};

// A packed matrix of random codes whose scales are signed powers of two, 2^0 .. 2^6, that differ from
// group to group and from row to row.
std::vector<std::uint8_t> random_weights(const layout::Int4Tile& tile) {
  std::mt19937 engine(3);
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(tile.bytes()));
  for (std::uint8_t& byte : packed) byte = static_cast<std::uint8_t>(engine() >> 24);
  for (int row = 0; row < 16 * tile.num_strips(); ++row) {
    for (int g = 0; g < tile.num_groups(); ++g) {
      const float scale = std::ldexp(engine() % 2 == 0 ? 1.0F : -1.0F, (row + 3 * g) % 7);
      const std::uint16_t bits = f32_to_bf16(scale);
      std::memcpy(packed.data() + tile.scale_offset(row, g), &bits, 2);
    }
  }
  return packed;
}

struct Problem {
  Shape4 shape;
  layout::Int4Tile tile;
  std::vector<std::uint8_t> packed;
  std::vector<std::uint16_t> x;  // [kTokens, cols]
  std::vector<float> residual;   // [kTokens + 2 * kGap, rows + kGap], kUntouched outside
  std::vector<std::int32_t> exponents;

  Problem(const Shape4& s, bool exact)
      : shape(s), tile{s.rows, s.cols, s.group}, packed(random_weights(tile)) {
    std::mt19937 engine(5);
    std::normal_distribution<float> normal;
    for (int i = 0; i < kTokens * s.cols; ++i) {
      x.push_back(f32_to_f16(exact ? static_cast<float>(engine() % 3) - 1.0F : normal(engine)));
    }
    residual.assign(static_cast<std::size_t>((kTokens + 2 * kGap) * stride()), kUntouched);
    for (int m = 0; m < kTokens; ++m) {
      exponents.push_back(m % 3);
      for (int n = 0; n < s.rows; ++n)
        residual[index(m) + static_cast<std::size_t>(n)] = static_cast<float>(n);
    }
  }

  [[nodiscard]] std::int64_t stride() const { return shape.rows + kGap; }
  [[nodiscard]] std::size_t index(int token) const {
    return static_cast<std::size_t>((token + kGap) * stride());
  }
  // The op on these arrays, for the first `tokens` tokens.
  [[nodiscard]] LinearResidualArgs args(const std::uint16_t* tokens_x, const std::uint8_t* weights,
                                        float* rows, const std::int32_t* powers, int tokens) const {
    LinearResidualArgs a;
    a.x = ConstActivationView(tokens_x, DType::F16, tokens, shape.cols, shape.cols);
    a.x_exponents = powers;
    a.weight =
        Int4Matrix{weights, tile, layout::RowOrder::natural(shape.rows), shape.rows, shape.cols};
    a.residual = ActivationView(rows + index(0), DType::F32, tokens, shape.rows, stride());
    return a;
  }
};

class OnGpu {
 public:
  explicit OnGpu(const Problem& problem)
      : problem_(problem),
        x_(device_.copy(std::span(problem.x))),
        packed_(device_.copy(std::span(problem.packed))),
        residual_(device_.copy(std::span(problem.residual))),
        exponents_(device_.copy(std::span(problem.exponents))) {}

  std::vector<float> run(int tokens) {
    device_.overwrite(residual_, std::span(problem_.residual));
    cuda::linear_residual(problem_.args(x_, packed_, residual_, exponents_, tokens),
                          device_.context());
    return device_.fetch(residual_, problem_.residual.size());
  }

 private:
  const Problem& problem_;
  OnDevice device_;
  std::uint16_t* x_;
  std::uint8_t* packed_;
  float* residual_;
  std::int32_t* exponents_;
};

// `all` for the first `tokens` tokens, the untouched residual for the rest.
std::vector<float> first_rows(const Problem& problem, const std::vector<float>& all, int tokens) {
  std::vector<float> expected = problem.residual;
  const auto end = static_cast<std::ptrdiff_t>(problem.index(tokens));
  std::copy(all.begin(), all.begin() + end, expected.begin());
  return expected;
}

void expect_bits(const Problem& problem, const std::vector<float>& expected,
                 const std::vector<float>& actual, int tokens) {
  EXPECT_TRUE(same_bits(expected, actual, {kTokens + 2 * kGap, problem.stride()}))
      << problem.shape.rows << " x " << problem.shape.cols << ", groups of " << problem.shape.group
      << ", " << tokens << " tokens";
}

constexpr cuda::Int4GemmMachine kMachine{132, 66, 30, 15};

TEST(Int4GemmPlan, FitsABlockWithoutOverlap) {
  for (const Shape4& shape : kShapes) {
    const layout::Int4Tile tile{shape.rows, shape.cols, shape.group};
    EXPECT_TRUE(cuda::plan_int4_gemm(tile, 1, true, kMachine));
    for (int tokens = 1; tokens <= cuda::kMaxInt4Tokens; ++tokens) {
      const auto plan = cuda::plan_int4_gemm(tile, tokens, true, kMachine);
      if (!plan) continue;  // for the main loop of batches
      const cuda::Int4GemmLayout& l = plan->args.layout;
      EXPECT_LE(tokens, cuda::kFewTokens);
      EXPECT_LE(l.bytes, cuda::kMaxSharedBytes);
      const cuda::Int4GemmArgs& a = plan->args;
      const int ring = cuda::int4_ring_bytes(plan->piece_groups * tile.record_bytes());
      EXPECT_LE(l.inputs + (8 << a.log2_columns) * a.round_strips * 16, l.squares);
      EXPECT_LE(l.squares + layout::kNumKSegments * cuda::kFewTokens * 4, l.biases);
      EXPECT_LE(l.biases + tile.num_groups() * cuda::kFewTokens * 4, l.ring);
      EXPECT_LE(l.ring + cuda::kInt4GemmThreads / 32 * ring, l.tokens);
      EXPECT_LE(l.tokens + tokens * l.token_stride, l.partial);
      const int last = a.partial_offset(a.round_strips - 1, layout::kNumKSegments - 1);
      EXPECT_LE(l.partial + 4 * (last + 16 * tokens), l.bytes);
      EXPECT_EQ(l.ring % 16, 0);
      EXPECT_EQ(ring % 16, 0);
      EXPECT_EQ(l.token_stride % 128, 16);
    }
  }
}

TEST(Int4BatchPlan, FitsABlockWithoutOverlap) {
  for (const Shape4& shape : kShapes) {
    const layout::Int4Tile tile{shape.rows, shape.cols, shape.group};
    for (int tokens = 1; tokens <= cuda::kMaxInt4Tokens; ++tokens) {
      for (const bool fetches : {false, true}) {
        const cuda::Int4BatchPlan plan =
            cuda::plan_int4_batch(tile, tokens, fetches, cuda::kManyBatchWarpgroups, kMachine);
        const cuda::Int4BatchArgs& a = plan.args;
        const cuda::Int4BatchLayout& l = a.layout;
        EXPECT_GE(8 * plan.tiles, tokens);
        EXPECT_GE(a.stages, 2);
        EXPECT_LE(a.stages, cuda::kMaxBatchStages);
        EXPECT_LE(l.bytes, cuda::kMaxSharedBytes);
        EXPECT_EQ(l.stage_bytes % cuda::kInt4SwizzleBytes, 0);
        EXPECT_EQ(l.ring % cuda::kInt4SwizzleBytes, 0);
        EXPECT_LE(l.ring + a.stages * l.stage_bytes, l.barriers);
        EXPECT_TRUE(l.barriers < l.noticed && l.noticed < l.factors && l.factors < l.biases &&
                    l.biases < l.parked && l.parked < l.inputs && l.inputs <= l.bytes);
        EXPECT_EQ(l.biases % 16, 0);
        EXPECT_EQ(l.parked % 16, 0);
        EXPECT_EQ(plan.num_blocks % a.cluster, 0);
        EXPECT_LE(plan.num_blocks, kMachine.num_multiprocessors);
        // Blocks that share K take one run of rows each.
        EXPECT_TRUE(a.cluster == 1 || plan.num_blocks == a.cluster * a.row_groups());
      }
    }
  }
}

TEST(Int4LinearCuda, GivesTheBitsOfTheCpuWhereSumsAreExact) {
  FUT_REQUIRE_GPU_DEVICE();
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& cpu = *setups.back().backend;
  for (const Shape4& shape : kShapes) {
    const Problem problem(shape, true);
    std::vector<float> expected = problem.residual;
    cpu.linear_residual(problem.args(problem.x.data(), problem.packed.data(), expected.data(),
                                     problem.exponents.data(), kTokens));
    OnGpu gpu(problem);
    for (const int tokens : {1, 2, 3, 7, 8, 9, 16, 17, 31, 32}) {
      expect_bits(problem, first_rows(problem, expected, tokens), gpu.run(tokens), tokens);
    }
  }
}

TEST(Int4LinearCuda, GivesTheSameBitsAtEveryNumberOfTokens) {
  FUT_REQUIRE_GPU_DEVICE();
  for (const Shape4& shape : kShapes) {
    const Problem problem(shape, false);
    OnGpu gpu(problem);
    const std::vector<float> all = gpu.run(kTokens);
    for (const int tokens : {1, 2, 4, 5, 8, 9, 15, 16, 17, 25, 31}) {
      expect_bits(problem, first_rows(problem, all, tokens), gpu.run(tokens), tokens);
    }
  }
}

TEST(Int4LinearCuda, TakesMoreTokensThanOneLaunchAndNoExponents) {
  FUT_REQUIRE_GPU_DEVICE();
  constexpr std::int64_t kMany = 70;
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& cpu = *setups.back().backend;
  const Problem problem({200, 1152, 128}, true);
  const std::int64_t x_stride = problem.shape.cols + 8;
  std::vector<std::uint16_t> x(static_cast<std::size_t>(kMany * x_stride), f32_to_f16(2.0F));
  for (std::size_t i = 0; i < x.size(); i += 3) x[i] = f32_to_f16(-1.0F);
  std::vector<float> expected(static_cast<std::size_t>(kMany * problem.shape.rows), 1.0F);
  OnDevice device;
  float* residual = device.copy(std::span(std::as_const(expected)));
  const auto args = [&](const std::uint16_t* tokens, const std::uint8_t* weights, float* rows) {
    LinearResidualArgs a = problem.args(tokens, weights, nullptr, nullptr, 1);
    a.x = ConstActivationView(tokens, DType::F16, kMany, problem.shape.cols, x_stride);
    a.residual = ActivationView(rows, DType::F32, kMany, problem.shape.rows, problem.shape.rows);
    return a;
  };
  cpu.linear_residual(args(x.data(), problem.packed.data(), expected.data()));
  cuda::linear_residual(args(device.copy(std::span(std::as_const(x))),
                             device.copy(std::span(problem.packed)), residual),
                        device.context());
  EXPECT_TRUE(
      same_bits(expected, device.fetch(residual, expected.size()), {kMany, problem.shape.rows}));
}

TEST(Int4LinearCuda, StaysWithinTheBoundOfItsArithmetic) {
  FUT_REQUIRE_GPU_DEVICE();
  constexpr std::int64_t kFew = 3;
  const std::vector<CpuSetup> setups = cpu_setups();
  for (const Shape4& shape : {Shape4{40, 4096, 128}, Shape4{40, 14336, 64}}) {
    const GuardedInt4 weights(*setups[0].backend, layout::RowOrder::natural(shape.rows), shape.cols,
                              shape.group, Scales::Any, 7);
    std::vector<std::uint16_t> x;
    for (const float v : normal_values(kFew * shape.cols, 9)) x.push_back(f32_to_f16(v));
    std::vector<Bounded> expected;
    for (std::int64_t m = 0; m < kFew; ++m) {
      std::vector<float> row;
      for (int k = 0; k < shape.cols; ++k) {
        row.push_back(f16_to_f32(x[static_cast<std::size_t>(m * shape.cols + k)]));
      }
      for (int n = 0; n < shape.rows; ++n) {
        expected.push_back(Bounded(0.0F) + weights.bounded_product(n, row));
      }
    }
    OnDevice device;
    Int4Matrix matrix = weights.view();
    matrix.packed = device.copy(std::span(weights.packed()));
    const std::vector<float> zeros(expected.size());
    float* residual = device.copy(std::span(zeros));
    LinearResidualArgs a;
    a.x = ConstActivationView(device.copy(std::span(std::as_const(x))), DType::F16, kFew,
                              shape.cols, shape.cols);
    a.weight = matrix;
    a.residual = ActivationView(residual, DType::F32, kFew, shape.rows, shape.rows);
    cuda::linear_residual(a, device.context());
    EXPECT_TRUE(within_bounds(expected, device.fetch(residual, zeros.size()), {kFew, shape.rows}));
  }
}

#else

TEST(Int4LinearCuda, GivesTheBitsOfTheCpuWhereSumsAreExact) {
  FUT_REQUIRE_GPU_DEVICE();
}

#endif

}  // namespace
}  // namespace fut::test
