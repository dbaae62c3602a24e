// Which pieces of a text calibration looks at, and what it finds there, against a second reading of
// the same activations.
#include "engine/calibration.h"

#include <cmath>
#include <gtest/gtest.h>
#include <numeric>

#include "tests/support/expect_error.h"
#include "tests/unit/quantize_case.h"

namespace fut::test {
namespace {

// ---- windows ------------------------------------------------------------------------------------

std::vector<std::int32_t> counted(int count) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

std::vector<std::int32_t> first_ids(const CalibrationWindows& windows) {
  std::vector<std::int32_t> ids;
  for (const auto& window : windows) ids.push_back(window.front());
  return ids;
}

TEST(CalibrationWindows, StandAtEvenDistances) {
  const CalibrationWindows windows = choose_windows(counted(1000), 10, 40);
  EXPECT_EQ(first_ids(windows), (std::vector<std::int32_t>{0, 250, 500, 750}));
  for (const auto& window : windows) {
    ASSERT_EQ(window.size(), 10U);
    EXPECT_EQ(window.back(), window.front() + 9);
  }
  EXPECT_EQ(count_tokens(windows), 40);
}

TEST(CalibrationWindows, AreWhole) {
  EXPECT_EQ(count_tokens(choose_windows(counted(1000), 10, 49)), 40);
  EXPECT_EQ(count_tokens(choose_windows(counted(1000), 10, 1)), 10) << "one at least";
}

TEST(CalibrationWindows, TakeAllOfAShortText) {
  EXPECT_EQ(first_ids(choose_windows(counted(35), 10, 1000)),
            (std::vector<std::int32_t>{0, 10, 20}));
  const CalibrationWindows one = choose_windows(counted(7), 10, 1000);
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one.front(), counted(7));
}

TEST(CalibrationWindows, NeedTwoTokens) {
  for (const int count : {0, 1}) {
    expect_mentions(
        error_message(ErrorKind::Data, [&] { (void)choose_windows(counted(count), 10, 10); }),
        {fmt::format("{} tokens", count), "2 are needed", "--calib"});
  }
}

// ---- statistics ---------------------------------------------------------------------------------

class Calibration : public testing::Test {
 protected:
  std::filesystem::path model() {
    return write_toy_model(folder_ / "toy", quantizable_toy_model());
  }
  // Of two lengths, the second one across a page of the cache.
  const CalibrationWindows windows_ = {random_ids(64), random_ids(41)};
  TempFolder folder_;
};

std::vector<double> mean_squares(const std::vector<HostRows>& windows) {
  std::vector<double> sums(static_cast<std::size_t>(windows.front().cols));
  std::int64_t tokens = 0;
  for (const HostRows& rows : windows) {
    for (std::int64_t t = 0; t < rows.rows; ++t) {
      for (std::size_t c = 0; c < sums.size(); ++c) {
        sums[c] += static_cast<double>(rows.row(t)[c]) * rows.row(t)[c];
      }
    }
    tokens += rows.rows;
  }
  for (double& sum : sums) sum /= static_cast<double>(tokens);
  return sums;
}

void expect_rounded(const std::vector<float>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i], static_cast<float>(expected[i])) << "column " << i;
  }
}

float largest(const HostRows& rows, std::int64_t begin, std::int64_t end) {
  float amax = 0;
  for (std::int64_t t = 0; t < rows.rows; ++t) {
    for (std::int64_t c = begin; c < end; ++c) amax = std::max(amax, std::fabs(rows.row(t)[c]));
  }
  return amax;
}

