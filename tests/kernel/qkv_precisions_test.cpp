// qkv_rope_append with BF16, E4M3 and INT4 weights: the contract's bits through projection, RoPE,
// rotation and the last rounding, the same by way of the cache and of the outputs.
#include <algorithm>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/error.h"
#include "kernels/numeric/activation_scales.h"
#include "kernels/numeric/hadamard.h"
#include "kernels/numeric/rope_table.h"
#include "tests/support/packed_weights.h"
#include "tests/support/ragged_case.h"

namespace fut::test {
namespace {

constexpr float kEps = 1e-5F;
constexpr int kPositions = 200;
constexpr int kHidden = 256;
constexpr int kQHeads = 2;
constexpr int kKvHeads = 1;

// INT4 in groups of 128 and of 64.
enum class Precision { Bf16, Bf16Apart, Fp8, Int4, Int4Group64 };
constexpr Precision kPrecisions[] = {Precision::Bf16, Precision::Bf16Apart, Precision::Fp8,
                                     Precision::Int4, Precision::Int4Group64};

struct Case {
  Precision precision = Precision::Bf16;
  DType x_type = DType::F32;
  DType out_type = DType::BF16;
  int head_dim = 64;
  int rotation_block = 0;
  std::vector<SequenceShape> sequences = {{1, 1}, {3, 66}, {1, 64}, {17, 130}};

  [[nodiscard]] bool is_int4() const {
    return precision == Precision::Int4 || precision == Precision::Int4Group64;
  }
  [[nodiscard]] int rows() const { return (kQHeads + 2 * kKvHeads) * head_dim; }
  [[nodiscard]] std::int64_t q_cols() const { return std::int64_t{kQHeads} * head_dim; }
  [[nodiscard]] std::int64_t kv_cols() const { return std::int64_t{kKvHeads} * head_dim; }
  [[nodiscard]] std::string name() const {
    constexpr const char* kNames[] = {"bf16", "bf16 apart", "fp8", "int4", "int4 in groups of 64"};
    return std::string(kNames[static_cast<int>(precision)]) + ", x " +
           std::string(dtype_name(x_type)) + ", out " + std::string(dtype_name(out_type)) +
           ", head_dim " + std::to_string(head_dim) + ", rotated by " +
           std::to_string(rotation_block);
  }
};

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const Precision precision : kPrecisions) {
    for (const int rotation_block : {0, 16, 64}) {
      result.push_back({.precision = precision, .rotation_block = rotation_block});
    }
    result.push_back({.precision = precision, .out_type = DType::F32});
    result.push_back({.precision = precision, .head_dim = 128, .rotation_block = 128});
    if (result.back().is_int4()) continue;
    result.push_back({.precision = precision, .x_type = DType::BF16, .rotation_block = 64});
  }
  return result;
}

// The weights of a case, and one product of them.
class QkvCase {
 public:
  QkvCase(Backend& backend, const Case& c) : c_(c) {
    if (c.precision == Precision::Fp8) {
      e4m3_ = std::make_unique<GuardedE4m3>(backend, Shape{c.rows(), kHidden}, Scales::Any, 7);
    } else if (c.is_int4()) {
      const int group = c.precision == Precision::Int4 ? 128 : 64;
      int4_ = std::make_unique<GuardedInt4>(backend,
                                            layout::RowOrder::qkv(kQHeads, kKvHeads, c.head_dim),
                                            kHidden, group, Scales::Any, 7);
    } else {
      dense_ = std::make_unique<GuardedWeight>(backend, DType::BF16, Shape{c.rows(), kHidden},
                                               normal_values(c.rows() * kHidden, 7, 0.3F));
    }
  }

  [[nodiscard]] QkvWeights weights() const {
    constexpr std::in_place_type_t<Weights> kStacked;
    if (e4m3_) return QkvWeights(kStacked, e4m3_->view());
    if (int4_) return QkvWeights(kStacked, int4_->view());
    const DenseMatrix all = dense_->view();
    if (c_.precision == Precision::Bf16) return QkvWeights(kStacked, all);
    const auto* first = static_cast<const std::uint16_t*>(all.data);
    const std::int64_t q = c_.q_cols();
    const std::int64_t kv = c_.kv_cols();
    return QkvMatrices{{DType::BF16, first, q, kHidden},
                       {DType::BF16, first + q * kHidden, kv, kHidden},
                       {DType::BF16, first + (q + kv) * kHidden, kv, kHidden}};
  }
  // All outputs of one token, as projected.
  [[nodiscard]] std::vector<float> project(std::span<const float> x) const {
    const std::vector<float> operand = operand_of(x);
    const float r = inverse_rms(x, kEps);
    std::vector<float> y;
    for (int n = 0; n < c_.rows(); ++n) {
      if (e4m3_) {
        y.push_back(e4m3_->product(n, operand, operand_scale()));
      } else if (int4_) {
        y.push_back(r * int4_->product(n, operand));
      } else {
        y.push_back(dot_of(operand, row_of(dense_->rounded(), n, kHidden)));
      }
    }
    return y;
  }
  [[nodiscard]] static float operand_scale() { return normalised_operand_scale(kHidden); }

