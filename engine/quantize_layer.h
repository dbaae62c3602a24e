// One layer's matrices from float32 to INT4, and what that cost them. Here: round to nearest, a
// function of weights and statistics alone. How codes are chosen is loader/int4_grid.h; the other
// method is quantize_gptq.h.
#pragma once

#include <array>
#include <functional>
#include <span>

#include "engine/calibration.h"
#include "loader/report_card.h"

namespace fut {

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

}  // namespace fut
