// Four matrices, each with its own statistics.
#include "engine/quantize_layer.h"

#include <numeric>

namespace fut {

double relative_error(const HostMatrix& w, const QuantizedMatrix& q,
                      std::span<const float> importance, const ParallelFor& parallel_for) {
  FUT_CHECK(w.rows == q.rows && w.cols == q.cols && std::ssize(importance) == w.cols,
            "{} x {} against {} x {}, {} importances", w.rows, w.cols, q.rows, q.cols,
            importance.size());
  std::vector<double> errors(static_cast<std::size_t>(w.rows)), energies(errors.size());
  run_parallel(parallel_for, w.rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      double error = 0, energy = 0;
      for (std::int64_t c = 0; c < w.cols; ++c) {
        const double value = w.row(r)[c];
        const double off = value - decode_int4(q.row(r)[c], {q.row_scales(r)[c / q.group_size]});
        const double weight = importance[static_cast<std::size_t>(c)];
        error += weight * off * off;
        energy += weight * value * value;
      }
      errors[static_cast<std::size_t>(r)] = error;
      energies[static_cast<std::size_t>(r)] = energy;
    }
  });
  const double energy = std::accumulate(energies.begin(), energies.end(), 0.0);
  return energy > 0 ? std::accumulate(errors.begin(), errors.end(), 0.0) / energy : 0;
}

QuantizedLayer quantize_layer_rtn(const StackedLayer& layer, const LayerStatistics& statistics,
                                  const PackedOptions& options, const ParallelFor& parallel_for,
                                  const MatrixDone& done) {
  const std::array<std::span<const float>, kNumPackedMatrices> importances = {
      statistics.qkv_input, statistics.o_input, statistics.gate_up_input, statistics.down_input};
  QuantizedLayer out;
  for (std::size_t m = 0; m < layer.size(); ++m) {
    out.matrices[m] = quantize_rtn(layer[m], importances[m], options.group_size, options.scale_rule,
                                   parallel_for);
    out.reports[m].name = layer[m].name;
    out.reports[m].relative_error =
        relative_error(layer[m], out.matrices[m], importances[m], parallel_for);
    if (done) done(layer[m]);
  }
  return out;
}

}  // namespace fut
