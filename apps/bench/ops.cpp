// See the header.
#include "apps/bench/ops.h"

#include <fmt/format.h>

#include "apps/signals.h"

namespace fut::app {
namespace {

constexpr double kMicroseconds = 1e6;  // of a second
constexpr double kTera = 1e12, kGiga = 1e9;

}  // namespace

std::vector<double> times_of(Backend& backend, const Backend::Procedure& body, int warm_up,
                             int repetitions) {
  for (int i = 0; i < warm_up; ++i) body();
  backend.synchronize();
  throw_if_interrupted();
  return backend.time_runs(body, repetitions);
}

Json op_row(std::string_view name, int calls, std::int64_t bytes, const Summary& us,
            double bytes_per_second) {
  const double floor_us = static_cast<double>(bytes) / bytes_per_second * kMicroseconds;
  return {{"name", name},
          {"calls", calls},
          {"bytes", bytes},
          {"us", us.median},
          {"us_p99", us.p99},
          {"floor_us", floor_us},
          {"of_roof", floor_us / us.median}};
}

Json measure_ops(Backend& backend, DecodeBench& decode, int warm_up, int repetitions,
                 const MeasuredRoof& roof) {
  Json rows = Json::array();
  for (const DecodePart& part : decode.parts()) {
    const Summary us = summarise(times_of(backend, part.run, warm_up, repetitions));
    Json row = op_row(part.name, part.calls, part.bytes, us, roof.bytes_per_second);
    row["flops"] = part.flops;
    row["flops_per_second"] = part.flops / us.median * kMicroseconds;
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string ops_text(const Json& rows) {
  std::string text;
  for (const Json& row : rows) {
    const double us = row["us"].get<double>();
    const int calls = row["calls"].get<int>();
    text += fmt::format("  {:<18} {:>4} {:>9.3f} MB {:>9.2f} us {:>9.2f} us each {:>6.1f} %\n",
                        row["name"].get<std::string>(), calls, row["bytes"].get<double>() / 1e6, us,
                        us / calls, 100 * row["of_roof"].get<double>());
  }
  return text;
}

Roofline roofline_of(const Json& rows, const MeasuredRoof& roof) {
  Roofline roofline{roof.bytes_per_second, roof.flops_per_second, {}};
  for (const Json& row : rows) {
    const double flops = row.at("flops").get<double>(), bytes = row.at("bytes").get<double>();
    if (flops <= 0 || bytes <= 0) continue;  // sampling
    roofline.points.push_back({row.at("name").get<std::string>(), flops / bytes,
                               row.at("flops_per_second").get<double>()});
  }
  return roofline;
}

std::string bandwidth_text(double bytes_per_second) {
  return bytes_per_second < kTera / 10 ? fmt::format("{:.1f} GB/s", bytes_per_second / kGiga)
                                       : fmt::format("{:.2f} TB/s", bytes_per_second / kTera);
}

}  // namespace fut::app
