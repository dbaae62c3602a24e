// What the kernel of the operating system counts of the CPU: who used it, how fast it runs, whether heat
// slowed it, the energy that it took. What is not told, as in most containers, is empty.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace fut::app {

// Of one package, as the CPU counts for itself; it begins anew above the most.
struct EnergyCounter {
  double joules = 0;
  double most = 0;
};

struct CpuCounters {
  double busy_seconds = 0;  // of all cores, since the machine started
  double all_seconds = 0;
  double own_seconds = 0;      // of this process
  std::int64_t slowdowns = 0;  // by heat, of all cores
  std::optional<int> mhz;      // the mean of the cores, now
  std::vector<EnergyCounter> energy;
};

// `root` is "/" but for tests.
[[nodiscard]] CpuCounters read_cpu_counters(const std::filesystem::path& root);

// Between two readings.
[[nodiscard]] std::optional<double> joules_between(const CpuCounters& before,
                                                   const CpuCounters& after);
// What other processes took of the time of all cores; 0 where the readings are too close to tell.
[[nodiscard]] double others_share(const CpuCounters& before, const CpuCounters& after);

}  // namespace fut::app
