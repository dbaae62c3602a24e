// See the header.
#include "apps/bench/decode_steps.h"

#include "apps/bench/latency_plot.h"
#include "apps/bench/ops.h"
#include "apps/bench/sweep.h"
#include "apps/bench/timing.h"

namespace fut::app {
namespace {

constexpr double kMicroseconds = 1e6;  // of a second
constexpr double kEnergyUs = 1e6;      // for so long steps run whose energy is asked for
constexpr double kUsOfMs = 1e3;

std::string setting_text(const DecodeBenchOptions& wanted) {
  return fmt::format("batch {}, depth {}", wanted.sequences, wanted.depth_tokens);
}

std::string subject_text(const StepSubject& s) {
  return fmt::format("{}\n{}, {}, cache {}", s.name, s.backend.description(),
                     precision_name(s.model.precision()),
                     kv_cache_dtype_name(s.settings.front().kv_cache.dtype));
}

class StepBench {
 public:
  StepBench(const StepSubject& subject, const BenchOptions& options, MachineWatch& watch,
            Reporter& reporter)
      : subject_(subject),
        options_(options),
        watch_(watch),
        reporter_(reporter),
        roof_{subject.backend.measure_read_roof(), 0} {
    reporter.document()["read_roof_bytes_per_second"] = roof_.bytes_per_second;
  }

  void measure(const DecodeBenchOptions& wanted, bool draws) {
    DecodeBench decode(subject_.backend, subject_.model, wanted);
    const Backend::Procedure step = decode.step();
    static_cast<void>(times_of(subject_.backend, step, options_.warm_up, 1));
    watch_.begin();
    const std::vector<double> times = times_of(subject_.backend, step, 0, options_.repetitions);
    const MachineState machine = watch_.end();
    const Summary us = summarise(times);
    Json row = {{"batch", wanted.sequences}, {"depth", wanted.depth_tokens}};
    row["step"] = op_row("step", 1, decode.bytes_per_step(), us, roof_.bytes_per_second);
    row["tokens_per_second"] = wanted.sequences / us.median * kMicroseconds;
    row["machine"] = machine_json(machine);
    show_step(wanted, row, machine);
    if (options_.energy) add_energy(wanted, step, row);
    add_ops(decode, draws, row);
    if (draws) add_series(wanted, times);
    add_row(std::move(row));
  }

  void draw(Output& plot) {
    roof_.flops_per_second = subject_.backend.measure_product_roof();
    const Roofline roofline = roofline_of(drawn_ops_, roof_);
    plot.write(latency_plot(series_, &roofline));
    plot.finish();
  }

 private:
  [[nodiscard]] bool is_sweep() const { return subject_.settings.size() > 1; }

  void show_step(const DecodeBenchOptions& wanted, const Json& row, const MachineState& machine) {
    const std::string setting = setting_text(wanted);
    std::string text;
    if (!is_sweep()) {
      text = fmt::format("{}, {}\n", subject_text(subject_), setting);
    } else {
      if (!shown_) text = subject_text(subject_) + '\n';
      text += setting + ": ";
    }
    shown_ = true;
    const Json& step = row["step"];
    text += fmt::format(
        "step {:.4f} ms (p99 {:.4f}), {:.0f} tokens/s, {:.3f} GB to read, {:.1f} % of {}{}\n",
        step["us"].get<double>() / kUsOfMs, step["us_p99"].get<double>() / kUsOfMs,
        row["tokens_per_second"].get<double>(), step["bytes"].get<double>() / 1e9,
        100 * step["of_roof"].get<double>(), bandwidth_text(roof_.bytes_per_second),
        marks_text(machine));
    const std::string seen = machine_text(machine);
    if (!seen.empty()) text += "machine " + seen + '\n';
    reporter_.text(text);
  }

  void add_energy(const DecodeBenchOptions& wanted, const Backend::Procedure& step, Json& row) {
    watch_.begin();
    const std::vector<double> times = run_for(subject_.backend, step, kEnergyUs);
    const MachineState machine = watch_.end();
    const double tokens = static_cast<double>(times.size()) * wanted.sequences;
    row["energy"] = energy_json(machine, tokens);
    reporter_.text(fmt::format("energy {}\n", energy_text(machine, tokens)));
  }

  // The roofline has the ops of the first setting on it.
  void add_ops(DecodeBench& decode, bool draws, Json& row) {
    const bool shows = options_.log.verbosity >= kInfoVerbosity;
    const bool drawn = draws && series_.empty();
    if (!shows && !drawn) return;
    const Json ops =
        measure_ops(subject_.backend, decode, options_.warm_up, options_.repetitions, roof_);
    if (drawn) drawn_ops_ = ops;
    if (!shows) return;
    row["ops"] = ops;
    reporter_.text(ops_text(ops));
  }

  void add_series(const DecodeBenchOptions& wanted, const std::vector<double>& times) {
    std::vector<double> ms;
    for (const double t : times) ms.push_back(t / kUsOfMs);
    series_.push_back(
        {fmt::format("decode step, depth {}, batch {}", wanted.depth_tokens, wanted.sequences), ms,
         histogram(ms)});
  }

  void add_row(Json row) {
    if (!is_sweep()) {
      reporter_.document().update(row);
      return;
    }
    reporter_.line(row);
    reporter_.document()["steps"].push_back(std::move(row));
  }

  const StepSubject& subject_;
  const BenchOptions& options_;
  MachineWatch& watch_;
  Reporter& reporter_;
  MeasuredRoof roof_;
  bool shown_ = false;  // the subject
  Json drawn_ops_;
  std::vector<PlotSeries> series_;
};

}  // namespace

void measure_steps(const StepSubject& subject, const BenchOptions& options, MachineWatch& watch,
                   Output* plot, Reporter& reporter) {
  StepBench bench(subject, options, watch, reporter);
  measure_each(subject.settings, reporter,
               [&](const DecodeBenchOptions& wanted) { bench.measure(wanted, plot != nullptr); });
  if (plot != nullptr) bench.draw(*plot);
  reporter.finish();
}

}  // namespace fut::app
