// See kernels/nvml.h and kernels/nvml_library.h.
#include "kernels/nvml.h"

#include <fmt/format.h>
#include <limits>
#include <unistd.h>

#include "kernels/nvml_library.h"

namespace fut::nvml {
namespace {

constexpr const char* kLibrary = "libnvidia-ml.so.1";

struct Memory {  // nvmlMemory_t
  unsigned long long total, free, used;
};
struct ProcessInfo {  // nvmlProcessInfo_t
  unsigned int pid;
  unsigned long long used_bytes;
  unsigned int gpu_instance, compute_instance;
};
// nvmlReturn_t
constexpr int kDriverNotLoaded = 9;
constexpr int kVersionMismatch = 18;

Device device_of(const Library& library, Handle handle) {
  Device device;
  device.name = library.text("nvmlDeviceGetName", handle);
  device.uuid = library.text("nvmlDeviceGetUUID", handle);
  static_cast<void>(library.call("nvmlDeviceGetCudaComputeCapability", handle,
                                 &device.capability_major, &device.capability_minor));
  Memory memory{};
  if (library.call("nvmlDeviceGetMemoryInfo", handle, &memory)) {
    device.total_bytes = static_cast<std::size_t>(memory.total);
    device.free_bytes = static_cast<std::size_t>(memory.free);
  }
  device.processes = processes_of(library, handle);
  return device;
}

}  // namespace

Library::Library() {
  handle_.reset(::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL));
  if (!handle_) {
    reason_ = fmt::format("{} is not there: no NVIDIA driver is installed, or a container hides it",
                          kLibrary);
    fault_ = Fault::NoLibrary;
    return;
  }
  const auto initialise = function<int()>("nvmlInit_v2");
  const int result = initialise == nullptr ? -1 : initialise();
  if (result == kSuccess) {
    fault_ = Fault::None;
  } else if (result == kDriverNotLoaded) {
    reason_ = "the NVIDIA driver is installed and not loaded";
    fault_ = Fault::DriverNotLoaded;
  } else if (result == kVersionMismatch) {
    reason_ = "the NVIDIA driver was updated while the old one is still loaded";
    fault_ = Fault::DriverUpdated;
  } else {
    reason_ = fmt::format("the management library does not start (code {})", result);
  }
}

Library::~Library() {
  if (fault_ != Fault::None) return;
  if (const auto shut_down = function<int()>("nvmlShutdown")) static_cast<void>(shut_down());
}

std::vector<Process> processes_of(const Library& library, Handle device) {
  std::array<ProcessInfo, 64> infos{};
  auto count = static_cast<unsigned int>(infos.size());
  std::vector<Process> processes;
  if (!library.call("nvmlDeviceGetComputeRunningProcesses_v3", device, &count, infos.data())) {
    return processes;
  }
  for (std::size_t i = 0; i < count && i < infos.size(); ++i) {
    const auto pid = static_cast<int>(infos[i].pid);
    if (pid == ::getpid()) continue;
    constexpr unsigned long long kNotTold = std::numeric_limits<unsigned long long>::max();
    processes.push_back(
        {pid, infos[i].used_bytes == kNotTold ? 0 : static_cast<std::size_t>(infos[i].used_bytes)});
  }
  return processes;
}

Report look() {
  const Library library;
  Report report;
  report.fault = library.fault();
  report.reason = library.reason();
  if (report.fault != Fault::None) return report;
  report.driver_version = library.text("nvmlSystemGetDriverVersion");
  static_cast<void>(library.call("nvmlSystemGetCudaDriverVersion_v2", &report.cuda_version));
  unsigned int count = 0;
  static_cast<void>(library.call("nvmlDeviceGetCount_v2", &count));
  for (unsigned int i = 0; i < count; ++i) {
    Handle handle = nullptr;
    if (library.call("nvmlDeviceGetHandleByIndex_v2", i, &handle)) {
      report.devices.push_back(device_of(library, handle));
    }
  }
  return report;
}

}  // namespace fut::nvml
