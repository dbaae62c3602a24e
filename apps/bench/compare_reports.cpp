// See the header.
#include "apps/bench/compare_reports.h"

#include <fmt/ranges.h>

#include "apps/bench/statistics.h"
#include "apps/json_input.h"
#include "apps/logging.h"
#include "apps/text_input.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

Json read_report(const std::string& file) {
  Json report = parse_json_input(read_whole_file(file), file);
  if (!report.is_object() || !report.contains("latency") || !report["latency"].is_array()) {
    throw data_error("{}: not a report of fut bench --end-to-end -o json", file);
  }
  return report;
}

constexpr const char* kSettings[] = {"prompt_tokens", "reply_tokens", "depth", "batch"};

bool same_setting(const Json& a, const Json& b) {
  return std::ranges::all_of(kSettings, [&](const char* key) { return a.at(key) == b.at(key); });
}

struct Metric {
  const char* key;
  const char* name;
};
constexpr Metric kMetrics[] = {{"ttft_ms", "first token"}, {"tpot_ms", "each token"}};

// Whether a row says that the machine was.
bool is_marked(const Json& row, const char* mark) {
  return row.value("machine", Json::object()).value(mark, false);
}

Json compared(const Json& before, const Json& after, const Metric& metric) {
  const auto old_values = before.at("samples").at(metric.key).get<std::vector<double>>();
  const auto new_values = after.at("samples").at(metric.key).get<std::vector<double>>();
  const Comparison c = compare_means(old_values, new_values);
  return {{"metric", metric.key},
          {"old_ms", summarise(old_values).mean},
          {"new_ms", summarise(new_values).mean},
          {"change", c.change},
          {"ci95", c.half_width},
          {"verdict", verdict_name(c.verdict)},
          {"noisy", before.at("noisy") == true || after.at("noisy") == true},
          {"throttled", is_marked(before, "throttled") || is_marked(after, "throttled")},
          {"shared", is_marked(before, "shared") || is_marked(after, "shared")}};
}

std::string line_of(const Json& c, const char* name) {
  constexpr double kPercent = 100;
  std::vector<std::string> marks;
  for (const char* mark : {"noisy", "throttled", "shared"}) {
    if (c[mark].get<bool>()) marks.emplace_back(mark);
  }
  const std::string caution = marks.empty()
                                  ? ""
                                  : fmt::format("; a run was {}, measure again before believing it",
                                                fmt::join(marks, " and "));
  return fmt::format("  {:<12} {:>9.3f} -> {:>9.3f} ms  {:+6.2f} % +- {:.2f}  {}{}\n", name,
                     c["old_ms"].get<double>(), c["new_ms"].get<double>(),
                     kPercent * c["change"].get<double>(), kPercent * c["ci95"].get<double>(),
                     c["verdict"].get<std::string>(), caution);
}

void warn_of_differences(const Json& before, const Json& after) {
  for (const char* key : {"model", "device", "precision", "prefill_weights", "kv_cache"}) {
    const Json a = before.value(key, Json()), b = after.value(key, Json());
    if (a != b) log_warning("the two are of another {}: {} and {}", key, a.dump(), b.dump());
  }
}

// Settings of `rows` that are not among the others.
std::size_t count_alone(const Json& rows, const Json& others) {
  return static_cast<std::size_t>(std::ranges::count_if(rows, [&](const Json& row) {
    return std::ranges::none_of(others,
                                [&](const Json& other) { return same_setting(row, other); });
  }));
}

void warn_of_settings_alone(const std::string& file, std::size_t settings, std::size_t alone,
                            const std::string& other_file) {
  if (alone == 0) return;
  log_warning(
      "{}: {} of {} settings are not compared; {} has none of their prompt, reply, depth "
      "and batch",
      file, alone, settings, other_file);
}

}  // namespace

int compare_reports(const std::string& old_file, const std::string& new_file, Reporter& reporter) {
  const Json before = read_report(old_file);
  const Json after = read_report(new_file);
  warn_of_differences(before, after);
  Json& list = reporter.document()["comparison"] = Json::array();
  std::size_t old_alone = 0, new_alone = 0;
  try {
    old_alone = count_alone(before["latency"], after["latency"]);
    new_alone = count_alone(after["latency"], before["latency"]);
    for (const Json& row : after["latency"]) {
      for (const Json& old_row : before["latency"]) {
        if (!same_setting(old_row, row)) continue;
        Json entry = Json::object();
        for (const char* key : kSettings) entry[key] = row.at(key);
        reporter.text(fmt::format("prompt {}, reply {}, depth {}, batch {}\n",
                                  row.at("prompt_tokens").get<int>(),
                                  row.at("reply_tokens").get<int>(), row.at("depth").get<int>(),
                                  row.at("batch").get<int>()));
        for (const Metric& metric : kMetrics) {
          Json c = compared(old_row, row, metric);
          reporter.text(line_of(c, metric.name));
          entry["metrics"].push_back(std::move(c));
        }
        reporter.line(entry);
        list.push_back(std::move(entry));
      }
    }
  } catch (const Json::exception& e) {
    throw data_error("{} or {}: a row is not as fut bench writes it: {}", old_file, new_file,
                     e.what());
  }
  if (list.empty()) {
    throw data_error("{} and {} have no setting in common", old_file, new_file);
  }
  const Json alone = {{"not_compared", {{"old", old_alone}, {"new", new_alone}}}};
  reporter.line(alone);
  reporter.document().update(alone);
  warn_of_settings_alone(old_file, before["latency"].size(), old_alone, new_file);
  warn_of_settings_alone(new_file, after["latency"].size(), new_alone, old_file);
  reporter.finish(false);
  return 0;
}

}  // namespace fut::app