 private:
  [[nodiscard]] std::vector<float> operand_of(std::span<const float> x) const {
    if (e4m3_) return normed_operand(DType::E4M3, x, kEps, operand_scale());
    if (int4_) return rounded_row(DType::F16, x);
    return normed_operand(DType::BF16, x, kEps);
  }

  Case c_;
  std::unique_ptr<GuardedWeight> dense_;
  std::unique_ptr<GuardedE4m3> e4m3_;
  std::unique_ptr<GuardedInt4> int4_;
};

struct Result {
  std::vector<float> q, k, v;  // one token after the other
};

void expect_same(const Result& expected, const Result& actual, const Case& c) {
  const auto tokens = static_cast<std::int64_t>(expected.q.size()) / c.q_cols();
  EXPECT_TRUE(same_bits(expected.q, actual.q, {tokens, c.q_cols()})) << "queries";
  EXPECT_TRUE(same_bits(expected.k, actual.k, {tokens, c.kv_cols()})) << "keys";
  EXPECT_TRUE(same_bits(expected.v, actual.v, {tokens, c.kv_cols()})) << "values";
}

std::vector<float> x_of(const Case& c) {
  const auto tokens = static_cast<std::int64_t>(RaggedArrays(c.sequences).positions.size());
  return rounded_row(c.x_type, normal_values(tokens * kHidden, 1, 2.0F));
}

// RoPE, rotation, rounding of one token's outputs, appended to `result`.
void finish(const Case& c, const RopeTable& rope, int position, std::vector<float> y,
            Result& result) {
  const int half = c.head_dim / 2;
  for (int head = 0; head < kQHeads + kKvHeads; ++head) {
    float* v = y.data() + head * c.head_dim;
    for (int i = 0; i < half; ++i) {
      const float cos = rope.cos[static_cast<std::size_t>(position * half + i)];
      const float sin = rope.sin[static_cast<std::size_t>(position * half + i)];
      const float a = v[i];
      const float b = v[i + half];
      v[i] = a * cos - b * sin;
      v[i + half] = b * cos + a * sin;
    }
    if (c.rotation_block > 0) hadamard_blocks(v, c.head_dim, c.rotation_block);
  }
  const std::vector<float> rounded = rounded_row(c.out_type, y);
  const auto k = rounded.begin() + c.q_cols();
  const auto v = k + c.kv_cols();
  result.q.insert(result.q.end(), rounded.begin(), k);
  result.k.insert(result.k.end(), k, v);
  result.v.insert(result.v.end(), v, rounded.end());
}

Result expected_result(const Case& c, const QkvCase& weights, const std::vector<float>& x) {
  const RaggedArrays arrays(c.sequences);
  const RopeTable rope = make_rope_table(RopeParams{}, c.head_dim, kPositions);
  Result result;
  for (std::size_t t = 0; t < arrays.positions.size(); ++t) {
    const auto token = static_cast<std::int64_t>(t);
    finish(c, rope, arrays.positions[t], weights.project(row_of(x, token, kHidden)), result);
  }
  return result;
}

// The keys and values of the step's tokens, taken out of the pages.
void read_pages(const Case& c, const RaggedCase& step, Result& result) {
  const layout::KvPageDense page = {kKvHeads, c.head_dim};
  const std::vector<float> pages = step.pages();
  const RaggedArrays& arrays = step.arrays();
  std::size_t num_written = 0;
  for (std::size_t t = 0; t < arrays.positions.size(); ++t) {
    const int position = arrays.positions[t];
    const auto first =
        pages.begin() + arrays.page_offset(page, arrays.sequence_of_token[t], position);
    const int slot = position % layout::kPageTokens;
    const auto k = first + page.k_offset(0, slot);
    const auto v = first + page.v_offset(0, slot);
    result.k.insert(result.k.end(), k, k + c.head_dim);
    result.v.insert(result.v.end(), v, v + c.head_dim);
    num_written += 2 * static_cast<std::size_t>(c.head_dim);
  }
  // All pages were poison before.
  const auto num_numbers =
      std::count_if(pages.begin(), pages.end(), [](float v) { return v == v; });
  EXPECT_EQ(static_cast<std::size_t>(num_numbers), num_written) << "written beside the tokens";
}

enum class Destination { Cache, Outputs };

