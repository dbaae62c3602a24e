// See the header.
#include "apps/bench/latency_report.h"

#include <algorithm>
#include <functional>

#include "apps/bench/histogram.h"
#include "apps/bench/latency_plot.h"
#include "apps/bench/statistics.h"
#include "apps/output.h"
#include "kernels/layout/kv_page.h"

namespace fut::app {
namespace {

constexpr double kMsPerSecond = 1000;

std::vector<double> values_of(const LatencyRow& row,
                              const std::function<double(const LatencySample&)>& value) {
  std::vector<double> values;
  for (const LatencySample& s : row.samples) values.push_back(value(s));
  return values;
}

// Time per output token after the first, of each request.
double per_token(const LatencySample& s) {
  double sum = 0;
  for (const double step : s.steps) sum += step;
  return s.steps.empty() ? 0 : sum / static_cast<double>(s.steps.size());
}

std::vector<double> all_steps(const LatencyRow& row) {
  std::vector<double> values;
  for (const LatencySample& s : row.samples)
    values.insert(values.end(), s.steps.begin(), s.steps.end());
  return values;
}

Json json_of(const Summary& s) {
  return {{"count", s.count}, {"mean", s.mean}, {"ci95", s.half_width}, {"min", s.least},
          {"p50", s.median},  {"p90", s.p90},   {"p99", s.p99},         {"max", s.most}};
}

// The clock during a step where it dropped.
std::optional<int> clock_while(const LatencyRow& row, const LatencySample& sample,
                               std::size_t step) {
  double ms = sample.prefill;
  for (std::size_t i = 0; i < step; ++i) ms += sample.steps[i];
  const auto after = [&](double milliseconds) {
    using Milliseconds = std::chrono::duration<double, std::milli>;
    return sample.start + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                              Milliseconds(milliseconds));
  };
  return clock_drop(row.machine, after(ms), after(ms + sample.steps[step]));
}

// Why a step may have taken longer, as far as its place and the device's clock tell.
std::string cause_of(const LatencyRow& row, const LatencySample& sample, std::size_t step) {
  if (const std::optional<int> mhz = clock_while(row, sample, step)) {
    return fmt::format("the clock dropped to {} MHz", *mhz);
  }
  if (step == 0) return "first step after the prompt";
  const std::size_t position = static_cast<std::size_t>(row.depth + row.prompt_tokens) + step;
  if (position % static_cast<std::size_t>(layout::kPageTokens) == 0) return "a page begins";
  return "nothing in the engine";
}

// The steps that stand out, in each request apart; the slowest first.
struct Outlier {
  std::size_t request = 0, step = 0;
  double ms = 0;
  std::string cause;
};
std::vector<Outlier> outliers_of(const LatencyRow& row) {
  std::vector<Outlier> found;
  for (std::size_t r = 0; r < row.samples.size(); ++r) {
    const std::vector<double>& steps = row.samples[r].steps;
    for (const std::size_t i : outliers(steps)) {
      found.push_back({r, i, steps[i], cause_of(row, row.samples[r], i)});
    }
  }
  std::ranges::stable_sort(found, std::greater(), &Outlier::ms);
  return found;
}

struct Stage {
  const char* name;
  double LatencySample::*ms;
};
constexpr Stage kStages[] = {{"render", &LatencySample::render},
                             {"tokenize", &LatencySample::tokenize},
                             {"prefill", &LatencySample::prefill},
                             {"detokenize", &LatencySample::detokenize},
                             {"write", &LatencySample::write}};

Json row_json(const LatencyRow& row) {
  Json json = {{"prompt_tokens", row.prompt_tokens},
               {"reply_tokens", row.reply_tokens},
               {"depth", row.depth},
               {"batch", row.batch},
               {"repetitions", row.samples.size()},
               {"warm_up", row.warm_up},
               {"steady", row.steady},
               {"noisy", row.noisy}};
  const std::vector<double> first = values_of(row, &LatencySample::first_token);
  const std::vector<double> token = values_of(row, per_token);
  const std::vector<double> steps = all_steps(row);
  json["ttft_ms"] = json_of(summarise(first));
  json["tpot_ms"] = json_of(summarise(token));
  json["itl_ms"] = json_of(summarise(steps));
  for (const Stage& stage : kStages) {
    json["stages_ms"][stage.name] =
        json_of(summarise(values_of(row, [&](const LatencySample& s) { return s.*stage.ms; })));
  }
  Json& bins = json["itl_histogram"] = Json::array();
  for (const HistogramBin& b : histogram(steps)) {
    bins.push_back({{"from", b.from}, {"to", b.to}, {"count", b.count}});
  }
  Json& list = json["outliers"] = Json::array();
  for (const Outlier& o : outliers_of(row)) {
    list.push_back({{"request", o.request}, {"step", o.step}, {"ms", o.ms}, {"cause", o.cause}});
  }
  json["samples"] = {{"ttft_ms", first}, {"tpot_ms", token}};
  json["machine"] = machine_json(row.machine);
  return json;
}

double rate_of(const LatencyRow& row, double tpot) {
  return tpot > 0 ? row.batch * kMsPerSecond / tpot : 0;
}

double reply_tokens_of(const LatencyRow& row) {
  return static_cast<double>(row.samples.size()) * row.batch * row.reply_tokens;
}

std::string text_of(const LatencyRow& row) {
  const Summary first = summarise(values_of(row, &LatencySample::first_token));
  const Summary token = summarise(values_of(row, per_token));
  const std::vector<double> steps = all_steps(row);
  const Summary between = summarise(steps);
  std::string text = fmt::format(
      "\nprompt {}, reply {}, depth {}, batch {}: {} requests after {} to warm up{}{}{}\n",
      row.prompt_tokens, row.reply_tokens, row.depth, row.batch, row.samples.size(), row.warm_up,
      row.steady ? "" : "; it never became steady",
      row.noisy ? "; NOISY: the 95 % interval stayed above 1 %" : "", marks_text(row.machine));
  const std::string machine = machine_text(row.machine);
  if (!machine.empty()) text += "  machine       " + machine + '\n';
  text +=
      fmt::format("  first token   {:>9.3f} ms +- {:.3f} (p50 {:.3f}, p99 {:.3f}, max {:.3f})\n",
                  first.mean, first.half_width, first.median, first.p99, first.most);
  for (const Stage& stage : kStages) {
    const Summary s =
        summarise(values_of(row, [&](const LatencySample& sample) { return sample.*stage.ms; }));
    text += fmt::format("    {:<12}{:>9.3f} ms\n", stage.name, s.mean);
  }
  if (steps.empty()) return text;
  text += fmt::format(
      "  each token    {:>9.3f} ms +- {:.3f}, {:.1f} tokens/s\n"
      "  between two   p50 {:.3f}, p90 {:.3f}, p99 {:.3f}, max {:.3f} ms\n",
      token.mean, token.half_width, rate_of(row, token.mean), between.median, between.p90,
      between.p99, between.most);
  text += histogram_text(histogram(steps), "ms");
  const std::vector<Outlier> far = outliers_of(row);
  constexpr std::size_t kShown = 5;
  for (std::size_t i = 0; i < std::min(kShown, far.size()); ++i) {
    text += fmt::format("  stands out: {:.3f} ms, request {}, step {}: {}\n", far[i].ms,
                        far[i].request, far[i].step, far[i].cause);
  }
  if (far.size() > kShown) text += fmt::format("  and {} more\n", far.size() - kShown);
  return text;
}

constexpr const char* kColumns[] = {"prompt",     "reply",
                                    "depth",      "batch",
                                    "requests",   "ttft_ms",
                                    "ttft_ci95",  "tpot_ms",
                                    "tpot_ci95",  "itl_p50_ms",
                                    "itl_p90_ms", "itl_p99_ms",
                                    "itl_max_ms", "tokens_per_second",
                                    "noisy",      "throttled",
                                    "shared"};

std::vector<std::string> cells_of(const LatencyRow& row) {
  const Summary first = summarise(values_of(row, &LatencySample::first_token));
  const Summary token = summarise(values_of(row, per_token));
  const Summary between = summarise(all_steps(row));
  std::vector<std::string> cells;
  for (const std::size_t n :
       {static_cast<std::size_t>(row.prompt_tokens), static_cast<std::size_t>(row.reply_tokens),
        static_cast<std::size_t>(row.depth), static_cast<std::size_t>(row.batch),
        row.samples.size()}) {
    cells.push_back(std::to_string(n));
  }
  for (const double ms : {first.mean, first.half_width, token.mean, token.half_width,
                          between.median, between.p90, between.p99, between.most}) {
    cells.push_back(fmt::format("{:.4f}", ms));
  }
  cells.push_back(fmt::format("{:.1f}", rate_of(row, token.mean)));
  for (const bool mark : {row.noisy, row.machine.throttled(), row.machine.shared()}) {
    cells.emplace_back(mark ? "yes" : "no");
  }
  return cells;
}

std::string table_line(const std::vector<std::string>& cells, OutputFormat format) {
  if (format == OutputFormat::Csv) return fmt::format("{}\n", fmt::join(cells, ","));
  return fmt::format("| {} |\n", fmt::join(cells, " | "));
}

}  // namespace

