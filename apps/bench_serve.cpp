// See the header.
#include "apps/bench_serve.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "apps/line_reader.h"
#include "apps/signals.h"
#include "apps/values.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

constexpr double kMicroseconds = 1000;  // of a millisecond

class BenchServer {
 public:
  BenchServer(Backend& backend, DecodeBench& decode, int num_layers)
      : backend_(backend), decode_(decode), num_layers_(num_layers) {}

  Json answer(const std::string& line) {
    if (line == "roof") {
      return {{"what", line}, {"read_roof_bytes_per_second", backend_.measure_read_roof()}};
    }
    const std::size_t space = std::min(line.find(' '), line.size());
    const std::string what = line.substr(0, space);
    if (what != "step" && what != "layers") {
      throw usage_error("standard input: '{}'; allowed: 'step MS', 'layers MS', 'roof'", line);
    }
    const std::string rest = line.substr(std::min(space + 1, line.size()));
    const auto milliseconds = parse_integer({rest, "standard input, " + what}, 1, 600000);
    std::vector<double> times = run(what, static_cast<double>(milliseconds) * kMicroseconds);
    std::sort(times.begin(), times.end());
    Json result = {{"what", what},
                   {"us", times[times.size() / 2]},
                   {"us_least", times.front()},
                   {"us_most", times.back()},
                   {"runs", times.size()}};
    if (what == "layers") {
      result["layers"] = num_layers_;
      result["us_layer"] = times[times.size() / 2] / num_layers_;
    }
    return result;
  }

 private:
  // Runs for at least so many microseconds: one first, then as many as should do.
  std::vector<double> run(const std::string& what, double microseconds) {
    Backend::Procedure& procedure = recorded_[what];
    if (!procedure) procedure = what == "step" ? decode_.step() : decode_.layers();
    std::vector<double> times;
    for (double total = 0; total < microseconds;) {
      const auto so_far = static_cast<double>(times.size());
      const double wanted = times.empty() ? 1 : std::ceil((microseconds - total) * so_far / total);
      constexpr double kMostAtOnce = 1000;
      const auto more = static_cast<int>(std::min(wanted, kMostAtOnce));
      const std::vector<double> new_times = backend_.time_runs(procedure, more);
      throw_if_interrupted();
      times.insert(times.end(), new_times.begin(), new_times.end());
      total = std::accumulate(new_times.begin(), new_times.end(), total);
    }
    return times;
  }

  Backend& backend_;
  DecodeBench& decode_;
  int num_layers_;
  std::map<std::string, Backend::Procedure> recorded_;
};

}  // namespace

void serve_bench(Backend& backend, DecodeBench& decode, int num_layers, Reporter& reporter) {
  BenchServer server(backend, decode, num_layers);
  reporter.document()["layers"] = num_layers;
  reporter.line(reporter.document());
  LineReader reader;
  std::string line;
  while (reader.next(line) == LineReader::Outcome::Line) reporter.line(server.answer(line));
  throw_if_interrupted();
  reporter.finish(false);
}

}  // namespace fut::app
