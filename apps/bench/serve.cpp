// See the header.
#include "apps/bench/serve.h"

#include <algorithm>
#include <map>

#include "apps/bench/statistics.h"
#include "apps/bench/timing.h"
#include "apps/line_reader.h"
#include "apps/signals.h"
#include "apps/values.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

constexpr double kMicroseconds = 1000;  // of a millisecond

class BenchServer {
 public:
  BenchServer(Backend& backend, const ServedBench& bench) : backend_(backend), bench_(bench) {}

  Json answer(const std::string& line) {
    if (line == "roof") {
      return {{"what", line},
              {"read_roof_bytes_per_second", backend_.measure_read_roof()},
              {"product_roof_flops_per_second", backend_.measure_product_roof()}};
    }
    const std::size_t space = std::min(line.find(' '), line.size());
    const std::string what = line.substr(0, space);
    if (what != "step" && what != "layers") {
      throw usage_error("standard input: '{}'; allowed: 'step MS', 'layers MS', 'roof'", line);
    }
    const std::string rest = line.substr(std::min(space + 1, line.size()));
    const auto milliseconds = parse_integer({rest, "standard input, " + what}, 1, 600000);
    const Summary us = summarise(
        run_for(backend_, procedure(what), static_cast<double>(milliseconds) * kMicroseconds));
    Json result = {{"what", what},
                   {"us", us.median},
                   {"us_least", us.least},
                   {"us_most", us.most},
                   {"runs", us.count}};
    if (what == "layers") {
      result["layers"] = bench_.num_layers;
      result["us_layer"] = us.median / bench_.num_layers;
      if (bench_.flops_layer > 0) result["flops_layer"] = bench_.flops_layer;
    }
    return result;
  }

 private:
  const Backend::Procedure& procedure(const std::string& what) {
    Backend::Procedure& procedure = recorded_[what];
    if (!procedure) procedure = what == "step" ? bench_.step() : bench_.layers();
    return procedure;
  }

  Backend& backend_;
  const ServedBench& bench_;
  std::map<std::string, Backend::Procedure> recorded_;
};

}  // namespace

void serve_bench(Backend& backend, const ServedBench& bench, Reporter& reporter) {
  BenchServer server(backend, bench);
  reporter.document()["layers"] = bench.num_layers;
  reporter.line(reporter.document());
  LineReader reader;
  std::string line;
  while (reader.next(line) == LineReader::Outcome::Line) reporter.line(server.answer(line));
  throw_if_interrupted();
  reporter.finish(false);
}

}  // namespace fut::app
