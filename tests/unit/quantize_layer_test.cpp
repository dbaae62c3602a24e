// Round to nearest put to work on a layer: which statistics go to which matrix, and what the report
// says of it.
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

class LayerRounding : public testing::Test {
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

TEST_F(LayerRounding, IsAFunctionOfWeightsAndStatistics) {
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

TEST_F(LayerRounding, SearchedScalesServeTheInputsBetter) {
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

}  // namespace
}  // namespace fut::test
