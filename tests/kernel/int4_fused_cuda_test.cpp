// qkv_rope_append and gate_up_swiglu with INT4 weights on the GPU: the bits of the CPU where all sums
// are exact, the same bits at every number of tokens where they are not, the derived bound, and
// nothing written beside the outputs.
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <random>

#include "kernels/numeric/activation_scales.h"
#include "kernels/numeric/formats.h"
#include "kernels/numeric/rope_table.h"
#include "tests/support/packed_weights.h"
#include "tests/support/ragged_case.h"

namespace fut::test {
namespace {

constexpr int kTokens = 32;
constexpr int kCounts[] = {1, 2, 3, 7, 8, 9, 16, 17, 31, 32};

// Random codes whose scales are signed powers of two from `lowest` on, seven of them, that differ from
// group to group and from row to row.
std::vector<std::uint8_t> packed_integers(const layout::Int4Tile& tile, int lowest) {
  std::mt19937 engine(3);
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(tile.bytes()));
  for (std::uint8_t& byte : packed) byte = static_cast<std::uint8_t>(engine() >> 24);
  for (int row = 0; row < 16 * tile.num_strips(); ++row) {
    for (int g = 0; g < tile.num_groups(); ++g) {
      const float scale = std::ldexp(engine() % 2 == 0 ? 1.0F : -1.0F, lowest + (row + 3 * g) % 7);
      const std::uint16_t bits = f32_to_bf16(scale);
      std::memcpy(packed.data() + tile.scale_offset(row, g), &bits, 2);
    }
  }
  return packed;
}

// Rows of -1 and 1: the norm of an eps of 0 leaves them alone.
std::vector<float> signs(std::int64_t count) {
  std::mt19937 engine(5);
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(engine() % 2 == 0 ? 1.0F : -1.0F);
  return values;
}

struct Matrix {
  layout::RowOrder order;
  layout::Int4Tile tile;
  std::vector<std::uint8_t> bytes;
  Guarded<std::uint8_t> packed;

