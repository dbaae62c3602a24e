// The library's own header is not needed: the few functions and structs below are its stable interface
// (nvml.h: names with a version never change).
#include "kernels/nvml.h"

#include <array>
#include <dlfcn.h>
#include <fmt/format.h>
#include <limits>
#include <memory>
#include <unistd.h>

namespace fut::nvml {
namespace {

constexpr const char* kLibrary = "libnvidia-ml.so.1";

using Handle = struct nvmlDevice_st*;
struct Memory {  // nvmlMemory_t
  unsigned long long total, free, used;
};
struct ProcessInfo {  // nvmlProcessInfo_t
  unsigned int pid;
  unsigned long long used_bytes;
  unsigned int gpu_instance, compute_instance;
};
// nvmlReturn_t
constexpr int kSuccess = 0;
constexpr int kDriverNotLoaded = 9;
constexpr int kVersionMismatch = 18;

// The library while it is open and initialised.
class Library {
 public:
  Library() {
    handle_.reset(::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL));
    if (!handle_) {
      reason_ = fmt::format(
          "{} is not there: no NVIDIA driver is installed, or a container hides it", kLibrary);
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
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() {
    if (fault_ != Fault::None) return;
    if (const auto shut_down = function<int()>("nvmlShutdown")) static_cast<void>(shut_down());
  }

  [[nodiscard]] Fault fault() const { return fault_; }
  [[nodiscard]] const std::string& reason() const { return reason_; }

  // Whether the library has the function and it succeeds.
  template <class... Args>
  [[nodiscard]] bool call(const char* name, Args... args) const {
    const auto f = function<int(Args...)>(name);
    return f != nullptr && f(args...) == kSuccess;
  }

  // The text that a function of a device, or of none, writes into a buffer.
  template <class... Args>
  [[nodiscard]] std::string text(const char* name, Args... args) const {
    std::array<char, 96> buffer{};  // the longest is 96 (NVML_DEVICE_UUID_V2_BUFFER_SIZE)
    if (!call(name, args..., buffer.data(), static_cast<unsigned int>(buffer.size()))) return {};
    return buffer.data();
  }

 private:
  template <class Function>
  [[nodiscard]] Function* function(const char* name) const {
    return reinterpret_cast<Function*>(::dlsym(handle_.get(), name));
  }
  struct Close {
    void operator()(void* handle) const noexcept { ::dlclose(handle); }
  };
  std::unique_ptr<void, Close> handle_;
  Fault fault_ = Fault::Other;
  std::string reason_;
};

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
