// The quantiser on trained models: what is done to the weights before they are rounded changes
// nothing, and what rounds them better on the calibration text does so on text it never saw.
//
// All comparisons run in float32: transformed and dequantised weights are written as checkpoints,
// so that no other rounding is in the way.
#include <cmath>
#include <gtest/gtest.h>

#include "engine/parallel.h"
#include "engine/quantize.h"
#include "engine/quantize_gptq.h"
#include "loader/expected_tensors.h"
#include "tests/support/heldout.h"
#include "tests/support/model_runner.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"
#include "tests/support/toy_models.h"
#include "tokenizer/tokenizer.h"

namespace fut::test {
namespace {

// A trained model and the text that it was never trained on.
struct Trained {
  std::filesystem::path model;
  std::filesystem::path heldout;
};

Trained demo() {
  return {source_path("configs/demo-6m"), source_path("tests/golden/demo-6m")};
}
Trained novels() {
  return {test_data("models/novels-19m"), test_data("models/novels-19m")};
}

// Everything that quantize_folder does up to the packing.
class Quantiser {
 public:
  Quantiser(const std::filesystem::path& model, const PackedOptions& options)
      : options_(options),
        config_(load_model_config(model)),
        checkpoint_(Checkpoint::open(model, config_)),
        backend_(make_cpu()),
        parallel_for_(parallel_for_on_threads(0)),
        weights_(checkpoint_, config_, options_, parallel_for_),
        runner_(*backend_, config_, config_.max_position_embeddings),
        ids_(Tokenizer::load(model).encode(read_file(source_path("configs/calibration.txt")), {})) {
  }

  [[nodiscard]] std::vector<StackedLayer> transformed() {
    const CalibrationWindows windows = windows_of(kStatisticsWindow, kRtnCalibrationTokens);
    Calibrator calibrator(*backend_, weights_, config_, options_, runner_, windows);
    std::vector<StackedLayer> layers;
    for (int i = 0; i < config_.num_layers; ++i) {
      CalibratedLayer layer = calibrator.next();
      statistics_.push_back(std::move(layer.statistics));
      layers.push_back(stack_layer(std::move(layer.weights), i));
    }
    return layers;
  }
  // After transformed().
  [[nodiscard]] std::vector<QuantizedLayer> rounded(const std::vector<StackedLayer>& layers) {
    std::vector<QuantizedLayer> out;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      out.push_back(quantize_layer_rtn(layers[i], statistics_[i], options_, parallel_for_));
    }
    return out;
  }
  [[nodiscard]] std::vector<QuantizedLayer> gptq(const std::vector<StackedLayer>& layers,
                                                 std::int64_t tokens) {
    const CalibrationWindows windows = windows_of(kGptqWindow, tokens);
    GptqOptions options;
    options.group_size = options_.group_size;
    LayerRunner quantised(*backend_, config_, config_.max_position_embeddings);
    SequentialGptq gptq(*backend_, weights_, quantised, runner_, windows, options, parallel_for_);
    std::vector<QuantizedLayer> out;
    for (const StackedLayer& layer : layers) out.push_back(gptq.next(layer));
    return out;
  }

  // A float32 checkpoint with gains of one and an embedding that is not rounded. Returns the
  // folder.
  std::filesystem::path write(const std::filesystem::path& folder,
                              const std::vector<StackedLayer>& layers) const;

 private:
  static std::unique_ptr<Backend> make_cpu() {
    std::string notice;
    return make_backend({.kind = DeviceRequest::Kind::Cpu}, notice);
  }
  [[nodiscard]] CalibrationWindows windows_of(int window, std::int64_t tokens) const {
    return choose_windows(ids_, std::min(window, config_.max_position_embeddings), tokens);
  }

