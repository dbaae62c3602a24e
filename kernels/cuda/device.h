// Which CUDA devices this machine has, and whether the kernels of this build run on them. Works on
// a machine without a driver. Includes no CUDA header.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace fut::cuda {

// The kernels are compiled for this compute capability and no other (sm_90a, Hopper).
inline constexpr int kCapabilityMajor = 9;
inline constexpr int kCapabilityMinor = 0;

struct DeviceInfo {
  int index = 0;
  std::string name;
  int capability_major = 0;
  int capability_minor = 0;
  std::size_t memory_bytes = 0;
  std::string pci_bus_id;  // "0000:1b:00.0"
  std::string uuid;        // "GPU-8c5ff7a2-..."
};

struct Discovery {
  std::vector<DeviceInfo> devices;
  std::string reason;  // why there are none; empty where there are some
};

// 1000 * major + 10 * minor: of the runtime in this build, and the newest that the driver runs (0: no
// driver).
struct Versions {
  int runtime = 0;
  int driver = 0;
};
[[nodiscard]] Versions runtime_versions();

// Never throws for a missing driver or device.
[[nodiscard]] Discovery discover_devices();

// What discover_devices() says of device `index`, which is there.
[[nodiscard]] DeviceInfo device_info(int index);

// Why the kernels cannot run on this device, with both compute capabilities; empty where they can.
[[nodiscard]] std::string capability_fault(const DeviceInfo& device);

// "cuda:0 NVIDIA H200, compute capability 9.0, 139.8 GiB, PCI 0000:1b:00.0, GPU-8c5ff7a2-..."
[[nodiscard]] std::string describe(const DeviceInfo& device);

}  // namespace fut::cuda
