// What NVIDIA's management library says of this machine's GPUs: driver, memory, who uses it. The library
// comes with the driver and is opened when it is asked; where it is absent, nothing is known.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace fut::nvml {

struct Process {
  int pid = 0;
  std::size_t bytes = 0;  // of the GPU's memory; 0: not told
};

struct Device {
  std::string name;
  std::string uuid;  // "GPU-8c5ff7a2-..."
  int capability_major = 0;
  int capability_minor = 0;
  std::size_t total_bytes = 0;
  std::size_t free_bytes = 0;
  std::vector<Process> processes;  // that compute on it, this one apart
};

// Why nothing is known.
enum class Fault { None, NoLibrary, DriverNotLoaded, DriverUpdated, Other };

struct Report {
  Fault fault = Fault::None;
  std::string reason;          // the fault in words
  std::string driver_version;  // "580.159.04"
  int cuda_version = 0;  // the newest that the driver runs, 1000 * major + 10 * minor; 0: not told
  std::vector<Device> devices;
};

// Never throws for a missing library or driver.
[[nodiscard]] Report look();

}  // namespace fut::nvml
