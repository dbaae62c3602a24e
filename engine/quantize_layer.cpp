// Inputs are recomputed rather than kept: hidden states are all that grows with the text.
#include "engine/quantize_layer.h"

#include <numeric>

namespace fut {
namespace {

std::size_t index_of(PackedMatrix which) {
  return static_cast<std::size_t>(which);
}

// The diagonal of H over its mean: what quantize_gptq weighs columns with.
std::vector<float> importance_of(const SquareMatrix& h) {
  double mean = 0;
  for (std::int64_t i = 0; i < h.size; ++i) mean += h.row(i)[i] / static_cast<double>(h.size);
  std::vector<float> importance;
  for (std::int64_t i = 0; i < h.size; ++i) {
    importance.push_back(static_cast<float>(h.row(i)[i] / mean));
  }
  return importance;
}

std::string note_of(const GptqFactor& factor) {
  if (!factor.usable) {
    return fmt::format(
        "{}: the inputs' Hessian could not be factored, not even with {} of its mean added",
        kRoundedToNearest, factor.damping);
  }
  std::string note;
  if (factor.damping_raises > 0) {
    note = fmt::format("damping raised to {}", factor.damping);
  }
  if (!factor.dead_columns.empty()) {
    note += fmt::format("{}{} inputs are always zero", note.empty() ? "" : "; ",
                        factor.dead_columns.size());
  }
  return note;
}

}  // namespace

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

// ---- round to nearest ---------------------------------------------------------------------------

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

// ---- GPTQ ---------------------------------------------------------------------------------------

SequentialGptq::SequentialGptq(Backend& backend, const WeightTransforms& weights,
                               LayerRunner& runner, const CalibrationWindows& windows,
                               const GptqOptions& options, ParallelFor parallel_for)
    : runner_(runner),
      hidden_(backend, weights, windows),
      options_(options),
      parallel_for_(std::move(parallel_for)) {}

SquareMatrix SequentialGptq::hessian(std::int64_t size, const Input& input) const {
  SquareMatrix h(size);
  for (std::int64_t i = 0; i < hidden_.num_windows(); ++i) {
    accumulate_hessian(h, input(hidden_.window(i)).view(), parallel_for_);
  }
  mirror_lower(h);
  return h;
}

HostMatrix SequentialGptq::quantize(const HostMatrix& w, SquareMatrix h, PackedMatrix which,
                                    QuantizedLayer& out) const {
  const GptqFactor factor = factor_hessian(w.name, h, options_, parallel_for_);
  GptqResult result = quantize_gptq(w, h, factor, options_, parallel_for_);
  MatrixReport& report = out.reports[index_of(which)];
  report.name = w.name;
  report.relative_error = relative_error(w, result.matrix, importance_of(h), parallel_for_);
  if (result.report.output_energy > 0) {
    report.relative_loss = result.report.loss / result.report.output_energy;
    report.rtn_loss = result.report.rtn_loss / result.report.output_energy;
  }
  report.note = note_of(factor);
  HostMatrix seen = dequantize(result.matrix);
  out.matrices[index_of(which)] = std::move(result.matrix);
  return seen;
}

QuantizedLayer SequentialGptq::next(const StackedLayer& layer, const MatrixDone& done) {
  const auto matrix = [&](PackedMatrix which) -> const HostMatrix& {
    return layer[index_of(which)];
  };
  QuantizedLayer out;
  const auto quantize_next = [&](PackedMatrix which, const Input& input) {
    const HostMatrix& w = matrix(which);
    HostMatrix seen = quantize(w, hessian(w.cols, input), which, out);
    if (done) done(w);
    return seen;
  };
  HostMatrix seen = quantize_next(PackedMatrix::QkvProj,
                                  [&](MatrixView<float> x) { return runner_.normalised(x); });
  runner_.set_qkv_proj({&seen});
  seen = quantize_next(PackedMatrix::OProj, [&](MatrixView<float> x) {
    runner_.attend(x);
    return runner_.attention_output();
  });
  runner_.set_o_proj({&seen});
  seen = quantize_next(PackedMatrix::GateUpProj, [&](MatrixView<float> x) {
    runner_.attend(x);
    runner_.add_attention(x);
    return runner_.normalised(x);
  });
  runner_.set_gate_up_proj({&seen});
  seen = quantize_next(PackedMatrix::DownProj, [&](MatrixView<float> x) {
    runner_.feed(x);
    return runner_.swiglu_output();
  });
  runner_.set_down_proj({&seen});
  for (std::int64_t i = 0; i < hidden_.num_windows(); ++i) {
    runner_.feed(hidden_.window(i));
    runner_.add_feed(hidden_.window(i));
  }
  return out;
}

}  // namespace fut