TEST_F(Calibration, FindsWhatTheOpsSee) {
  QuantizeCase toy(model(), plain_options());
  const CalibratedLayer layer = toy.calibrate(windows_).front();
  // The first layer once more, by hand.
  HiddenStates hidden(*toy.backend, toy.weights, windows_);
  const TransformedLayer w = toy.weights.layer(0);
  toy.runner.set_qkv_proj({&w.q_proj, &w.k_proj, &w.v_proj});
  toy.runner.set_o_proj({&w.o_proj});
  toy.runner.set_gate_up_proj({&w.gate_proj, &w.up_proj});
  std::vector<HostRows> qkv, o, gate_up, down, values;
  for (std::int64_t i = 0; i < hidden.num_windows(); ++i) {
    const ActivationView x = hidden.window(i);
    qkv.push_back(toy.runner.normalised(x));
    toy.runner.attend(x);
    values.push_back(toy.runner.values());
    o.push_back(toy.runner.attention_output());
    toy.runner.add_attention(x);
    gate_up.push_back(toy.runner.normalised(x));
    toy.runner.feed(x);
    down.push_back(toy.runner.swiglu_output());
  }
  const LayerStatistics& found = layer.statistics;
  expect_rounded(found.qkv_input, mean_squares(qkv));
  expect_rounded(found.o_input, mean_squares(o));
  expect_rounded(found.gate_up_input, mean_squares(gate_up));
  expect_rounded(found.down_input, mean_squares(down));
  EXPECT_EQ(found.swiglu_amax, std::max(largest(down[0], 0, 256), largest(down[1], 0, 256)));
  ASSERT_EQ(found.value_amax.size(), 2U);
  for (std::size_t head = 0; head < 2; ++head) {
    const auto begin = static_cast<std::int64_t>(64 * head);
    EXPECT_EQ(found.value_amax[head], std::max(largest(values[0], begin, begin + 64),
                                               largest(values[1], begin, begin + 64)));
  }
}

TEST_F(Calibration, ValuesAreInputsTimesWeights) {
  QuantizeCase toy(model(), plain_options());
  HiddenStates hidden(*toy.backend, toy.weights, windows_);
  const TransformedLayer w = toy.weights.layer(0);
  toy.runner.set_qkv_proj({&w.q_proj, &w.k_proj, &w.v_proj});
  const HostRows input = toy.runner.normalised(hidden.window(1));
  toy.runner.attend(hidden.window(1));
  const HostRows values = toy.runner.values();
  ASSERT_EQ(values.rows, 41);
  for (std::int64_t t = 0; t < values.rows; ++t) {
    for (std::int64_t r = 0; r < w.v_proj.rows; ++r) {
      double sum = 0, size = 0;
      for (std::int64_t c = 0; c < w.v_proj.cols; ++c) {
        const double product = static_cast<double>(input.row(t)[c]) * w.v_proj.row(r)[c];
        sum += product;
        size += std::fabs(product);
      }
      // 13 roundings of a sum of 128 products in 16 lanes, 2 of the input as it is here, fewer than
      // 15 of the op's own norm.
      EXPECT_NEAR(values.row(t)[r], sum, size * 30 * 0x1p-24) << t << ", " << r;
    }
  }
}

TEST_F(Calibration, NormalisedInputsHaveMeanSquareOne) {
  QuantizeCase toy(model(), plain_options());
  HiddenStates hidden(*toy.backend, toy.weights, windows_);
  double expected = 0;  // but for what eps takes off
  std::int64_t tokens = 0;
  for (std::int64_t i = 0; i < hidden.num_windows(); ++i) {
    const ActivationView x = hidden.window(i);
    for (std::int64_t t = 0; t < x.rows; ++t, ++tokens) {
      const float* row = x.row<float>(t);
      const double mean = std::inner_product(row, row + 128, row, 0.0) / 128;
      expected += mean / (mean + toy.config.rms_norm_eps);
    }
  }
  const std::vector<float> found = toy.calibrate(windows_).front().statistics.qkv_input;
  const double sum = std::accumulate(found.begin(), found.end(), 0.0);
  // A rounded factor and a rounded product, squared, and the mean's own rounding.
  EXPECT_NEAR(sum / 128, expected / static_cast<double>(tokens), 6 * 0x1p-24);
}

TEST_F(Calibration, GivesTheSameBitsOnAnyNumberOfThreads) {
  PackedOptions options;
  options.rotate = true;
  const auto one = QuantizeCase(model(), options, 1).calibrate(windows_);
  const auto three = QuantizeCase(folder_ / "toy", options, 3).calibrate(windows_);
  for (std::size_t i = 0; i < one.size(); ++i) {
    const LayerStatistics& a = one[i].statistics;
    const LayerStatistics& b = three[i].statistics;
    EXPECT_EQ(a.qkv_input, b.qkv_input);
    EXPECT_EQ(a.o_input, b.o_input);
    EXPECT_EQ(a.gate_up_input, b.gate_up_input);
    EXPECT_EQ(a.down_input, b.down_input);
    EXPECT_EQ(a.swiglu_rms, b.swiglu_rms);
    EXPECT_EQ(a.swiglu_amax, b.swiglu_amax);
    EXPECT_EQ(a.value_amax, b.value_amax);
    EXPECT_EQ(one[i].weights.q_proj.values, three[i].weights.q_proj.values);
    EXPECT_EQ(one[i].weights.down_proj.values, three[i].weights.down_proj.values);
  }
}

