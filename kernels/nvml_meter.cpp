// See the header. Numbers are those of nvml.h.
#include "kernels/nvml_meter.h"

#include "kernels/nvml_library.h"

namespace fut::nvml {
namespace {

constexpr int kSmClock = 1;           // NVML_CLOCK_SM
constexpr int kTemperatureOfGpu = 0;  // NVML_TEMPERATURE_GPU
constexpr double kThousandths = 1e-3;

struct Reason {
  std::uint64_t bit;  // nvmlClocksEventReason...
  const char* name;
};
constexpr Reason kSlowdowns[] = {{0x04, "power limit"},
                                 {0x20, "heat"},
                                 {0x40, "heat, by the hardware"},
                                 {0x80, "power brake from outside"}};
// Set with one of the two before it, or alone.
constexpr std::uint64_t kHardware = 0x08;
constexpr std::uint64_t kHardwareDetails = 0x40 | 0x80;

}  // namespace

std::vector<std::string> slowdowns(std::uint64_t held_by) {
  std::vector<std::string> names;
  for (const Reason& reason : kSlowdowns) {
    if ((held_by & reason.bit) != 0) names.emplace_back(reason.name);
  }
  if ((held_by & kHardware) != 0 && (held_by & kHardwareDetails) == 0) {
    names.emplace_back("the hardware");
  }
  return names;
}

Meter::Meter(const std::string& uuid) : library_(std::make_unique<Library>()) {
  if (library_->fault() != Fault::None) return;
  Handle device = nullptr;
  if (library_->call("nvmlDeviceGetHandleByUUID", uuid.c_str(), &device)) device_ = device;
}

Meter::~Meter() = default;

Reading Meter::read() const {
  Reading reading;
  if (!works()) return reading;
  unsigned int value = 0;
  if (library_->call("nvmlDeviceGetClockInfo", device_, kSmClock, &value)) {
    reading.sm_mhz = static_cast<int>(value);
  }
  if (library_->call("nvmlDeviceGetTemperature", device_, kTemperatureOfGpu, &value)) {
    reading.celsius = static_cast<int>(value);
  }
  if (library_->call("nvmlDeviceGetPowerUsage", device_, &value)) {
    reading.watts = value * kThousandths;
  }
  // The second is the first one's name in older drivers.
  unsigned long long reasons = 0;
  if (library_->call("nvmlDeviceGetCurrentClocksEventReasons", device_, &reasons) ||
      library_->call("nvmlDeviceGetCurrentClocksThrottleReasons", device_, &reasons)) {
    reading.held_by = reasons;
  }
  return reading;
}

std::optional<double> Meter::joules() const {
  unsigned long long millijoules = 0;
  if (!works() || !library_->call("nvmlDeviceGetTotalEnergyConsumption", device_, &millijoules)) {
    return std::nullopt;
  }
  return static_cast<double>(millijoules) * kThousandths;
}

std::optional<int> Meter::most_sm_mhz() const {
  unsigned int value = 0;
  if (!works() || !library_->call("nvmlDeviceGetMaxClockInfo", device_, kSmClock, &value)) {
    return std::nullopt;
  }
  return static_cast<int>(value);
}

std::optional<double> Meter::most_watts() const {
  unsigned int milliwatts = 0;
  if (!works() || !library_->call("nvmlDeviceGetEnforcedPowerLimit", device_, &milliwatts)) {
    return std::nullopt;
  }
  return milliwatts * kThousandths;
}

std::vector<Process> Meter::processes() const {
  return works() ? processes_of(*library_, device_) : std::vector<Process>();
}

}  // namespace fut::nvml
