// See the header. A thread looks at a GPU, seldom enough to be no load; the CPU, whose cores the measured
// work may want all of, is looked at before and after alone.
#include "apps/bench/machine_watch.h"

#include <algorithm>
#include <fmt/format.h>

#include "apps/processes.h"
#include "apps/words.h"

namespace fut::app {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kPeriod = std::chrono::milliseconds(50);
constexpr double kSharedFrom = 0.05;  // of the CPU's time

double seconds_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

bool was_there(const nvml::Report& earlier, int pid) {
  return std::ranges::any_of(earlier.devices, [&](const nvml::Device& device) {
    return std::ranges::any_of(device.processes,
                               [&](const nvml::Process& p) { return p.pid == pid; });
  });
}

}  // namespace

std::string gpu_of(const std::string& backend_description, const GpuSurvey& survey) {
  for (const GpuState& gpu : survey.devices) {
    if (gpu.index >= 0 && backend_description.starts_with(fmt::format("cuda:{} ", gpu.index))) {
      return gpu.uuid;
    }
  }
  return {};
}

MachineWatch::MachineWatch(const std::string& gpu, nvml::Report earlier, std::filesystem::path root)
    : earlier_(std::move(earlier)), root_(std::move(root)) {
  if (!gpu.empty()) meter_ = std::make_unique<nvml::Meter>(gpu);
}

MachineWatch::~MachineWatch() {
  stop();
}

void MachineWatch::begin() {
  stop();
  looks_.clear();
  start_ = Clock::now();
  if (!meter_) {
    cpu_at_start_ = read_cpu_counters(root_);
    return;
  }
  joules_at_start_ = meter_->joules();
  look();
  running_ = true;
  if (meter_->works()) thread_ = std::thread([this] { sample(); });
}

void MachineWatch::look() {
  const nvml::Reading reading = meter_->read();
  looks_.push_back({Clock::now(), reading});
}

void MachineWatch::sample() {
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, kPeriod, [this] { return !running_; })) look();
}

void MachineWatch::stop() {
  {
    const std::lock_guard lock(mutex_);
    running_ = false;
  }
  stopped_.notify_all();
  if (thread_.joinable()) thread_.join();
}

MachineState MachineWatch::end() {
  stop();
  MachineState state;
  if (meter_) {
    look();
    add_gpu(state);
  } else {
    add_cpu(state);
  }
  return state;
}

// In a container this process itself may bear another number there: one that nobody here knows, and that
// was not there before, is taken for it.
std::vector<std::string> MachineWatch::others_on_gpu() const {
  std::vector<std::string> others;
  for (const nvml::Process& process : meter_->processes()) {
    const std::string name = process_name(process.pid);
    if (name.empty() && !was_there(earlier_, process.pid)) continue;
    others.push_back(fmt::format("process {} ({}){}", process.pid, name_or_elsewhere(name),
                                 process.bytes == 0 ? "" : ", " + size_text(process.bytes)));
  }
  return others;
}

void MachineWatch::add_gpu(MachineState& state) const {
  state.seconds = seconds_between(start_, Clock::now());
  state.most_mhz = meter_->most_sm_mhz();
  state.most_watts = meter_->most_watts();
  std::uint64_t held_by = 0;
  double watt_seconds = 0, watched = 0;
  for (std::size_t i = 0; i < looks_.size(); ++i) {
    const auto& [time, reading] = looks_[i];
    held_by |= reading.held_by;
    if (reading.sm_mhz) state.clocks.push_back({time, *reading.sm_mhz});
    if (reading.celsius) state.celsius = std::max(state.celsius.value_or(0), *reading.celsius);
    if (i == 0 || !reading.watts || !looks_[i - 1].reading.watts) continue;
    const double seconds = seconds_between(looks_[i - 1].time, time);
    watt_seconds += seconds * (*reading.watts + *looks_[i - 1].reading.watts) / 2;
    watched += seconds;
  }
  state.slowed_by = nvml::slowdowns(held_by);
  state.others = others_on_gpu();
  if (watched > 0) state.watts = watt_seconds / watched;
  const std::optional<double> joules = meter_->joules();
  state.joules_counted = joules && joules_at_start_ && *joules > *joules_at_start_;
  if (state.joules_counted) {
    state.joules = *joules - *joules_at_start_;
  } else if (state.watts) {
    state.joules = *state.watts * state.seconds;
  }
}

void MachineWatch::add_cpu(MachineState& state) const {
  const CpuCounters now = read_cpu_counters(root_);
  state.seconds = seconds_between(start_, Clock::now());
  if (cpu_at_start_.mhz) state.clocks.push_back({start_, *cpu_at_start_.mhz});
  if (now.mhz) state.clocks.push_back({Clock::now(), *now.mhz});
  if (now.slowdowns > cpu_at_start_.slowdowns) state.slowed_by.emplace_back("heat");
  const double share = others_share(cpu_at_start_, now);
  if (share > kSharedFrom) {
    state.others.push_back(fmt::format("other processes, {:.0f} % of the CPU's time", 100 * share));
  }
  state.joules = joules_between(cpu_at_start_, now);
  state.joules_counted = state.joules.has_value();
  if (state.joules) state.watts = *state.joules / state.seconds;
}

}  // namespace fut::app
