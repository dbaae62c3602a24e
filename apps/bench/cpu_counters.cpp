// See the header. Files are those of Linux: proc(5), the cpufreq and powercap folders of sysfs.
#include "apps/bench/cpu_counters.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <ctime>
#include <fstream>
#include <string>
#include <unistd.h>

namespace fut::app {
namespace fs = std::filesystem;
namespace {

constexpr double kMicro = 1e-6;
constexpr int kKhzOfMhz = 1000;

std::optional<double> number_in(const fs::path& file) {
  std::ifstream stream(file);
  double value = 0;
  return stream >> value ? std::optional(value) : std::nullopt;
}

// Folders whose name is `start` and a number: "cpu7".
std::vector<fs::path> numbered(const fs::path& folder, std::string_view start) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.size() > start.size() && name.starts_with(start) &&
        std::all_of(name.begin() + static_cast<std::ptrdiff_t>(start.size()), name.end(),
                    [](unsigned char c) { return std::isdigit(c) != 0; })) {
      found.push_back(it->path());
    }
  }
  std::ranges::sort(found);
  return found;
}

void read_times(const fs::path& root, CpuCounters& counters) {
  std::ifstream stream(root / "proc/stat");
  std::string word;
  double user = 0, nice = 0, system = 0, idle = 0, waiting = 0, irq = 0, soft_irq = 0, stolen = 0;
  if (!(stream >> word >> user >> nice >> system >> idle >> waiting >> irq >> soft_irq >> stolen) ||
      word != "cpu") {
    return;
  }
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  counters.busy_seconds = (user + nice + system + irq + soft_irq + stolen) / ticks;
  counters.all_seconds = counters.busy_seconds + (idle + waiting) / ticks;
  timespec own{};
  if (::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own) == 0) {
    counters.own_seconds =
        static_cast<double>(own.tv_sec) + static_cast<double>(own.tv_nsec) * 1e-9;
  }
}

void read_cores(const fs::path& root, CpuCounters& counters) {
  double sum = 0;
  int cores = 0;
  for (const fs::path& core : numbered(root / "sys/devices/system/cpu", "cpu")) {
    if (const auto khz = number_in(core / "cpufreq/scaling_cur_freq")) {
      sum += *khz;
      ++cores;
    }
    const auto slowdowns = number_in(core / "thermal_throttle/core_throttle_count");
    counters.slowdowns += static_cast<std::int64_t>(slowdowns.value_or(0));
  }
  if (cores > 0) counters.mhz = static_cast<int>(std::lround(sum / cores / kKhzOfMhz));
}

void read_energy(const fs::path& root, CpuCounters& counters) {
  for (const fs::path& package : numbered(root / "sys/class/powercap", "intel-rapl:")) {
    const auto now = number_in(package / "energy_uj");
    const auto most = number_in(package / "max_energy_range_uj");
    if (now && most) counters.energy.push_back({*now * kMicro, *most * kMicro});
  }
}

}  // namespace

CpuCounters read_cpu_counters(const fs::path& root) {
  CpuCounters counters;
  read_times(root, counters);
  read_cores(root, counters);
  read_energy(root, counters);
  return counters;
}

std::optional<double> joules_between(const CpuCounters& before, const CpuCounters& after) {
  if (before.energy.empty() || before.energy.size() != after.energy.size()) return std::nullopt;
  double sum = 0;
  for (std::size_t i = 0; i < before.energy.size(); ++i) {
    const double step = after.energy[i].joules - before.energy[i].joules;
    sum += step < 0 ? step + after.energy[i].most : step;
  }
  return sum;
}

double others_share(const CpuCounters& before, const CpuCounters& after) {
  // Times are counted in ticks of some ten milliseconds; of several of them nothing can be told.
  constexpr double kGrain = 0.05;
  const double all = after.all_seconds - before.all_seconds;
  const double others =
      after.busy_seconds - before.busy_seconds - (after.own_seconds - before.own_seconds) - kGrain;
  return all > 0 && others > 0 ? std::min(1.0, others / all) : 0;
}

}  // namespace fut::app