  PackedOptions options_;
  ModelConfig config_;
  Checkpoint checkpoint_;
  std::unique_ptr<Backend> backend_;
  ParallelFor parallel_for_;
  WeightTransforms weights_;
  LayerRunner runner_;
  std::vector<std::int32_t> ids_;
  std::vector<LayerStatistics> statistics_;
};

std::filesystem::path Quantiser::write(const std::filesystem::path& folder,
                                       const std::vector<StackedLayer>& layers) const {
  std::vector<NamedTensor> tensors;
  const auto add = [&](const ExpectedTensor& tensor, std::span<const float> values) {
    tensors.push_back(make_tensor(tensor.name, DType::F32, tensor.shape, values));
  };
  const std::vector<float> ones(static_cast<std::size_t>(config_.hidden_size), 1.0F);
  const auto add_matrix = [&](GlobalTensor which, const HostMatrix& w) {
    add(expected_global_tensor(config_, which), w.values);
  };
  add_matrix(GlobalTensor::EmbedTokens, weights_.embedding(0, config_.vocab_size));
  add_matrix(GlobalTensor::LmHead, weights_.head(0, config_.vocab_size));
  add(expected_global_tensor(config_, GlobalTensor::FinalNorm), ones);
  for (int i = 0; i < config_.num_layers; ++i) {
    const StackedLayer& layer = layers[static_cast<std::size_t>(i)];
    const auto add_gain = [&](LayerTensor which) {
      add(expected_layer_tensor(config_, i, which), ones);
    };
    // The parts of a stacked matrix, one below the other.
    const auto add_parts = [&](const HostMatrix& w, std::initializer_list<LayerTensor> parts) {
      std::span<const float> left = w.values;
      for (const LayerTensor which : parts) {
        const ExpectedTensor tensor = expected_layer_tensor(config_, i, which);
        const auto count = static_cast<std::size_t>(tensor.shape[0] * tensor.shape[1]);
        add(tensor, left.first(count));
        left = left.subspan(count);
      }
    };
    add_gain(LayerTensor::InputLayernorm);
    add_gain(LayerTensor::PostAttentionLayernorm);
    add_parts(layer[0], {LayerTensor::QProj, LayerTensor::KProj, LayerTensor::VProj});
    add_parts(layer[1], {LayerTensor::OProj});
    add_parts(layer[2], {LayerTensor::GateProj, LayerTensor::UpProj});
    add_parts(layer[3], {LayerTensor::DownProj});
  }
  std::filesystem::create_directory(folder);
  write_safetensors(folder / "model.safetensors", tensors);
  std::filesystem::copy_file(checkpoint_.files().front().path().parent_path() / "config.json",
                             folder / "config.json");
  std::filesystem::permissions(folder / "config.json", std::filesystem::perms::owner_all);
  set_json_key(folder / "config.json", "tie_word_embeddings", false);
  return folder;
}

std::vector<StackedLayer> dequantised(std::vector<StackedLayer> layers,
                                      const std::vector<QuantizedLayer>& quantized) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (std::size_t m = 0; m < layers[i].size(); ++m) {
      layers[i][m].values = dequantize(quantized[i].matrices[m]).values;
    }
  }
  return layers;
}

PackedOptions transforms(bool rotate, bool kv_rotation, bool balance) {
  PackedOptions options;
  options.rotate = rotate;
  options.kv_rotation = kv_rotation;
  options.balance_qk = options.balance_ffn = balance;
  return options;
}

PerplexityResult score(const std::filesystem::path& model, const TokenWindows& windows,
                       const std::filesystem::path& against) {
  const ModelRunner reference(against);
  return ModelRunner(model).score(windows, StepKind::Prefill, &reference);
}

// ---- before rounding: the same function ---------------------------------------------------------

// Relative to the perplexity of the model as it was.
void expect_same_function(const Trained& trained, int windows) {
  const TempFolder folder;
  Quantiser quantiser(trained.model, transforms(true, true, true));
  const auto transformed = quantiser.write(folder / "transformed", quantiser.transformed());
  const PerplexityResult result =
      score(transformed, heldout_windows(trained.heldout, windows, 512), trained.model);
  EXPECT_NEAR(result.perplexity / result.against->perplexity, 1, 1e-5);  // asked for
  EXPECT_NE(result.token_nll,
            ModelRunner(trained.model)
                .score(heldout_windows(trained.heldout, windows, 512), StepKind::Prefill)
                .token_nll)
      << "rounded elsewhere: the weights are other ones";
}

void expect_powers_of_two_change_no_bit(const Trained& trained, int windows) {
  const TempFolder folder;
  Quantiser evened(trained.model, transforms(false, true, true));
  Quantiser uneven(trained.model, transforms(false, true, false));
  const std::vector<StackedLayer> evened_layers = evened.transformed();
  const std::vector<StackedLayer> uneven_layers = uneven.transformed();
  EXPECT_FALSE(evened_layers.back()[0].values == uneven_layers.back()[0].values);
  EXPECT_FALSE(evened_layers.back()[3].values == uneven_layers.back()[3].values);
  const TokenWindows text = heldout_windows(trained.heldout, windows, 256);
  const auto nll = [&](const std::filesystem::path& model) {
    return ModelRunner(model).score(text, StepKind::Prefill).token_nll;
  };
  EXPECT_EQ(nll(evened.write(folder / "evened", evened_layers)),
            nll(uneven.write(folder / "uneven", uneven_layers)));
}

