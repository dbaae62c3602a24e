// The quantisers put to work on a layer: which statistics go to which matrix, and what each matrix
// sees of those that were quantised before it.
#include "engine/quantize_layer.h"

#include <gtest/gtest.h>

#include "loader/int4_grid.h"
#include "tests/unit/quantize_case.h"

namespace fut::test {
namespace {

void expect_same(const QuantizedMatrix& found, const QuantizedMatrix& expected) {
  EXPECT_TRUE(found.codes == expected.codes);
  EXPECT_TRUE(found.scales == expected.scales);
}

class LayerQuantisers : public testing::Test {
 protected:
  std::filesystem::path model() {
    return write_toy_model(folder_ / "toy", quantizable_toy_model());
  }
  const CalibrationWindows windows_ = {random_ids(64), random_ids(41)};
  TempFolder folder_;
};

// ---- the error of a matrix ----------------------------------------------------------------------

TEST(RelativeError, IsWeighedByImportance) {
  HostMatrix w("w", 2, 128);
  QuantizedMatrix q(2, 128, 128);
  q.scales = {Int4Scale::nearest(1).bf16, Int4Scale::nearest(1).bf16};
  std::vector<float> importance(128, 0.0F);
  w.row(0)[3] = 2.5F;
  q.row(0)[3] = 2;
  importance[3] = 2;
  w.row(1)[5] = 3;
  q.row(1)[5] = 3;
  importance[5] = 0.5F;
  w.row(1)[6] = 100;  // does not count
  EXPECT_EQ(relative_error(w, q, importance, {}), 2 * 0.25 / (2 * 6.25 + 0.5 * 9));
  EXPECT_EQ(
      relative_error(HostMatrix("zero", 2, 128), QuantizedMatrix(2, 128, 128), importance, {}), 0);
}

// ---- round to nearest ---------------------------------------------------------------------------

TEST_F(LayerQuantisers, RoundToNearestIsAFunctionOfWeightsAndStatistics) {
  QuantizeCase toy(model());
  const auto layers = toy.calibrate(windows_);
  const StackedLayer layer = stack_layer(layers[1].weights, 1);
  const LayerStatistics& statistics = layers[1].statistics;
  int done = 0;
  const QuantizedLayer found = quantize_layer_rtn(layer, statistics, toy.options, toy.parallel_for,
                                                  [&](const HostMatrix&) { ++done; });
  EXPECT_EQ(done, 4);
  const std::array inputs = {&statistics.qkv_input, &statistics.o_input, &statistics.gate_up_input,
                             &statistics.down_input};
  for (std::size_t m = 0; m < 4; ++m) {
    expect_same(found.matrices[m],
                quantize_rtn(layer[m], *inputs[m], 128, ScaleRule::Searched, {}));
    EXPECT_EQ(found.reports[m].name, layer[m].name);
    EXPECT_EQ(found.reports[m].relative_error,
              relative_error(layer[m], found.matrices[m], *inputs[m], {}));
    EXPECT_GT(found.reports[m].relative_error, 0);
    EXPECT_LT(found.reports[m].rtn_loss, 0) << "not known";
  }
}

TEST_F(LayerQuantisers, SearchedScalesServeTheInputsBetter) {
  QuantizeCase toy(model());
  PackedOptions simple = toy.options;
  simple.scale_rule = ScaleRule::MinMax;
  for (const CalibratedLayer& calibrated : toy.calibrate(windows_)) {
    const StackedLayer layer = stack_layer(calibrated.weights, 0);
    const auto searched = quantize_layer_rtn(layer, calibrated.statistics, toy.options, {});
    const auto min_max = quantize_layer_rtn(layer, calibrated.statistics, simple, {});
    for (std::size_t m = 0; m < 4; ++m) {
      EXPECT_LE(searched.reports[m].relative_error, min_max.reports[m].relative_error);
    }
  }
}

// ---- GPTQ ---------------------------------------------------------------------------------------

TEST_F(LayerQuantisers, GptqIsNeverWorseThanRoundToNearest) {
  for (const int group_size : {64, 128}) {
    QuantizeCase toy(model());
    GptqOptions options;
    options.group_size = group_size;
    SequentialGptq gptq(*toy.backend, toy.weights, toy.runner, windows_, options, {});
    int index = 0;
    for (const CalibratedLayer& calibrated : toy.calibrate(windows_)) {
      const QuantizedLayer layer = gptq.next(stack_layer(calibrated.weights, index++));
      for (const MatrixReport& report : layer.reports) {
        EXPECT_GE(report.relative_loss, 0) << report.name;
        EXPECT_LE(report.relative_loss, report.rtn_loss) << report.name;
      }
    }
  }
}

// Every input once more, by hand and in another way: all windows together go through one op after
// the other.
TEST_F(LayerQuantisers, GptqSeesWhatTheQuantisedMatricesBeforeGive) {
  QuantizeCase toy(model());
  const GptqOptions options;
  SequentialGptq gptq(*toy.backend, toy.weights, toy.runner, windows_, options, {});
  std::vector<StackedLayer> layers;
  for (CalibratedLayer& calibrated : toy.calibrate(windows_)) {
    layers.push_back(stack_layer(std::move(calibrated.weights), static_cast<int>(layers.size())));
  }
  HiddenStates hidden(*toy.backend, toy.weights, windows_);
  LayerRunner runner(*toy.backend, toy.config, 64);
  const auto expect_next = [&](const QuantizedMatrix& found, const HostMatrix& w,
                               const auto& input) {
    SquareMatrix h(w.cols);
    for (std::int64_t i = 0; i < hidden.num_windows(); ++i) {
      accumulate_hessian(h, input(hidden.window(i)).view(), {});
    }
    mirror_lower(h);
    const GptqFactor factor = factor_hessian(w.name, h, options, {});
    expect_same(found, quantize_gptq(w, h, factor, options, {}).matrix);
    return dequantize(found);
  };
  for (const StackedLayer& layer : layers) {
    const QuantizedLayer found = gptq.next(layer);
    HostMatrix seen = expect_next(found.matrices[0], layer[0],
                                  [&](MatrixView<float> x) { return runner.normalised(x); });
    runner.set_qkv_proj({&seen});
    seen = expect_next(found.matrices[1], layer[1], [&](MatrixView<float> x) {
      runner.attend(x);
      return runner.attention_output();
    });
    runner.set_o_proj({&seen});
    for (std::int64_t i = 0; i < hidden.num_windows(); ++i) {
      runner.attend(hidden.window(i));
      runner.add_attention(hidden.window(i));
    }
    seen = expect_next(found.matrices[2], layer[2],
                       [&](MatrixView<float> x) { return runner.normalised(x); });
    runner.set_gate_up_proj({&seen});
    seen = expect_next(found.matrices[3], layer[3], [&](MatrixView<float> x) {
      runner.feed(x);
      return runner.swiglu_output();
    });
    runner.set_down_proj({&seen});
    for (std::int64_t i = 0; i < hidden.num_windows(); ++i) {
      runner.feed(hidden.window(i));
      runner.add_feed(hidden.window(i));
    }
  }
}

TEST_F(LayerQuantisers, InputsThatAreAlwaysZeroAreReported) {
  // Two channels of up_proj that give nothing.
  const auto toy_folder = write_changed_toy_model(
      folder_ / "dead", quantizable_toy_model(), [](std::vector<NamedTensor>& tensors) {
        std::string& bytes = tensor_named(tensors, "model.layers.0.mlp.up_proj.weight").bytes;
        std::fill_n(bytes.begin() + 2 * 128 * 17, 2 * 2 * 128, '\0');
      });
  QuantizeCase toy(toy_folder);
  SequentialGptq gptq(*toy.backend, toy.weights, toy.runner, windows_, GptqOptions{}, {});
  const QuantizedLayer layer = gptq.next(stack_layer(toy.calibrate(windows_).front().weights, 0));
  EXPECT_EQ(layer.reports[3].note, "2 inputs are always zero");
  EXPECT_EQ(layer.reports[0].note, "");
  for (std::int64_t r = 0; r < layer.matrices[3].rows; ++r) {
    EXPECT_EQ(layer.matrices[3].row(r)[17], 0);
    EXPECT_EQ(layer.matrices[3].row(r)[18], 0);
  }
}

}  // namespace
}  // namespace fut::test
