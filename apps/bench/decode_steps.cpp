// See the header.
#include "apps/bench/decode_steps.h"

#include "apps/bench/latency_plot.h"
#include "apps/bench/ops.h"
#include "apps/bench/timing.h"

namespace fut::app {
namespace {

constexpr double kMicroseconds = 1e6;  // of a second
constexpr double kEnergyUs = 1e6;      // for so long steps run whose energy is asked for
constexpr double kUsOfMs = 1e3;

std::string step_text(const StepSubject& s, const Json& document, const MachineState& machine) {
  const Json& row = document["step"];
  std::string text = fmt::format(
      "{}\n{}, {}, cache {}, batch {}, depth {}\n"
      "step {:.4f} ms (p99 {:.4f}), {:.0f} tokens/s, {:.3f} GB to read, {:.1f} % of {}{}\n",
      s.name, s.backend.description(), precision_name(s.model.precision()),
      kv_cache_dtype_name(s.wanted.kv_cache.dtype), s.wanted.sequences, s.wanted.depth_tokens,
      row["us"].get<double>() / kUsOfMs, row["us_p99"].get<double>() / kUsOfMs,
      document["tokens_per_second"].get<double>(), row["bytes"].get<double>() / 1e9,
      100 * row["of_roof"].get<double>(),
      bandwidth_text(document["read_roof_bytes_per_second"].get<double>()), marks_text(machine));
  const std::string seen = machine_text(machine);
  if (!seen.empty()) text += "machine " + seen + '\n';
  return text;
}

void add_energy(const StepSubject& s, const Backend::Procedure& step, MachineWatch& watch,
                Reporter& reporter) {
  watch.begin();
  const std::vector<double> times = run_for(s.backend, step, kEnergyUs);
  const MachineState machine = watch.end();
  const double tokens = static_cast<double>(times.size()) * s.wanted.sequences;
  reporter.document()["energy"] = energy_json(machine, tokens);
  reporter.text(fmt::format("energy {}\n", energy_text(machine, tokens)));
}

}  // namespace

void measure_steps(const StepSubject& s, const BenchOptions& options, MachineWatch& watch,
                   Output* plot, Reporter& reporter) {
  MeasuredRoof roof{s.backend.measure_read_roof(), 0};
  DecodeBench decode(s.backend, s.model, s.wanted);
  const Backend::Procedure step = decode.step();
  static_cast<void>(times_of(s.backend, step, options.warm_up, 1));
  watch.begin();
  const std::vector<double> times = times_of(s.backend, step, 0, options.repetitions);
  const MachineState machine = watch.end();
  const Summary us = summarise(times);
  Json& document = reporter.document();
  document["read_roof_bytes_per_second"] = roof.bytes_per_second;
  document["step"] = op_row("step", 1, decode.bytes_per_step(), us, roof.bytes_per_second);
  document["tokens_per_second"] = s.wanted.sequences / us.median * kMicroseconds;
  document["machine"] = machine_json(machine);
  reporter.text(step_text(s, document, machine));
  if (options.energy) add_energy(s, step, watch, reporter);
  const bool shows_ops = options.log.verbosity >= kInfoVerbosity;
  if (shows_ops || plot != nullptr) {
    const Json ops = measure_ops(s.backend, decode, options.warm_up, options.repetitions, roof);
    if (shows_ops) {
      document["ops"] = ops;
      reporter.text(ops_text(ops));
    }
    if (plot != nullptr) {
      std::vector<double> ms;
      for (const double t : times) ms.push_back(t / kUsOfMs);
      const PlotSeries series{
          fmt::format("decode step, depth {}, batch {}", s.wanted.depth_tokens, s.wanted.sequences),
          ms, histogram(ms)};
      roof.flops_per_second = s.backend.measure_product_roof();
      const Roofline roofline = roofline_of(ops, roof);
      plot->write(latency_plot({&series, 1}, &roofline));
      plot->finish();
    }
  }
  reporter.finish();
}

}  // namespace fut::app