  Matrix(Backend& backend, const layout::RowOrder& row_order, int cols, int group, int lowest)
      : order(row_order),
        tile{order.packed_rows(), cols, group},
        bytes(packed_integers(tile, lowest)),
        packed(backend, bytes) {}
  [[nodiscard]] Int4Matrix view() const {
    return {packed.data(), tile, order, order.source_rows, tile.cols};
  }
};

std::vector<float> first_rows(const std::vector<float>& all, std::int64_t rows, std::int64_t cols) {
  return {all.begin(), all.begin() + rows * cols};
}

// ---- gate_up_swiglu --------------------------------------------------------------------------------

struct Swiglu {
  std::vector<float> out;
  std::vector<std::int32_t> exponents;
};

Swiglu run_swiglu(Backend& backend, const Int4Matrix& weights, std::int64_t tokens,
                  const std::vector<float>& x, float eps) {
  const std::int64_t channels = weights.rows / 2;
  const GuardedActivation in(backend, DType::F32, {tokens, weights.cols}, x);
  const Guarded<std::int32_t> exponents(
      backend, std::vector<std::int32_t>(static_cast<std::size_t>(tokens), -1));
  const GuardedActivation out(backend, DType::F16, {tokens, channels});
  GateUpSwigluArgs a;
  a.x = in.const_view();
  a.eps = eps;
  a.weights = Weights(weights);
  a.out_exponents = exponents.data();
  a.out = out.view();
  backend.gate_up_swiglu(a);
  return {out.values(), exponents.values()};
}

struct SwigluShape {
  int channels, cols, group;
};
// gate and up of Llama-3.1-8B and 70B; few groups; channels that fill no strip.
constexpr SwigluShape kSwigluShapes[] = {{14336, 4096, 128}, {14336, 4096, 64}, {28672, 8192, 128},
                                         {40, 128, 128},     {100, 384, 64},    {24, 256, 128},
                                         {1000, 1152, 128}};

// Scales from 2^7 on: a gate is 0 or beyond 127, where silu is exact, and outputs leave F16's range.
TEST(Int4GateUpCuda, GivesTheBitsOfTheCpuWhereSumsAreExact) {
  FUT_REQUIRE_GPU_DEVICE();
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& cpu = *setups.back().backend;
  const std::unique_ptr<Backend> gpu = gpu_backend();
  for (const SwigluShape& s : kSwigluShapes) {
    const auto order = layout::RowOrder::gate_up(s.channels);
    const Matrix there(*gpu, order, s.cols, s.group, 7);
    const Matrix here(cpu, order, s.cols, s.group, 7);
    const std::vector<float> x = signs(std::int64_t{kTokens} * s.cols);
    const Swiglu expected = run_swiglu(cpu, here.view(), kTokens, x, 0);
    for (const int tokens : kCounts) {
      const Swiglu actual =
          run_swiglu(*gpu, there.view(), tokens, first_rows(x, tokens, s.cols), 0);
      EXPECT_TRUE(
          same_bits(first_rows(expected.out, tokens, s.channels), actual.out, {tokens, s.channels}))
          << s.channels << " x " << s.cols << ", groups of " << s.group << ", " << tokens;
      EXPECT_EQ(std::vector(expected.exponents.begin(), expected.exponents.begin() + tokens),
                actual.exponents);
    }
  }
}

// Some tokens beyond F16's range, some within: the exponents are each token's own, launch after launch.
TEST(Int4GateUpCuda, GivesTheSameBitsAtEveryNumberOfTokens) {
  FUT_REQUIRE_GPU_DEVICE();
  const std::unique_ptr<Backend> gpu = gpu_backend();
  for (const SwigluShape& s : kSwigluShapes) {
    const Matrix weights(*gpu, layout::RowOrder::gate_up(s.channels), s.cols, s.group, -4);
    std::vector<float> x = normal_values(std::int64_t{kTokens} * s.cols, 9);
    const Swiglu all = run_swiglu(*gpu, weights.view(), kTokens, x, 1e-5F);
    for (const int tokens : kCounts) {
      const Swiglu some =
          run_swiglu(*gpu, weights.view(), tokens, first_rows(x, tokens, s.cols), 1e-5F);
      EXPECT_TRUE(
          same_bits(first_rows(all.out, tokens, s.channels), some.out, {tokens, s.channels}))
          << s.channels << " x " << s.cols << ", groups of " << s.group << ", " << tokens;
      EXPECT_EQ(std::vector(all.exponents.begin(), all.exponents.begin() + tokens), some.exponents);
    }
  }
}

TEST(Int4GateUpCuda, StaysWithinTheBoundOfItsArithmetic) {
  FUT_REQUIRE_GPU_DEVICE();
  const std::unique_ptr<Backend> gpu = gpu_backend();
  const Size size = {3, 40, 4096};
  const float eps = 1e-5F;
  const std::vector<float> x = normal_values(size.tokens * size.cols, 1, 2.0F);
  const GuardedInt4 weight(*gpu, layout::RowOrder::gate_up(40), size.cols, 128, Scales::Any, 4);
  std::vector<Bounded> expected;
  float largest = 0;
  for (std::int64_t m = 0; m < size.tokens; ++m) {
    const std::span<const float> row = row_of(x, m, size.cols);
    const std::vector<float> operand = rounded_row(DType::F16, row);
    const Bounded r = bounded_inverse_rms(row, eps);
    for (std::int64_t n = 0; n < size.rows; ++n) {
      const Bounded h = silu_product(r * weight.bounded_product(n, operand),
                                     r * weight.bounded_product(size.rows + n, operand));
      largest = std::max(largest, static_cast<float>(std::fabs(h.value)));
      expected.push_back(rounded_to(DType::F16, h));
    }
  }
  ASSERT_LT(largest, 0x1p14F);
  const Swiglu actual = run_swiglu(*gpu, weight.view(), size.tokens, x, eps);
  EXPECT_TRUE(within_bounds(expected, actual.out, {size.tokens, size.rows}));
}

// What is infinite or undefined stays in its own token, and leaves no trace in the next launch.
TEST(Int4GateUpCuda, SaturatesWhatIsInfiniteInItsOwnTokenAlone) {
  FUT_REQUIRE_GPU_DEVICE();
  const std::unique_ptr<Backend> gpu = gpu_backend();
  const std::vector<CpuSetup> setups = cpu_setups();
  const auto order = layout::RowOrder::gate_up(24);
  const Matrix there(*gpu, order, 256, 128, 100);
  const Matrix here(*setups[0].backend, order, 256, 128, 100);
  std::vector<float> x = signs(3 * 256);
  x[256] = kPoison;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const Swiglu expected = run_swiglu(*setups[0].backend, here.view(), 3, x, 0);
    const Swiglu actual = run_swiglu(*gpu, there.view(), 3, x, 0);
    EXPECT_TRUE(same_bits(expected.out, actual.out, {3, 24}));
    EXPECT_EQ(expected.exponents, actual.exponents);
  }
}