// ---- powers of two ------------------------------------------------------------------------------

// log2(a / b), which must be a whole number.
int exponent_between(float a, float b) {
  int exponent = 0;
  EXPECT_EQ(std::frexp(a / b, &exponent), 0.5F) << a << " / " << b;
  return exponent - 1;
}

TEST_F(Calibration, EveningOutScalesWeightsAndStatisticsTogether) {
  QuantizeCase toy(model(), plain_options());
  PackedOptions options = plain_options();
  options.balance_ffn = true;
  QuantizeCase evened(folder_ / "toy", options);
  const auto before = toy.calibrate(windows_);
  const auto after = evened.calibrate(windows_);
  int moved = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const TransformedLayer &a = before[i].weights, &b = after[i].weights;
    for (std::int64_t j = 0; j < a.up_proj.rows; ++j) {
      const auto column = static_cast<std::size_t>(j);
      const int shift = exponent_between(b.up_proj.row(j)[0], a.up_proj.row(j)[0]);
      EXPECT_EQ(exponent_between(b.down_proj.row(3)[j], a.down_proj.row(3)[j]), -shift);
      EXPECT_EQ(after[i].statistics.down_input[column],
                std::ldexp(before[i].statistics.down_input[column], 2 * shift));
      moved += shift != 0 ? 1 : 0;
    }
    EXPECT_EQ(a.gate_proj.values, b.gate_proj.values);
    EXPECT_EQ(a.q_proj.values, b.q_proj.values);
    EXPECT_EQ(before[i].statistics.qkv_input, after[i].statistics.qkv_input)
        << "layer " << i << " sees what it saw";
  }
  EXPECT_GT(moved, 0);
}

TEST_F(Calibration, EveningOutQueriesAndKeysLeavesTheRestAlone) {
  QuantizeCase toy(model(), plain_options());
  PackedOptions options = plain_options();
  options.balance_qk = true;
  QuantizeCase evened(folder_ / "toy", options);
  const auto before = toy.calibrate(windows_);
  const auto after = evened.calibrate(windows_);
  for (std::size_t i = 0; i < before.size(); ++i) {
    const TransformedLayer &a = before[i].weights, &b = after[i].weights;
    for (std::int64_t r = 0; r < a.k_proj.rows; ++r) {
      const int shift = exponent_between(b.k_proj.row(r)[0], a.k_proj.row(r)[0]);
      const std::int64_t head = r / 64, dim = r % 64;
      for (const std::int64_t q_head : {2 * head, 2 * head + 1}) {
        const std::int64_t row = 64 * q_head + dim;
        EXPECT_EQ(exponent_between(b.q_proj.row(row)[0], a.q_proj.row(row)[0]), -shift);
      }
    }
    EXPECT_EQ(a.v_proj.values, b.v_proj.values);
    EXPECT_EQ(a.down_proj.values, b.down_proj.values);
    EXPECT_EQ(before[i].statistics.o_input, after[i].statistics.o_input);
    EXPECT_EQ(before[i].statistics.swiglu_amax, after[i].statistics.swiglu_amax);
  }
}

TEST_F(Calibration, ActivationsThatOverflowAreNamed) {
  const auto broken = write_changed_toy_model(
      folder_ / "broken", quantizable_toy_model(), [](std::vector<NamedTensor>& tensors) {
        NamedTensor& up = tensor_named(tensors, "model.layers.1.mlp.up_proj.weight");
        up = make_tensor(up.name, DType::BF16, up.shape, std::vector<float>(256 * 128, 0x1.8p127F));
      });
  PackedOptions options = plain_options();
  QuantizeCase toy(broken, options);
  Calibrator calibrator(*toy.backend, toy.weights, toy.config, options, toy.runner, windows_);
  (void)calibrator.next();
  expect_mentions(error_message(ErrorKind::Data, [&] { (void)calibrator.next(); }),
                  {"layer 1", "SwiGLU output", "not finite", "--precision f32"});
}

}  // namespace
}  // namespace fut::test
