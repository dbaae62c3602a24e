// Stands in for NVIDIA's management library where there is none: two GPUs, one of them in use. What the
// variable FAKE_NVML says goes wrong. Written against the interface as nvml.h documents it.
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct Memory {
  unsigned long long total, free, used;
};
struct ProcessInfo {
  unsigned int pid;
  unsigned long long used_bytes;
  unsigned int gpu_instance, compute_instance;
};

int first, second;  // whose addresses are the handles

bool says(const char* word) {
  const char* value = std::getenv("FAKE_NVML");
  return value != nullptr && std::strcmp(value, word) == 0;
}

int put(char* buffer, unsigned int size, const char* text) {
  std::snprintf(buffer, size, "%s", text);
  return 0;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  if (says("not loaded")) return 9;
  if (says("mismatch")) return 18;
  return says("strange") ? 999 : 0;
}
int nvmlShutdown() {
  return 0;
}
int nvmlSystemGetDriverVersion(char* buffer, unsigned int size) {
  return put(buffer, size, says("old") ? "470.57.02" : "580.159.04");
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = says("old") ? 11040 : 13000;
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void** handle) {
  *handle = index == 0 ? &first : &second;
  return 0;
}
int nvmlDeviceGetName(void* handle, char* buffer, unsigned int size) {
  return put(buffer, size, handle == &first ? "NVIDIA H100 80GB HBM3" : "NVIDIA GeForce RTX 3090");
}
int nvmlDeviceGetUUID(void* handle, char* buffer, unsigned int size) {
  return put(buffer, size,
             handle == &first ? "GPU-11111111-2222-3333-4444-555555555555"
                              : "GPU-66666666-7777-8888-9999-000000000000");
}
int nvmlDeviceGetCudaComputeCapability(void* handle, int* major, int* minor) {
  *major = handle == &first ? 9 : 8;
  *minor = handle == &first ? 0 : 6;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* handle, Memory* memory) {
  constexpr unsigned long long kGib = 1ULL << 30;
  *memory =
      handle == &first ? Memory{80 * kGib, 30 * kGib, 50 * kGib} : Memory{24 * kGib, 24 * kGib, 0};
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** handle) {
  if (std::strcmp(uuid, "GPU-11111111-2222-3333-4444-555555555555") != 0) return 6;  // not found
  *handle = &first;
  return 0;
}
int nvmlDeviceGetClockInfo(void*, int type, unsigned int* megahertz) {
  if (type != 1) return 2;  // of multiprocessors alone
  *megahertz = says("hot") ? 1200 : 1755;
  return 0;
}
int nvmlDeviceGetMaxClockInfo(void*, int type, unsigned int* megahertz) {
  *megahertz = 1980;
  return type == 1 ? 0 : 2;
}
int nvmlDeviceGetTemperature(void*, int sensor, unsigned int* celsius) {
  *celsius = says("hot") ? 88 : 51;
  return sensor == 0 ? 0 : 2;
}
int nvmlDeviceGetPowerUsage(void*, unsigned int* milliwatts) {
  *milliwatts = 400000;
  return 0;
}
int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned int* milliwatts) {
  *milliwatts = 700000;
  return 0;
}
// Old drivers know the other name alone; what clocks somebody chose (2) and idleness (1) say is no slowdown.
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
  *reasons = says("hot") ? 0x20 | 0x08 | 0x40 : says("limited") ? 0x04 : 0x03;
  return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void*, unsigned long long* millijoules) {
  if (says("uncounted")) return 3;  // not supported
  static unsigned long long counted = 0;
  *millijoules = counted += 10000;
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* handle, unsigned int* count, ProcessInfo* infos) {
  if (handle != &first || says("alone")) {
    *count = 0;
    return 0;
  }
  if (*count < 2) return 7;  // too little room
  *count = 2;
  infos[0] = {1, 40ULL << 30, 0, 0};
  infos[1] = {4000000, ~0ULL, 0, 0};  // no such process here, and how much is not told
  return 0;
}

}  // extern "C"
