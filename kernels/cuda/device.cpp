// Device discovery. The runtime is linked statically and looks the driver up when it is first used,
// so without a driver the count fails with an error and the process goes on.
#include "kernels/cuda/device.h"

#include <array>
#include <fmt/format.h>

#include "kernels/cuda/cuda_check.h"

namespace fut::cuda {
namespace {

// The form in which nvidia-smi and CUDA_VISIBLE_DEVICES have it.
std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (std::size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

std::string pci_text(int device) {
  std::array<char, 32> text{};
  FUT_CUDA_CHECK(cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), device));
  return text.data();
}

}  // namespace

DeviceInfo device_info(int device) {
  cudaDeviceProp properties{};
  FUT_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  return {device,
          properties.name,
          properties.major,
          properties.minor,
          properties.totalGlobalMem,
          pci_text(device),
          uuid_text(properties.uuid)};
}

namespace {

std::string reason_of(cudaError_t error) {
  switch (error) {
    case cudaErrorInsufficientDriver:
      return "no NVIDIA driver was found, or it is older than this build's CUDA runtime";
    case cudaErrorNoDevice:
      return "the NVIDIA driver sees no device (is CUDA_VISIBLE_DEVICES set?)";
    default:
      return fmt::format("the CUDA runtime says {}: {}", cudaGetErrorName(error),
                         cudaGetErrorString(error));
  }
}

}  // namespace

Versions runtime_versions() {
  Versions versions;
  if (cudaRuntimeGetVersion(&versions.runtime) != cudaSuccess) versions.runtime = 0;
  if (cudaDriverGetVersion(&versions.driver) != cudaSuccess) versions.driver = 0;
  static_cast<void>(cudaGetLastError());  // must not surface at the next check
  return versions;
}

Discovery discover_devices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // reported here; must not surface at the next check
    return {{}, reason_of(error)};
  }
  if (count == 0) return {{}, reason_of(cudaErrorNoDevice)};
  Discovery found;
  for (int device = 0; device < count; ++device) found.devices.push_back(device_info(device));
  return found;
}

std::string capability_fault(const DeviceInfo& device) {
  if (device.capability_major == kCapabilityMajor && device.capability_minor == kCapabilityMinor) {
    return {};
  }
  return fmt::format("has compute capability {}.{}, this build's kernels need {}.{}",
                     device.capability_major, device.capability_minor, kCapabilityMajor,
                     kCapabilityMinor);
}

std::string describe(const DeviceInfo& device) {
  constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
  return fmt::format("cuda:{} {}, compute capability {}.{}, {:.1f} GiB, PCI {}, {}", device.index,
                     device.name, device.capability_major, device.capability_minor,
                     static_cast<double>(device.memory_bytes) / kGib, device.pci_bus_id,
                     device.uuid);
}

}  // namespace fut::cuda
