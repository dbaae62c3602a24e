// A small model that can be quantised, opened and ready for calibration.
#pragma once

#include <memory>
#include <random>
#include <string>

#include "engine/calibration.h"
#include "engine/parallel.h"
#include "tests/support/temp_folder.h"
#include "tests/support/toy_models.h"

namespace fut::test {

// Widths that can be packed: hidden 128, four query heads of 64 over two KV heads, 256 in between.
[[nodiscard]] inline ToyModelOptions quantizable_toy_model() {
  ToyModelOptions options;
  options.hidden_size = 128;
  options.num_q_heads = 4;
  options.num_kv_heads = 2;
  options.head_dim = 64;
  options.intermediate_size = 256;
  return options;
}

// `count` ids of the toy vocabulary's bytes.
[[nodiscard]] inline std::vector<std::int32_t> random_ids(std::int64_t count) {
  std::mt19937 engine(7);
  std::uniform_int_distribution<std::int32_t> any(0, 255);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (std::int32_t& id : ids) id = any(engine);
  return ids;
}

// Nothing is done to the weights but what must be.
[[nodiscard]] inline PackedOptions plain_options() {
  PackedOptions options;
  options.rotate = false;
  options.kv_rotation = false;
  options.balance_qk = false;
  options.balance_ffn = false;
  return options;
}

class QuantizeCase {
 public:
  explicit QuantizeCase(const std::filesystem::path& folder, const PackedOptions& pack = {},
                        int threads = 1, int max_tokens = 64)
      : options(pack),
        config(load_model_config(folder)),
        checkpoint(Checkpoint::open(folder, config)),
        backend(make_cpu(threads)),
        parallel_for(parallel_for_on_threads(threads)),
        weights(checkpoint, config, options, parallel_for),
        runner(*backend, config, max_tokens) {}

  // All layers.
  [[nodiscard]] std::vector<CalibratedLayer> calibrate(const CalibrationWindows& windows) {
    Calibrator calibrator(*backend, weights, config, options, runner, windows);
    std::vector<CalibratedLayer> layers;
    for (int i = 0; i < config.num_layers; ++i) layers.push_back(calibrator.next());
    return layers;
  }

  PackedOptions options;
  ModelConfig config;
  Checkpoint checkpoint;
  std::unique_ptr<Backend> backend;
  ParallelFor parallel_for;
  WeightTransforms weights;
  LayerRunner runner;

 private:
  static std::unique_ptr<Backend> make_cpu(int threads) {
    std::string notice;
    return make_backend({.kind = DeviceRequest::Kind::Cpu, .cpu_threads = threads}, notice);
  }
};

}  // namespace fut::test
