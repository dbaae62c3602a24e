// A thread that asks every few milliseconds. Device 0 alone.
#include "tests/bench/clock_sampler.h"

#include <algorithm>
#include <chrono>
#include <dlfcn.h>

namespace fut::test {
namespace {

constexpr int kClockOfMultiprocessors = 1;  // NVML_CLOCK_SM

template <class Function>
Function look_up(void* library, const char* name) {
  return reinterpret_cast<Function>(::dlsym(library, name));
}

unsigned median(std::vector<unsigned>& values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

}  // namespace

ClockSampler::ClockSampler() {
  void* library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return;
  const auto initialise = look_up<int (*)()>(library, "nvmlInit_v2");
  const auto find = look_up<int (*)(unsigned, void**)>(library, "nvmlDeviceGetHandleByIndex_v2");
  clock_ = look_up<Read>(library, "nvmlDeviceGetClockInfo");
  power_ = look_up<ReadPower>(library, "nvmlDeviceGetPowerUsage");
  if (initialise == nullptr || find == nullptr || clock_ == nullptr || power_ == nullptr ||
      initialise() != 0 || find(0, &device_) != 0) {
    device_ = nullptr;
  }
}

ClockSampler::~ClockSampler() {
  static_cast<void>(end());
}

void ClockSampler::begin() {
  if (device_ == nullptr) return;
  clocks_.clear();
  powers_.clear();
  running_ = true;
  thread_ = std::thread([this] { sample(); });
}

void ClockSampler::sample() {
  while (running_) {
    unsigned megahertz = 0;
    unsigned milliwatts = 0;
    if (clock_(device_, kClockOfMultiprocessors, &megahertz) == 0) clocks_.push_back(megahertz);
    if (power_(device_, &milliwatts) == 0) powers_.push_back(milliwatts / 1000);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

std::string ClockSampler::end() {
  if (!thread_.joinable()) return "";
  running_ = false;
  thread_.join();
  return std::to_string(median(clocks_)) + " MHz, " + std::to_string(median(powers_)) + " W";
}

}  // namespace fut::test
