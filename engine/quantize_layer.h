// One layer's matrices from float32 to INT4: round to nearest, a function of weights and statistics
// alone, and GPTQ, which lets the layers that are quantised already process the calibration text.
// How codes are chosen is loader/int4_grid.h and loader/gptq.h.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <string_view>

#include "engine/calibration.h"
#include "loader/gptq.h"
#include "loader/report_card.h"

namespace fut {

// How the note of a matrix begins that GPTQ had to leave to round-to-nearest.
inline constexpr std::string_view kRoundedToNearest = "rounded to nearest";

struct QuantizedLayer {
  std::array<QuantizedMatrix, kNumPackedMatrices> matrices;
  std::array<MatrixReport, kNumPackedMatrices> reports;
};

// Called when a matrix is done.
using MatrixDone = std::function<void(const HostMatrix& w)>;

// Sum of importance * (w - q)^2 over sum of importance * w^2, row by row, then over rows; 0 for a
// matrix of zeros.
[[nodiscard]] double relative_error(const HostMatrix& w, const QuantizedMatrix& q,
                                    std::span<const float> importance,
                                    const ParallelFor& parallel_for);

// Throws Data as quantize_rtn.
[[nodiscard]] QuantizedLayer quantize_layer_rtn(const StackedLayer& layer,
                                                const LayerStatistics& statistics,
                                                const PackedOptions& options,
                                                const ParallelFor& parallel_for,
                                                const MatrixDone& done = {});

// Layers in order. True sequential: the inputs of a matrix are those that the quantised matrices
// before it give, of its own layer too.
class SequentialGptq {
 public:
  // What is passed must outlive it; `runner` is free between two calls.
  SequentialGptq(Backend& backend, const WeightTransforms& weights, LayerRunner& runner,
                 const CalibrationWindows& windows, const GptqOptions& options,
                 ParallelFor parallel_for);

  // Throws Data as factor_hessian and quantize_gptq.
  [[nodiscard]] QuantizedLayer next(const StackedLayer& layer, const MatrixDone& done = {});

 private:
  // The rows that `input` gives for each window, summed up.
  using Input = std::function<HostRows(MatrixView<float> x)>;
  [[nodiscard]] SquareMatrix hessian(std::int64_t size, const Input& input) const;
  // Quantises matrix `which`, and returns it as the next ops should see it.
  HostMatrix quantize(const HostMatrix& w, SquareMatrix h, PackedMatrix which,
                      QuantizedLayer& out) const;

  LayerRunner& runner_;
  HiddenStates hidden_;
  GptqOptions options_;
  ParallelFor parallel_for_;
};

}  // namespace fut
