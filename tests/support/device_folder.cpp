// Statistics and powers of two are found a second time through the same ops, by hand; from there on
// the host's code goes its own way.
#include "tests/support/device_folder.h"

#include <gtest/gtest.h>

#include "engine/quantize.h"
#include "engine/quantize_device.h"
#include "tests/support/opened_folder.h"
#include "tests/unit/quantize_case.h"

namespace fut::test {
namespace {

constexpr std::int64_t kTokens = 96;
constexpr int kWindow = 32;

PackedOptions device_options(bool balance, int group_size, ScaleRule rule) {
  PackedOptions options;
  options.group_size = group_size;
  options.scale_rule = rule;
  options.balance_qk = options.balance_ffn = balance;
  options.rotate = !balance;
  options.kv_rotation = balance;
  options.calibration = {"text.txt", 1000, 0x12345678U};
  options.calibration_tokens = kTokens;
  return options;
}

// The layers of a model in BF16, one after the other.
class ByHand {
 public:
  ByHand(Backend& backend, QuantizeCase& toy, const CalibrationWindows& windows)
      : runner_(backend, toy.config, kWindow, {}, DType::BF16),
        hidden_(backend, toy.weights, windows, DType::BF16),
        sums_(backend, toy.config),
        backend_(backend) {}

  LayerSums run(const TransformedLayer& w) {
    const StackedLayer layer = stack_layer(w, 0);
    std::vector<DeviceBuffer> weights;
    for (std::size_t m = 0; m < layer.size(); ++m) {
      weights.push_back(backend_.allocate(layer[m].values.size() * sizeof(float)));
      backend_.upload(weights[m].as<void>(), std::as_bytes(std::span(layer[m].values)));
      runner_.set_rounded(static_cast<PackedMatrix>(m), weights[m].as<float>());
    }
    sums_.clear();
    for (std::int64_t i = 0; i < hidden_.num_windows(); ++i) {
      const ActivationView x = hidden_.window(i);
      sums_.add(&LayerSums::qkv_input, runner_.normalise(x));
      runner_.attend(x);
      runner_.project_keys_and_values(x);
      sums_.add(&LayerSums::query, runner_.query_view());
      sums_.add(&LayerSums::key, runner_.key_view());
      sums_.add(&LayerSums::value, runner_.value_view());
      sums_.add(&LayerSums::o_input, runner_.attention_view());
      runner_.add_attention(x);
      sums_.add(&LayerSums::gate_up_input, runner_.normalise(x));
      runner_.feed(x);
      sums_.add(&LayerSums::swiglu, runner_.swiglu_view());
      runner_.add_feed(x);
    }
    backend_.synchronize();
    return sums_.download(kTokens);
  }

 private:
  LayerRunner runner_;
  HiddenStates hidden_;
  DeviceSums sums_;
  Backend& backend_;
};

// What the host makes of a layer: as Calibrator, from given sums.
CalibratedLayer balanced(const QuantizeCase& toy, TransformedLayer w, LayerSums sums) {
  const LayerExponents exponents = choose_exponents(toy.config, toy.options, w, sums, {});
  if (!exponents.qk.empty()) {
    apply_qk_exponents(w.q_proj, w.k_proj, attention_shape(toy.config), exponents.qk);
  }
  if (!exponents.up_down.empty()) {
    apply_up_down_exponents(w.up_proj, w.down_proj, exponents.up_down);
  }
  sums.scale(exponents);
  return {std::move(w), statistics_of(sums, toy.config.num_kv_heads)};
}

void expect_layer(const OpenedFolder& folder, int index, const QuantizeCase& toy,
                  CalibratedLayer calibrated, const ReportCard& card) {
  expect_statistics(folder.statistics(index), calibrated.statistics);
  const StackedLayer layer = stack_layer(std::move(calibrated.weights), index);
  const QuantizedLayer rounded = quantize_layer_rtn(layer, calibrated.statistics, toy.options, {});
  const PackedLayer packed = pack_layer(toy.config, layer, rounded, calibrated.statistics, {});
  for (int m = 0; m < kNumPackedMatrices; ++m) {
    const PackedMatrixBytes& expected = packed.matrices[static_cast<std::size_t>(m)];
    EXPECT_EQ(folder.part<std::uint8_t>(index, m, PackedPart::Int4), expected.int4);
    EXPECT_EQ(folder.part<std::uint8_t>(index, m, PackedPart::E4m3), expected.e4m3);
    EXPECT_EQ(folder.part<float>(index, m, PackedPart::E4m3Scale), expected.e4m3_scales);
    const MatrixReport& report = card.matrices[static_cast<std::size_t>(4 * index + m)];
    const MatrixReport& host = rounded.reports[static_cast<std::size_t>(m)];
    EXPECT_EQ(report.name, host.name);
    EXPECT_EQ(report.relative_error, host.relative_error);
  }
}

}  // namespace

void expect_device_folders_are_the_hosts(Backend& backend) {
  ToyModelOptions model = quantizable_toy_model();
  model.num_layers = 3;
  model.files.max_position_embeddings = kWindow;
  for (const PackedOptions& options : {device_options(true, 128, ScaleRule::Searched),
                                       device_options(false, 64, ScaleRule::MinMax)}) {
    SCOPED_TRACE(options_json(options));
    const TempFolder folder;
    write_toy_model(folder / "toy", model);
    const std::vector<std::int32_t> ids = random_ids(500);
    const ReportCard card =
        quantize_folder(backend, folder / "toy", folder / "packed", options, ids, false, {}, 2);
    QuantizeCase toy(folder / "toy", options);
    ByHand by_hand(backend, toy, choose_windows(ids, kWindow, kTokens));
    const OpenedFolder packed(folder / "packed");
    ASSERT_EQ(std::ssize(card.matrices), 4 * toy.config.num_layers);
    for (int i = 0; i < toy.config.num_layers; ++i) {
      SCOPED_TRACE(i);
      TransformedLayer w = toy.weights.layer(i);
      const LayerSums sums = by_hand.run(w);
      expect_layer(packed, i, toy, balanced(toy, std::move(w), sums), card);
    }
  }
}

}  // namespace fut::test