Result run(Backend& backend, const Case& c, const QkvCase& weights,
           const std::vector<float>& values, Destination destination) {
  const RaggedCase step(backend, c.sequences, {kKvHeads, c.head_dim}, {}, c.out_type);
  const std::int64_t tokens = step.batch().num_tokens;
  const RopeTable rope = make_rope_table(RopeParams{}, c.head_dim, kPositions);
  const Guarded<float> cos(backend, rope.cos);
  const Guarded<float> sin(backend, rope.sin);
  const GuardedActivation x(backend, c.x_type, {tokens, kHidden}, values);
  const GuardedActivation q_out(backend, c.out_type, {tokens, c.q_cols()});
  const GuardedActivation k_out(backend, c.out_type, {tokens, c.kv_cols()});
  const GuardedActivation v_out(backend, c.out_type, {tokens, c.kv_cols()});
  QkvRopeAppendArgs args;
  args.x = x.const_view();
  args.eps = kEps;
  args.weights = weights.weights();
  args.operand_scale = QkvCase::operand_scale();
  args.num_q_heads = kQHeads;
  args.num_kv_heads = kKvHeads;
  args.head_dim = c.head_dim;
  args.rope_cos = cos.data();
  args.rope_sin = sin.data();
  args.rope_positions = kPositions;
  args.rotation_block = c.rotation_block;
  args.batch = step.batch();
  args.q_out = q_out.view();
  if (destination == Destination::Cache) {
    args.kv = step.kv();
  } else {
    args.k_out = k_out.view();
    args.v_out = v_out.view();
  }
  backend.qkv_rope_append(args);
  Result result = {.q = q_out.values(), .k = {}, .v = {}};
  if (destination == Destination::Cache) {
    read_pages(c, step, result);
  } else {
    result.k = k_out.values();
    result.v = v_out.values();
  }
  return result;
}

TEST(QkvPrecisions, GiveTheContractsBitsInTheCacheAndInTheOutputs) {
  const std::vector<CpuSetup> setups = cpu_setups();
  for (const Case& c : cases()) {
    const std::vector<float> x = x_of(c);
    const Result expected = expected_result(c, QkvCase(*setups[0].backend, c), x);
    for (const CpuSetup& setup : setups) {
      SCOPED_TRACE(setup.name + ", " + c.name());
      const QkvCase weights(*setup.backend, c);
      expect_same(expected, run(*setup.backend, c, weights, x, Destination::Cache), c);
      expect_same(expected, run(*setup.backend, c, weights, x, Destination::Outputs), c);
    }
  }
}

TEST(QkvPrecisions, RotationTurnsQueriesAndKeysAlone) {
  Case c = {.precision = Precision::Bf16};
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& backend = *setups.back().backend;
  const QkvCase weights(backend, c);
  const std::vector<float> x = x_of(c);
  const Result plain = run(backend, c, weights, x, Destination::Outputs);
  c.rotation_block = 64;
  const Result rotated = run(backend, c, weights, x, Destination::Outputs);
  EXPECT_NE(plain.q, rotated.q);
  EXPECT_NE(plain.k, rotated.k);
  EXPECT_EQ(plain.v, rotated.v);
}

TEST(QkvPrecisions, GiveTheSameBitsForASequenceAlone) {
  const std::vector<CpuSetup> setups = cpu_setups();
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name());
    const RaggedArrays arrays(c.sequences);
    const QkvCase weights(*setups[0].backend, c);
    const std::vector<float> x = x_of(c);
    const Result all = run(*setups[0].backend, c, weights, x, Destination::Cache);
    for (std::size_t s = 0; s < c.sequences.size(); ++s) {
      Case alone = c;
      alone.sequences = {c.sequences[s]};
      const std::int64_t first = arrays.q_indptr[s];
      const std::int64_t end = arrays.q_indptr[s + 1];
      const auto part = [&](const std::vector<float>& values, std::int64_t cols) {
        return std::vector<float>(values.begin() + first * cols, values.begin() + end * cols);
      };
      expect_same(
          {part(all.q, c.q_cols()), part(all.k, c.kv_cols()), part(all.v, c.kv_cols())},
          run(*setups.back().backend, alone, weights, part(x, kHidden), Destination::Outputs),
          alone);
    }
  }
}

TEST(QkvPrecisions, RefuseAPositionPastTheRopeTableByEitherWay) {
  const Case c = {.precision = Precision::Bf16, .sequences = {{1, kPositions + 1}}};
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& backend = *setups[0].backend;
  const QkvCase weights(backend, c);
  for (const Destination destination : {Destination::Cache, Destination::Outputs}) {
    EXPECT_THROW(run(backend, c, weights, x_of(c), destination), Error);
  }
}

}  // namespace
}  // namespace fut::test
