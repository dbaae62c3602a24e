// Inputs are recomputed rather than kept: hidden states are all that grows with the text.
#include "engine/quantize_gptq.h"

namespace fut {
namespace {

std::size_t index_of(PackedMatrix which) {
  return static_cast<std::size_t>(which);
}

HostRows difference(HostRows a, const HostRows& b) {
  for (std::size_t i = 0; i < a.values.size(); ++i) a.values[i] -= b.values[i];
  return a;
}

}  // namespace

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

GptqOptions gptq_options(const PackedOptions& options) {
  GptqOptions out;
  out.group_size = options.group_size;
  return out;
}

void add_reports(ReportCard& card, std::span<const MatrixReport> reports) {
  for (const MatrixReport& report : reports) {
    card.matrices.push_back(report);
    if (report.note.starts_with(kRoundedToNearest)) {
      card.notices.push_back(fmt::format("{}: {}", report.name, report.note));
    }
  }
}

SequentialGptq::SequentialGptq(Backend& backend, const WeightTransforms& weights,
                               LayerRunner& quantised, LayerRunner& original,
                               const CalibrationWindows& windows, const GptqOptions& options,
                               ParallelFor parallel_for)
    : quantised_{quantised, HiddenStates(backend, weights, windows)},
      original_{original, options.upstream_share > 0 ? HiddenStates(backend, weights, windows)
                                                     : HiddenStates(backend, weights, {})},
      options_(options),
      parallel_for_(std::move(parallel_for)) {}

SequentialGptq::Moments SequentialGptq::moments(std::int64_t size, const Input& input) {
  Moments sums{SquareMatrix(size), SquareMatrix(looks_upstream() ? size : 0)};
  for (std::int64_t i = 0; i < quantised_.hidden.num_windows(); ++i) {
    const HostRows x = input(quantised_.runner, quantised_.hidden.window(i));
    accumulate_hessian(sums.h, x.view(), parallel_for_);
    if (!looks_upstream()) continue;
    const HostRows off = difference(input(original_.runner, original_.hidden.window(i)), x);
    accumulate_products(sums.g, off.view(), x.view(), parallel_for_);
  }
  mirror_lower(sums.h);
  return sums;
}

HostMatrix SequentialGptq::quantize(const HostMatrix& w, const Moments& moments, PackedMatrix which,
                                    QuantizedLayer& out) const {
  const GptqFactor factor = factor_hessian(w.name, moments.h, options_, parallel_for_);
  const HostMatrix target =
      looks_upstream()
          ? upstream_target(w, moments.g, factor, options_.upstream_share, parallel_for_)
          : w;
  GptqResult result = quantize_gptq(target, moments.h, factor, options_, parallel_for_);
  MatrixReport& report = out.reports[index_of(which)];
  report.name = w.name;
  report.relative_error =
      relative_error(w, result.matrix, column_importance(diagonal_of(moments.h)), parallel_for_);
  if (result.report.output_energy > 0) {
    report.relative_loss = result.report.loss / result.report.output_energy;
    report.rtn_loss = result.report.rtn_loss / result.report.output_energy;
  }
  report.note = note_of(factor);
  HostMatrix seen = dequantize(result.matrix);
  out.matrices[index_of(which)] = std::move(result.matrix);
  return seen;
}

void SequentialGptq::load_original(const StackedLayer& layer) {
  LayerRunner& runner = original_.runner;
  runner.set_qkv_proj({&layer[index_of(PackedMatrix::QkvProj)]});
  runner.set_o_proj({&layer[index_of(PackedMatrix::OProj)]});
  runner.set_gate_up_proj({&layer[index_of(PackedMatrix::GateUpProj)]});
  runner.set_down_proj({&layer[index_of(PackedMatrix::DownProj)]});
}

void SequentialGptq::finish_layer() {
  for (Stream* stream : {&quantised_, &original_}) {
    for (std::int64_t i = 0; i < stream->hidden.num_windows(); ++i) {
      stream->runner.feed(stream->hidden.window(i));
      stream->runner.add_feed(stream->hidden.window(i));
    }
  }
}

QuantizedLayer SequentialGptq::next(const StackedLayer& layer, const MatrixDone& done) {
  if (looks_upstream()) load_original(layer);
  QuantizedLayer out;
  const auto quantize_next = [&](PackedMatrix which, const Input& input) {
    const HostMatrix& w = layer[index_of(which)];
    HostMatrix seen = quantize(w, moments(w.cols, input), which, out);
    if (done) done(w);
    return seen;
  };
  LayerRunner& runner = quantised_.runner;
  HostMatrix seen = quantize_next(PackedMatrix::QkvProj,
                                  [](LayerRunner& r, ActivationView x) { return r.normalised(x); });
  runner.set_qkv_proj({&seen});
  seen = quantize_next(PackedMatrix::OProj, [](LayerRunner& r, ActivationView x) {
    r.attend(x);
    return r.attention_output();
  });
  runner.set_o_proj({&seen});
  seen = quantize_next(PackedMatrix::GateUpProj, [](LayerRunner& r, ActivationView x) {
    r.attend(x);
    r.add_attention(x);
    return r.normalised(x);
  });
  runner.set_gate_up_proj({&seen});
  seen = quantize_next(PackedMatrix::DownProj, [](LayerRunner& r, ActivationView x) {
    r.feed(x);
    return r.swiglu_output();
  });
  runner.set_down_proj({&seen});
  finish_layer();
  return out;
}

}  // namespace fut