void begin_latency_report(const LatencySubject& subject, Reporter& reporter) {
  Json& document = reporter.document();
  document["mode"] = "end-to-end";
  document["latency"] = Json::array();
  if (reporter.format() == OutputFormat::Text) {
    reporter.text(fmt::format("{}\n{}, end to end: from the text to the last token written\n",
                              subject.name, subject.backend.description()));
    return;
  }
  const std::vector<std::string> names(std::begin(kColumns), std::end(kColumns));
  reporter.text(table_line(names, reporter.format()));
  if (reporter.format() == OutputFormat::Markdown) {
    reporter.text(table_line(std::vector<std::string>(names.size(), "---:"), reporter.format()));
  }
}

void add_latency_row(const LatencyRow& row, bool with_energy, Reporter& reporter) {
  Json json = row_json(row);
  const double tokens = reply_tokens_of(row);
  if (with_energy) json["energy"] = energy_json(row.machine, tokens);
  reporter.line(json);
  reporter.document()["latency"].push_back(std::move(json));
  reporter.text(reporter.format() == OutputFormat::Text
                    ? text_of(row)
                    : table_line(cells_of(row), reporter.format()));
  if (with_energy && reporter.format() == OutputFormat::Text) {
    reporter.text(fmt::format("  energy        {}{}\n", energy_text(row.machine, tokens),
                              row.machine.joules ? "; prompts included" : ""));
  }
}

void end_latency_report(const std::vector<LatencyRow>& rows, const Roofline& roofline, Output* plot,
                        Reporter& reporter) {
  if (reporter.format() == OutputFormat::Text) {
    reporter.text(
        "\nfirst token: text, tokens, prompt, first draw (of a batch, the last one's). each token: "
        "all steps after it over "
        "their "
        "number.\n+-: half of the mean's 95 % interval. Prompts are random ordinary tokens, and no "
        "reply ends early.\n");
  }
  if (plot == nullptr) return;
  std::vector<PlotSeries> series;
  for (const LatencyRow& row : rows) {
    series.push_back(
        {fmt::format("prompt {}, depth {}, batch {}", row.prompt_tokens, row.depth, row.batch),
         row.samples.back().steps, histogram(all_steps(row))});
  }
  plot->write(latency_plot(series, &roofline));
  plot->finish();
}

}  // namespace fut::app