TEST(DemoModelTransformed, ComputesWhatItDid) {
  expect_same_function(demo(), 2);
}
TEST(DemoModelTransformed, PowersOfTwoChangeNoBit) {
  expect_powers_of_two_change_no_bit(demo(), 1);
}
TEST(NovelsModelTransformed, ComputesWhatItDid) {
  FUT_REQUIRE_TEST_DATA(novels().model);
  expect_same_function(novels(), 4);
}
TEST(NovelsModelTransformed, PowersOfTwoChangeNoBit) {
  FUT_REQUIRE_TEST_DATA(novels().model);
  expect_powers_of_two_change_no_bit(novels(), 2);
}

// ---- rounding -----------------------------------------------------------------------------------

struct Judged {
  double kl = 0;
  double kl_error = 0;
};

// The divergence of dequantised weights on held-out text.
Judged judge(const Quantiser& quantiser, const std::filesystem::path& folder,
             const std::vector<StackedLayer>& layers, const std::vector<QuantizedLayer>& quantized,
             const Trained& trained, const TokenWindows& text) {
  const auto model = quantiser.write(folder, dequantised(layers, quantized));
  const PerplexityResult result = score(model, text, trained.model);
  return {result.against->kl, result.against->kl_error};
}

// GPTQ serves every matrix at least as well as rounding on the calibration text, and the whole
// model better on held-out text: by more than two standard errors of both divergences.
void expect_gptq_wins(const Trained& trained, std::int64_t tokens, int windows) {
  const TempFolder folder;
  Quantiser quantiser(trained.model, transforms(true, true, true));
  const std::vector<StackedLayer> layers = quantiser.transformed();
  const std::vector<QuantizedLayer> swept = quantiser.gptq(layers, tokens);
  for (const QuantizedLayer& layer : swept) {
    for (const MatrixReport& report : layer.reports) {
      EXPECT_LE(report.relative_loss, report.rtn_loss) << report.name;
      EXPECT_GT(report.relative_loss, 0) << report.name;
    }
  }
  const TokenWindows text = heldout_windows(trained.heldout, windows, 512);
  const Judged gptq = judge(quantiser, folder / "gptq", layers, swept, trained, text);
  const Judged rtn =
      judge(quantiser, folder / "rtn", layers, quantiser.rounded(layers), trained, text);
  EXPECT_LT(gptq.kl, rtn.kl - 2 * std::hypot(gptq.kl_error, rtn.kl_error));
  testing::Test::RecordProperty("kl_gptq", std::to_string(gptq.kl));
  testing::Test::RecordProperty("kl_rtn", std::to_string(rtn.kl));
}

// Groups of 64 and searched scales are each worth their while.
void expect_finer_is_better(const Trained& trained, int windows) {
  const TempFolder folder;
  const TokenWindows text = heldout_windows(trained.heldout, windows, 512);
  const auto judge_options = [&](const std::string& name, int group_size, ScaleRule rule) {
    PackedOptions options = transforms(false, true, true);
    options.group_size = group_size;
    options.scale_rule = rule;
    Quantiser quantiser(trained.model, options);
    const std::vector<StackedLayer> layers = quantiser.transformed();
    return judge(quantiser, folder / name, layers, quantiser.rounded(layers), trained, text);
  };
  const Judged g64 = judge_options("g64", 64, ScaleRule::Searched);
  const Judged g128 = judge_options("g128", 128, ScaleRule::Searched);
  const Judged min_max = judge_options("min_max", 128, ScaleRule::MinMax);
  EXPECT_LT(g64.kl, g128.kl);
  EXPECT_LT(g128.kl, min_max.kl);
}

TEST(DemoModelQuantised, GptqIsBetterThanRoundToNearest) {
  expect_gptq_wins(demo(), 8192, 2);
}
TEST(DemoModelQuantised, FinerGroupsAndSearchedScalesAreBetter) {
  expect_finer_is_better(demo(), 2);
}
TEST(NovelsModelQuantised, GptqIsBetterThanRoundToNearest) {
  FUT_REQUIRE_TEST_DATA(novels().model);
  expect_gptq_wins(novels(), 16384, 8);
}
TEST(NovelsModelQuantised, FinerGroupsAndSearchedScalesAreBetter) {
  FUT_REQUIRE_TEST_DATA(novels().model);
  expect_finer_is_better(novels(), 8);
}

}  // namespace
}  // namespace fut::test
