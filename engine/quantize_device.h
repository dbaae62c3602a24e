// Quantising on a device: a layer's weights come as float32 from the host, everything else is
// computed where they lie, through the ops of kernels/ops_offline.h, and packed bytes come back.
// Calibration runs in BF16 there, so that statistics differ from the host's in their last bits; from
// the statistics on, every bit of round to nearest is the host's. GPTQ's part is quantize_device_gptq.h.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "engine/calibration_sums.h"
#include "engine/quantize_device_gptq.h"
#include "engine/quantize_pack.h"

namespace fut {

// The sums of a layer over all windows, in the backend's memory.
class DeviceSums {
 public:
  DeviceSums(Backend& backend, const ModelConfig& config);

  void clear();
  // One more window. Nothing of x is scaled.
  void add(ColumnSums LayerSums::*member, ConstActivationView x);
  [[nodiscard]] LayerSums download(std::int64_t tokens) const;

 private:
  struct Part {
    ColumnSums LayerSums::*member;
    std::int64_t begin, cols;
  };
  Backend& backend_;
  std::vector<Part> parts_;
  std::int64_t columns_ = 0;  // of all parts
  DeviceBuffer squares_, largest_;
};

class DeviceQuantizer {
 public:
  // What is passed must outlive it. `backend` has offline_ops(). Takes the memory of one layer three
  // times over in float32, at most, and that of a DeviceGptq where there are windows for one: they
  // choose the method. `tick` is called now and then; what it throws ends next().
  DeviceQuantizer(Backend& backend, const WeightTransforms& weights, const ModelConfig& config,
                  const PackedOptions& options, const CalibrationWindows& windows,
                  std::function<void()> tick, const CalibrationWindows& gptq_windows = {});

  // Layers in order; `w` as WeightTransforms has it, `done` called with the number of weights of each
  // matrix. `out` may have served before: its memory serves again. Throws Data as Calibrator,
  // quantize_rtn and GptqOnDevice.
  using Reports = std::array<MatrixReport, kNumPackedMatrices>;
  Reports next(const TransformedLayer& w, PackedLayer& out,
               const std::function<void(std::uint64_t weights)>& done = {});

  // All that is kept from one layer to the next.
  [[nodiscard]] std::vector<HiddenStates*> hidden();
  // As of Calibrator.
  void go_on_at(int index) { next_layer_ = index; }

 private:
  void load(const TransformedLayer& w);
  void round_for_runner();
  [[nodiscard]] LayerSums calibrate();
  void shift(const LayerExponents& exponents);
  void shift(PackedMatrix which, const std::vector<std::int32_t>& exponents, bool of_columns);
  MatrixReport quantize(PackedMatrix which, std::span<const float> importance,
                        PackedMatrixBytes& out);
  void round(PackedMatrix which, const std::string& name, std::span<const float> importance);
  void refuse_bad_weight(const PackedMatrixShape& shape, const std::string& name,
                         const float* weights) const;
  void pack_fp8(PackedMatrix which, const LayerStatistics& statistics, PackedMatrixBytes& out);
  [[nodiscard]] MatrixView<float> matrix(PackedMatrix which) const;

  Backend& backend_;
  OfflineOps& ops_;
  const ModelConfig& config_;
  const PackedOptions& options_;
  ParallelFor parallel_for_;
  LayerRunner runner_;
  HiddenStates hidden_;
  DeviceSums sums_;
  std::int64_t tokens_;
  int next_layer_ = 0;
  std::unique_ptr<DeviceGptq> gptq_;
  std::array<DeviceBuffer, kNumPackedMatrices> weights_;  // float32
  // As large as the largest matrix needs them.
  DeviceBuffer codes_, scales_, packed_, row_numbers_, row_energies_, importance_, exponents_;
  DeviceBuffer first_bad_;
};

}  // namespace fut
