// qkv_rope_append with BF16 and E4M3 weights on the GPU: the bits of the CPU where projections are exact,
// through RoPE, rotation and the last rounding, into the cache and into outputs; and the same bits for
// a sequence whatever else is in the step.
#include <algorithm>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

#include "kernels/numeric/activation_scales.h"
#include "kernels/numeric/rope_table.h"
#include "tests/support/packed_weights.h"
#include "tests/support/ragged_case.h"

namespace fut::test {
namespace {

#if FUT_CUDA

constexpr int kPositions = 200;

enum class Kind { Bf16, Bf16Apart, Fp8 };

struct Case {
  Kind kind = Kind::Bf16;
  DType x_type = DType::F32;
  DType out_type = DType::BF16;
  int q_heads = 4, kv_heads = 2, head_dim = 64;
  int hidden = 256;
  int rotation_block = 0;
  bool to_cache = true;
  bool exact = true;
  std::vector<SequenceShape> sequences = {{1, 1}, {3, 66}, {1, 64}, {17, 130}, {1, 128}};

  [[nodiscard]] std::int64_t q_cols() const { return std::int64_t{q_heads} * head_dim; }
  [[nodiscard]] std::int64_t kv_cols() const { return std::int64_t{kv_heads} * head_dim; }
  [[nodiscard]] std::int64_t rows() const { return q_cols() + 2 * kv_cols(); }
  [[nodiscard]] std::string name() const {
    constexpr const char* kNames[] = {"bf16", "bf16 apart", "fp8"};
    return std::string(kNames[static_cast<int>(kind)]) + ", x " + std::string(dtype_name(x_type)) +
           ", out " + std::string(dtype_name(out_type)) + ", head_dim " + std::to_string(head_dim) +
           ", rotated by " + std::to_string(rotation_block) +
           (to_cache ? ", to the cache" : ", to outputs");
  }
};

// The weights of a case in a backend's memory.
class QkvCase {
 public:
  QkvCase(Backend& backend, const Case& c) : c_(c) {
    const Shape shape = {c.rows(), c.hidden};
    if (c.kind == Kind::Fp8) {
      e4m3_ = std::make_unique<GuardedE4m3>(backend, shape,
                                            c.exact ? Scales::PowersOfTwo : Scales::Any, 7);
    } else {
      dense_ = std::make_unique<GuardedWeight>(
          backend, DType::BF16, shape,
          c.exact ? integer_values(shape.rows * shape.cols, 7, 8)
                  : normal_values(shape.rows * shape.cols, 7, 0.3F));
    }
  }
  [[nodiscard]] QkvWeights view() const {
    constexpr std::in_place_type_t<Weights> kStacked;
    if (e4m3_) return QkvWeights(kStacked, e4m3_->view());
    const DenseMatrix all = dense_->view();
    if (c_.kind == Kind::Bf16) return QkvWeights(kStacked, all);
    const auto* first = static_cast<const std::uint16_t*>(all.data);
    const std::int64_t q = c_.q_cols();
    const std::int64_t kv = c_.kv_cols();
    const std::int64_t hidden = c_.hidden;
    return QkvMatrices{{DType::BF16, first, q, hidden},
                       {DType::BF16, first + q * hidden, kv, hidden},
                       {DType::BF16, first + (q + kv) * hidden, kv, hidden}};
  }

 private:
  Case c_;
  std::unique_ptr<GuardedWeight> dense_;
  std::unique_ptr<GuardedE4m3> e4m3_;
};

// Queries, and the keys and values of the outputs, or all pages of the cache.
struct Result {
  std::vector<float> q, k, v, pages;
};

std::vector<float> x_of(const Case& c) {
  const auto tokens = static_cast<std::int64_t>(RaggedArrays(c.sequences).positions.size());
  if (c.exact) return unit_rms_integers(tokens, c.hidden, 1);
  return rounded_row(c.x_type, normal_values(tokens * c.hidden, 1, 2.0F));
}

Result run(Backend& backend, const Case& c, const QkvCase& weights,
           const std::vector<float>& values) {
  const RaggedCase step(backend, c.sequences, {c.kv_heads, c.head_dim}, {}, c.out_type);
  const std::int64_t tokens = step.batch().num_tokens;
  const RopeTable rope = make_rope_table(RopeParams{}, c.head_dim, kPositions);
  const Guarded<float> cos(backend, rope.cos);
  const Guarded<float> sin(backend, rope.sin);
  const GuardedActivation x(backend, c.x_type, {tokens, c.hidden}, values);
  const GuardedActivation q_out(backend, c.out_type, {tokens, c.q_cols()});
  const GuardedActivation k_out(backend, c.out_type, {tokens, c.kv_cols()});
  const GuardedActivation v_out(backend, c.out_type, {tokens, c.kv_cols()});
  QkvRopeAppendArgs args;
  args.x = x.const_view();
  args.eps = c.exact ? 0 : 1e-5F;
  args.weights = weights.view();
  args.operand_scale = normalised_operand_scale(c.hidden);
  args.num_q_heads = c.q_heads;
  args.num_kv_heads = c.kv_heads;
  args.head_dim = c.head_dim;
  args.rope_cos = cos.data();
  args.rope_sin = sin.data();
  args.rope_positions = kPositions;
  args.rotation_block = c.rotation_block;
  args.batch = step.batch();
  args.q_out = q_out.view();
  if (c.to_cache) {
    args.kv = step.kv();
  } else {
    args.k_out = k_out.view();
    args.v_out = v_out.view();
  }
  backend.qkv_rope_append(args);
  if (c.to_cache) return {q_out.values(), {}, {}, step.pages()};
  return {q_out.values(), k_out.values(), v_out.values(), {}};
}

void expect_same(const Result& expected, const Result& actual) {
  const auto same = [](const std::vector<float>& a, const std::vector<float>& b, const char* what) {
    EXPECT_TRUE(same_bits(a, b, {1, static_cast<std::int64_t>(a.size())})) << what;
  };
  same(expected.q, actual.q, "queries");
  same(expected.k, actual.k, "keys");
  same(expected.v, actual.v, "values");
  same(expected.pages, actual.pages, "pages");
}

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const Kind kind : {Kind::Bf16, Kind::Bf16Apart, Kind::Fp8}) {
    for (const bool to_cache : {true, false}) {
      result.push_back({.kind = kind, .to_cache = to_cache});
      result.push_back({.kind = kind, .out_type = DType::F32, .to_cache = to_cache});
      result.push_back(
          {.kind = kind, .x_type = DType::BF16, .rotation_block = 16, .to_cache = to_cache});
      result.push_back(
          {.kind = kind, .head_dim = 128, .rotation_block = 128, .to_cache = to_cache});
      result.push_back({.kind = kind, .head_dim = 20, .to_cache = to_cache});
    }
    result.push_back({.kind = kind, .q_heads = 32, .kv_heads = 8, .head_dim = 128, .hidden = 512});
  }
  return result;
}

