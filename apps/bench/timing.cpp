// See the header.
#include "apps/bench/timing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "apps/signals.h"

namespace fut::app {

std::vector<double> run_for(Backend& backend, const Backend::Procedure& body, double microseconds) {
  std::vector<double> times;
  for (double total = 0; total < microseconds;) {
    const auto so_far = static_cast<double>(times.size());
    const double wanted = times.empty() ? 1 : std::ceil((microseconds - total) * so_far / total);
    constexpr double kMostAtOnce = 1000;
    const auto more = static_cast<int>(std::min(wanted, kMostAtOnce));
    const std::vector<double> new_times = backend.time_runs(body, more);
    throw_if_interrupted();
    times.insert(times.end(), new_times.begin(), new_times.end());
    total = std::accumulate(new_times.begin(), new_times.end(), total);
  }
  return times;
}

}  // namespace fut::app
