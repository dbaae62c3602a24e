// lm_head with weights of each kind: float32 with a gain, BF16 without one, INT8, and INT8 with the
// best logits taken once more from BF16. Only the chosen rows are computed.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/error.h"
#include "tests/support/packed_weights.h"

namespace fut::test {
namespace {

constexpr float kEps = 1e-5F;
constexpr DType kDTypes[] = {DType::F32, DType::F16, DType::BF16};

struct Inputs {
  Size size;
  std::vector<std::int32_t> rows;
  std::vector<float> x, gain, weight;

  Inputs(const Size& s, std::vector<std::int32_t> chosen)
      : size(s),
        rows(std::move(chosen)),
        x(normal_values(s.tokens * s.cols, 1, 3.0F)),
        gain(normal_values(s.cols, 2)),
        weight(normal_values(s.rows * s.cols, 3, 0.3F)) {}

  [[nodiscard]] Shape out_shape() const {
    return {static_cast<std::int64_t>(rows.size()), size.rows};
  }
};

// Shapes that no tile or block divides, and rows around their borders.
Inputs some_rows() {
  return {{70, 37, 48}, {0, 3, 63, 64, 69}};
}

// `gain` null for weights that have it folded in.
std::vector<float> run(Backend& backend, const Inputs& in, DType x_type, const float* gain,
                       const Weights& weight, const DenseMatrix& rescoring = {}) {
  const GuardedActivation x(backend, x_type, {in.size.tokens, in.size.cols}, in.x);
  const Guarded<std::int32_t> rows(backend, in.rows);
  const GuardedMatrix out(backend, in.out_shape());
  backend.lm_head({x.const_view(), rows.data(), static_cast<std::int64_t>(in.rows.size()), gain,
                   kEps, weight, rescoring, out.view()});
  return out.values();
}

std::vector<float> run_plain(Backend& backend, DType dtype, const Inputs& in) {
  const Guarded<float> gain(backend, in.gain);
  const GuardedWeight weight(backend, dtype, {in.size.rows, in.size.cols}, in.weight);
  return run(backend, in, DType::F32, gain.data(), weight.view());
}

TEST(LmHead, StaysWithinTheDerivedBoundForChosenRows) {
  const Inputs in = some_rows();
  for (const CpuSetup& setup : cpu_setups()) {
    for (const DType dtype : kDTypes) {
      const GuardedWeight weight(*setup.backend, dtype, {in.size.rows, in.size.cols}, in.weight);
      std::vector<Bounded> expected;
      for (const std::int32_t row : in.rows) {
        const std::vector<Bounded> h =
            bounded_normed_row(row_of(in.x, row, in.size.cols), in.gain, kEps);
        for (std::int64_t n = 0; n < in.size.rows; ++n) {
          expected.push_back(contract_dot(h, bounded(row_of(weight.rounded(), n, in.size.cols))));
        }
      }
      EXPECT_TRUE(within_bounds(expected, run_plain(*setup.backend, dtype, in), in.out_shape()))
          << setup.name << ", " << dtype_name(dtype);
    }
  }
}

TEST(LmHead, RefusesARowThatIsNotThere) {
  const std::vector<CpuSetup> setups = cpu_setups();
  EXPECT_THROW(run_plain(*setups[0].backend, DType::F32, Inputs({2, 3, 16}, {2})), Error);
  EXPECT_THROW(run_plain(*setups[0].backend, DType::F32, Inputs({2, 3, 16}, {-1})), Error);
}

// What an activation type holds of x.
std::span<const float> held(std::vector<float>& storage, DType dtype, std::span<const float> x) {
  storage = rounded_row(dtype, x);
  return storage;
}

TEST(LmHeadBf16, RoundsTheNormalisedInputAndAddsInTheContractsOrder) {
  const Inputs in = some_rows();
  for (const DType x_type : {DType::F32, DType::BF16}) {
    const std::vector<float> w = rounded_row(DType::BF16, in.weight);
    std::vector<float> expected;
    std::vector<float> x;
    for (const std::int32_t row : in.rows) {
      const std::vector<float> operand =
          normed_operand(DType::BF16, held(x, x_type, row_of(in.x, row, in.size.cols)), kEps);
      for (std::int64_t n = 0; n < in.size.rows; ++n) {
        expected.push_back(dot_of(operand, row_of(w, n, in.size.cols)));
      }
    }
    for (const CpuSetup& setup : cpu_setups()) {
      const GuardedWeight weight(*setup.backend, DType::BF16, {in.size.rows, in.size.cols},
                                 in.weight);
      EXPECT_TRUE(same_bits(expected, run(*setup.backend, in, x_type, nullptr, weight.view()),
                            in.out_shape()))
          << setup.name << ", x " << dtype_name(x_type);
    }
  }
}

TEST(LmHeadInt8, IsExactForIntegersAndPowersOfTwo) {
  Inputs in({17, 40, 128}, {0, 1, 7, 16});
  in.x = integer_values(in.size.tokens * in.size.cols, 5, 1);
  // Ones of either sign: r is the same for every row.
  for (float& v : in.x) v = v == 0 ? 1.0F : v;
  for (const CpuSetup& setup : cpu_setups()) {
    Backend& backend = *setup.backend;
    const GuardedInt8 weight(backend, {in.size.rows, in.size.cols}, Scales::PowersOfTwo, 6);
    const float r = inverse_rms(row_of(in.x, 0, in.size.cols), kEps);
    std::vector<float> expected;
    for (const std::int32_t row : in.rows) {
      for (std::int64_t n = 0; n < in.size.rows; ++n) {
        // The product is an integer times a power of two: one rounding is left, that of r.
        const Bounded exact = weight.bounded_product(n, row_of(in.x, row, in.size.cols), {1.0, 0});
        expected.push_back(static_cast<float>(exact.value) * r);
      }
    }
    EXPECT_TRUE(
        same_bits(expected, run(backend, in, DType::F32, nullptr, weight.view()), in.out_shape()))
        << setup.name;
  }
}

TEST(LmHeadInt8, RoundsTheRawInputToF16AndAddsInTheContractsOrder) {
  for (const std::int64_t cols : {16, 33, 48, 256}) {
    Inputs in({70, 37, cols}, {0, 3, 63, 64, 69});
    in.x[3 * static_cast<std::size_t>(cols)] = 1e6F;  // saturates, in a row that is asked for
    for (const DType x_type : {DType::F32, DType::BF16}) {
      for (const CpuSetup& setup : cpu_setups()) {
        Backend& backend = *setup.backend;
        const GuardedInt8 weight(backend, {in.size.rows, cols}, Scales::Any, 6);
        std::vector<float> expected;
        std::vector<Bounded> bounds;
        std::vector<float> storage;
        for (const std::int32_t row : in.rows) {
          const std::span<const float> x = held(storage, x_type, row_of(in.x, row, cols));
          const std::vector<float> operand = rounded_row(DType::F16, x);
          const Bounded r = bounded_inverse_rms(x, kEps);
          for (std::int64_t n = 0; n < in.size.rows; ++n) {
            expected.push_back(weight.product(n, operand, inverse_rms(x, kEps)));
            bounds.push_back(weight.bounded_product(n, operand, r));
          }
        }
        const std::vector<float> out = run(backend, in, x_type, nullptr, weight.view());
        EXPECT_TRUE(same_bits(expected, out, in.out_shape()))
            << setup.name << ", " << cols << " columns, x " << dtype_name(x_type);
        EXPECT_TRUE(within_bounds(bounds, out, in.out_shape()));
      }
    }
  }
}

TEST(LmHeadInt8, RescoresTheBestAndNoOthers) {
  const Inputs in({3, 300, 48}, {0, 2});
  for (const CpuSetup& setup : cpu_setups()) {
    Backend& backend = *setup.backend;
    const GuardedInt8 weight(backend, {in.size.rows, in.size.cols}, Scales::Any, 6);
    const GuardedWeight wide(backend, DType::BF16, {in.size.rows, in.size.cols}, in.weight);
    std::vector<float> expected = run(backend, in, DType::F32, nullptr, weight.view());
    for (std::size_t i = 0; i < in.rows.size(); ++i) {
      float* logits = expected.data() + static_cast<std::int64_t>(i) * in.size.rows;
      std::vector<std::int64_t> ids(static_cast<std::size_t>(in.size.rows));
      std::iota(ids.begin(), ids.end(), 0);
      std::stable_sort(ids.begin(), ids.end(),
                       [&](std::int64_t a, std::int64_t b) { return logits[a] > logits[b]; });
      const std::vector<float> operand =
          normed_operand(DType::BF16, row_of(in.x, in.rows[i], in.size.cols), kEps);
      for (std::int64_t best = 0; best < kRescoredLogits; ++best) {
        const std::int64_t id = ids[static_cast<std::size_t>(best)];
        logits[id] = dot_of(operand, row_of(wide.rounded(), id, in.size.cols));
      }
    }
    EXPECT_TRUE(same_bits(expected,
                          run(backend, in, DType::F32, nullptr, weight.view(), wide.view()),
                          in.out_shape()))
        << setup.name;
  }
}

TEST(LmHeadInt8, RescoresTheLowerIdsOfEqualLogitsAndAllOfASmallVocabulary) {
  // All rows alike: every logit of INT8 is the same.
  Inputs in({1, 100, 16}, {0});
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& backend = *setups.back().backend;
  const std::vector<std::int8_t> ones(100 * 16, 1);
  const Guarded<std::int8_t> codes(backend, ones);
  const Guarded<float> scales(backend, std::vector<float>(100, 1.0F));
  const GuardedWeight zero(backend, DType::BF16, {100, 16}, std::vector<float>(100 * 16));
  const Int8Matrix all = {codes.data(), scales.data(), 100, 16};
  const std::vector<float> out = run(backend, in, DType::F32, nullptr, all, zero.view());
  for (std::size_t id = 0; id < 100; ++id) EXPECT_EQ(out[id] == 0, id < kRescoredLogits) << id;

  in.size.rows = 50;
  DenseMatrix few = zero.view();
  few.rows = 50;
  const Int8Matrix small = {codes.data(), scales.data(), 50, 16};
  for (const float v : run(backend, in, DType::F32, nullptr, small, few)) EXPECT_EQ(v, 0);
}

TEST(LmHeadInt8, KeepsANanInItsOwnRow) {
  Inputs in({2, 100, 16}, {0, 1});
  in.x[3] = kPoison;
  for (const CpuSetup& setup : cpu_setups()) {
    Backend& backend = *setup.backend;
    const GuardedInt8 weight(backend, {100, 16}, Scales::Any, 6);
    const GuardedWeight wide(backend, DType::BF16, {100, 16}, in.weight);
    const std::vector<float> out =
        run(backend, in, DType::F32, nullptr, weight.view(), wide.view());
    for (std::size_t i = 0; i < out.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i < 100) << i;
  }
}

TEST(LmHeadInt8, GivesTheSameBitsForARowAlone) {
  const Inputs in = some_rows();
  const std::vector<CpuSetup> setups = cpu_setups();
  const GuardedInt8 weight(*setups[0].backend, {in.size.rows, in.size.cols}, Scales::Any, 6);
  const std::vector<float> all = run(*setups[0].backend, in, DType::F32, nullptr, weight.view());
  for (std::size_t i = 0; i < in.rows.size(); ++i) {
    Inputs alone = in;
    alone.rows = {in.rows[i]};
    EXPECT_TRUE(same_bits(row_of(all, static_cast<std::int64_t>(i), in.size.rows),
                          run(*setups.back().backend, alone, DType::F32, nullptr, weight.view()),
                          {1, in.size.rows}));
  }
}

}  // namespace
}  // namespace fut::test