// ---- qkv_rope_append -------------------------------------------------------------------------------

struct QkvShape {
  int q_heads, kv_heads, head_dim, cols, group;
  [[nodiscard]] layout::RowOrder order() const {
    return layout::RowOrder::qkv(q_heads, kv_heads, head_dim);
  }
  [[nodiscard]] std::int64_t q_cols() const { return std::int64_t{q_heads} * head_dim; }
  [[nodiscard]] std::int64_t kv_cols() const { return std::int64_t{kv_heads} * head_dim; }
};
constexpr QkvShape kQkvShapes[] = {{32, 8, 128, 4096, 128}, {64, 8, 128, 8192, 128},
                                   {32, 8, 128, 4096, 64},  {4, 2, 64, 256, 128},
                                   {3, 1, 64, 384, 64},     {2, 2, 16, 128, 128}};
constexpr int kPositions = 300;

// One token a sequence, at positions without order.
std::vector<SequenceShape> decode_sequences(int tokens) {
  std::vector<SequenceShape> sequences;
  for (int s = 0; s < tokens; ++s) sequences.push_back({1, 1 + s * 37 % kPositions});
  return sequences;
}

struct Qkv {
  std::vector<float> q, k, v;
};

class QkvRun {
 public:
  explicit QkvRun(const QkvShape& shape)
      : shape_(shape), table_(make_rope_table({}, shape.head_dim, kPositions)) {}

  Qkv run(Backend& backend, const Int4Matrix& weights, int tokens, const std::vector<float>& x,
          float eps) const {
    const GuardedBatch batch(backend, RaggedArrays(decode_sequences(tokens)));
    const GuardedMatrix q(backend, {tokens, shape_.q_cols()});
    const GuardedMatrix k(backend, {tokens, shape_.kv_cols()});
    const GuardedMatrix v(backend, {tokens, shape_.kv_cols()});
    with_args(backend, weights, tokens, x, eps, [&](QkvRopeAppendArgs& a) {
      a.batch = batch.view();
      a.q_out = q.view();
      a.k_out = k.view();
      a.v_out = v.view();
    });
    return {q.values(), k.values(), v.values()};
  }

  // BF16 queries, and keys and values in the pages of a BF16 cache.
  Qkv run_with_cache(Backend& backend, const Int4Matrix& weights, int tokens,
                     const std::vector<float>& x) const {
    const RaggedCase cache(backend, decode_sequences(tokens), {shape_.kv_heads, shape_.head_dim},
                           std::vector<int>(static_cast<std::size_t>(tokens), 0), DType::BF16);
    const GuardedActivation q(backend, DType::BF16, {tokens, shape_.q_cols()});
    with_args(backend, weights, tokens, x, 0, [&](QkvRopeAppendArgs& a) {
      a.batch = cache.batch();
      a.kv = cache.kv();
      a.q_out = q.view();
    });
    return {q.values(), cache.pages(), {}};
  }

 private:
  template <class Fn>
  void with_args(Backend& backend, const Int4Matrix& weights, int tokens,
                 const std::vector<float>& x, float eps, const Fn& complete) const {
    const GuardedActivation in(backend, DType::F32, {tokens, shape_.cols}, x);
    const Guarded<float> cos(backend, table_.cos);
    const Guarded<float> sin(backend, table_.sin);
    QkvRopeAppendArgs a;
    a.x = in.const_view();
    a.eps = eps;
    a.weights = Weights(weights);
    a.num_q_heads = shape_.q_heads;
    a.num_kv_heads = shape_.kv_heads;
    a.head_dim = shape_.head_dim;
    a.rope_cos = cos.data();
    a.rope_sin = sin.data();
    a.rope_positions = kPositions;
    complete(a);
    backend.qkv_rope_append(a);
    backend.synchronize();
  }

  QkvShape shape_;
  RopeTable table_;
};

