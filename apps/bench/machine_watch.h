// Looks at the device that is measured while it is: at a GPU through NVIDIA's management library, at the
// CPU through what the operating system counts. Reads alone; nothing is ever set.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "apps/bench/cpu_counters.h"
#include "apps/bench/machine_state.h"
#include "kernels/backend.h"
#include "kernels/nvml_meter.h"

namespace fut::app {

// The UUID of the GPU that a backend computes on; empty: the CPU, or a GPU that is not known.
[[nodiscard]] std::string gpu_of(const std::string& backend_description, const GpuSurvey& survey);

class MachineWatch {
 public:
  // `gpu` is a UUID, or empty for the CPU. `earlier`: what was on the GPUs before this process was. `root`
  // is "/" but for tests.
  MachineWatch(const std::string& gpu, nvml::Report earlier, std::filesystem::path root = "/");
  MachineWatch(const MachineWatch&) = delete;
  MachineWatch& operator=(const MachineWatch&) = delete;
  ~MachineWatch();

  void begin();
  // Since begin().
  [[nodiscard]] MachineState end();

 private:
  void look();
  void sample();
  void stop();
  [[nodiscard]] std::vector<std::string> others_on_gpu() const;
  void add_gpu(MachineState& state) const;
  void add_cpu(MachineState& state) const;

  std::unique_ptr<nvml::Meter> meter_;  // null: the CPU
  nvml::Report earlier_;
  std::filesystem::path root_;

  std::chrono::steady_clock::time_point start_;
  std::optional<double> joules_at_start_;
  CpuCounters cpu_at_start_;

  std::mutex mutex_;  // of all below
  std::condition_variable stopped_;
  bool running_ = false;
  struct Look {
    std::chrono::steady_clock::time_point time;
    nvml::Reading reading;
  };
  std::vector<Look> looks_;
  std::thread thread_;
};

}  // namespace fut::app