TEST(RowQkvCuda, GivesTheBitsOfTheCpuWhereProjectionsAreExact) {
  FUT_REQUIRE_GPU_DEVICE();
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& cpu = *setups.back().backend;
  const auto gpu = gpu_backend();
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name());
    const std::vector<float> x = x_of(c);
    expect_same(run(cpu, c, QkvCase(cpu, c), x), run(*gpu, c, QkvCase(*gpu, c), x));
  }
}

// x in BF16: the product of prompts.
TEST(PromptQkvCuda, GivesTheBitsOfTheCpuWhereProjectionsAreExact) {
  FUT_REQUIRE_GPU_DEVICE();
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& cpu = *setups.back().backend;
  const auto gpu = gpu_backend();
  for (const Kind kind : {Kind::Bf16, Kind::Bf16Apart, Kind::Fp8}) {
    for (const int head_dim : {32, 64, 128}) {
      for (const DType out_type : {DType::BF16, DType::F32}) {
        for (const bool to_cache : {true, false}) {
          for (const int rotation_block : {0, 32, head_dim}) {
            if (rotation_block > 0 && out_type == DType::F32) continue;
            const Case c = {.kind = kind,
                            .x_type = DType::BF16,
                            .out_type = out_type,
                            .q_heads = 6,
                            .kv_heads = 3,
                            .head_dim = head_dim,
                            .rotation_block = rotation_block,
                            .to_cache = to_cache,
                            .sequences = {{40, 40}, {1, 70}, {159, 160}, {64, 130}}};
            SCOPED_TRACE(c.name());
            const std::vector<float> x = x_of(c);
            expect_same(run(cpu, c, QkvCase(cpu, c), x), run(*gpu, c, QkvCase(*gpu, c), x));
          }
        }
      }
    }
  }
}

TEST(RowQkvCuda, TakesMoreTokensThanOneLaunch) {
  FUT_REQUIRE_GPU_DEVICE();
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& cpu = *setups.back().backend;
  const auto gpu = gpu_backend();
  for (const Kind kind : {Kind::Bf16Apart, Kind::Fp8}) {
    for (const int rotation_block : {0, 64}) {
      const Case c = {.kind = kind,
                      .rotation_block = rotation_block,
                      .sequences = {{40, 40}, {1, 70}, {59, 160}}};
      SCOPED_TRACE(c.name());
      const std::vector<float> x = x_of(c);
      expect_same(run(cpu, c, QkvCase(cpu, c), x), run(*gpu, c, QkvCase(*gpu, c), x));
    }
  }
}

TEST(RowQkvCuda, GivesTheSameBitsForASequenceAlone) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  for (const Kind kind : {Kind::Bf16Apart, Kind::Fp8}) {
    for (const int rotation_block : {0, 64}) {
      const Case c = {.kind = kind,
                      .hidden = 4096,
                      .rotation_block = rotation_block,
                      .to_cache = false,
                      .exact = false};
      SCOPED_TRACE(c.name());
      const QkvCase weights(*gpu, c);
      const std::vector<float> x = x_of(c);
      const Result all = run(*gpu, c, weights, x);
      const RaggedArrays arrays(c.sequences);
      for (std::size_t s = 0; s < c.sequences.size(); ++s) {
        Case alone = c;
        alone.sequences = {c.sequences[s]};
        const auto part = [&](const std::vector<float>& values, std::int64_t cols) {
          return std::vector<float>(values.begin() + arrays.q_indptr[s] * cols,
                                    values.begin() + arrays.q_indptr[s + 1] * cols);
        };
        expect_same(
            {part(all.q, c.q_cols()), part(all.k, c.kv_cols()), part(all.v, c.kv_cols()), {}},
            run(*gpu, alone, weights, part(x, c.hidden)));
      }
    }
  }
}

#else

TEST(RowQkvCuda, GivesTheBitsOfTheCpuWhereProjectionsAreExact) {
  FUT_REQUIRE_GPU_DEVICE();
}

#endif

}  // namespace
}  // namespace fut::test