void expect_same(const QkvShape& s, const Qkv& expected, const Qkv& actual, int tokens) {
  const auto name = [&] {
    return std::to_string(s.q_heads) + " heads of " + std::to_string(s.head_dim) + ", K " +
           std::to_string(s.cols) + ", " + std::to_string(tokens) + " tokens";
  };
  EXPECT_TRUE(same_bits(first_rows(expected.q, tokens, s.q_cols()), actual.q, {tokens, s.q_cols()}))
      << name();
  EXPECT_TRUE(
      same_bits(first_rows(expected.k, tokens, s.kv_cols()), actual.k, {tokens, s.kv_cols()}))
      << name();
  EXPECT_TRUE(
      same_bits(first_rows(expected.v, tokens, s.kv_cols()), actual.v, {tokens, s.kv_cols()}))
      << name();
}

// Sums are exact, and the rotation is three operations in the contract's order.
TEST(Int4QkvCuda, GivesTheBitsOfTheCpuWhereSumsAreExact) {
  FUT_REQUIRE_GPU_DEVICE();
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& cpu = *setups.back().backend;
  const std::unique_ptr<Backend> gpu = gpu_backend();
  for (const QkvShape& s : kQkvShapes) {
    const QkvRun op(s);
    const Matrix there(*gpu, s.order(), s.cols, s.group, 0);
    const Matrix here(cpu, s.order(), s.cols, s.group, 0);
    const std::vector<float> x = signs(std::int64_t{kTokens} * s.cols);
    const Qkv expected = op.run(cpu, here.view(), kTokens, x, 0);
    for (const int tokens : kCounts) {
      const std::vector<float> rows = first_rows(x, tokens, s.cols);
      expect_same(s, expected, op.run(*gpu, there.view(), tokens, rows, 0), tokens);
    }
    const Qkv cached = op.run_with_cache(cpu, here.view(), 9, first_rows(x, 9, s.cols));
    const Qkv cached_there = op.run_with_cache(*gpu, there.view(), 9, first_rows(x, 9, s.cols));
    EXPECT_TRUE(same_bits(cached.q, cached_there.q, {9, s.q_cols()}));
    EXPECT_TRUE(
        same_bits(cached.k, cached_there.k, {1, static_cast<std::int64_t>(cached.k.size())}));
  }
}

TEST(Int4QkvCuda, GivesTheSameBitsAtEveryNumberOfTokens) {
  FUT_REQUIRE_GPU_DEVICE();
  const std::unique_ptr<Backend> gpu = gpu_backend();
  for (const QkvShape& s : kQkvShapes) {
    const QkvRun op(s);
    const Matrix weights(*gpu, s.order(), s.cols, s.group, -4);
    const std::vector<float> x = normal_values(std::int64_t{kTokens} * s.cols, 9);
    const Qkv all = op.run(*gpu, weights.view(), kTokens, x, 1e-5F);
    for (const int tokens : kCounts) {
      const std::vector<float> rows = first_rows(x, tokens, s.cols);
      expect_same(s, all, op.run(*gpu, weights.view(), tokens, rows, 1e-5F), tokens);
    }
  }
}

TEST(Int4QkvCuda, StaysWithinTheBoundOfItsArithmetic) {
  FUT_REQUIRE_GPU_DEVICE();
  const std::unique_ptr<Backend> gpu = gpu_backend();
  const QkvShape s = {2, 1, 64, 4096, 128};
  constexpr int kFew = 3;
  const GuardedInt4 weight(*gpu, s.order(), s.cols, s.group, Scales::Any, 4);
  const std::vector<float> x = normal_values(std::int64_t{kFew} * s.cols, 1, 2.0F);
  const Qkv actual = QkvRun(s).run(*gpu, weight.view(), kFew, x, 1e-5F);
  // Values alone: they are projected and nothing else.
  std::vector<Bounded> expected;
  for (std::int64_t m = 0; m < kFew; ++m) {
    const std::span<const float> row = row_of(x, m, s.cols);
    const std::vector<float> operand = rounded_row(DType::F16, row);
    const Bounded r = bounded_inverse_rms(row, 1e-5F);
    for (std::int64_t n = 0; n < s.kv_cols(); ++n) {
      expected.push_back(r * weight.bounded_product(s.q_cols() + s.kv_cols() + n, operand));
    }
  }
  EXPECT_TRUE(within_bounds(expected, actual.v, {kFew, s.kv_cols()}));
}

}  // namespace
}  // namespace fut::test
