// Memory of the CPU backend, and how much of it there is.
#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>
#include <thread>

#include "kernels/check.h"

namespace fut::cpu {
namespace {

constexpr std::size_t kAlignment = 256;

// A whole file that holds one number of bytes; the largest number there is where it does not, or
// says "max".
std::size_t bytes_in_file(const char* path) {
  std::ifstream file(path);
  std::size_t bytes = 0;
  return file >> bytes ? bytes : std::numeric_limits<std::size_t>::max();
}

// The value of a /proc/meminfo line, in bytes; 0 where there is no such line.
std::size_t meminfo_bytes(std::string_view wanted) {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::size_t kib = 0;
  std::string unit;
  while (file >> name >> kib && std::getline(file, unit)) {
    if (name == wanted) return kib * 1024;
  }
  return 0;
}

}  // namespace

std::size_t available_memory_bytes() {
  constexpr std::size_t kUnknown = std::numeric_limits<std::size_t>::max();
  const std::size_t available = meminfo_bytes("MemAvailable:");
  const std::size_t machine = available > 0 ? available + meminfo_bytes("SwapFree:") : kUnknown;
  const std::size_t group_limit = bytes_in_file("/sys/fs/cgroup/memory.max");
  const std::size_t group_used = bytes_in_file("/sys/fs/cgroup/memory.current");
  const bool limited = group_limit != kUnknown && group_used != kUnknown;
  return limited ? std::min(machine, group_limit - std::min(group_limit, group_used)) : machine;
}

std::string describe_machine() {
  constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
  return fmt::format("cpu, {} cores, {}, {:.1f} GiB free", std::thread::hardware_concurrency(),
                     usable_vector_loops().back()->name,
                     static_cast<double>(available_memory_bytes()) / kGib);
}

CpuBackend::CpuBackend(int num_threads, std::size_t memory_limit_bytes, const VectorLoops& loops)
    : workers_{ThreadPool(num_threads), loops, Scratch()},
      memory_limit_bytes_(memory_limit_bytes) {}

std::string CpuBackend::description() const {
  const int threads = workers_.pool.num_threads();
  return fmt::format("CPU, {} thread{}, {}", threads, threads == 1 ? "" : "s", workers_.loops.name);
}

DeviceBuffer CpuBackend::allocate(std::size_t bytes) {
  if (bytes == 0) return {};
  const std::size_t free_bytes = memory_limit_bytes_ - allocated_bytes_;
  void* data = nullptr;
  if (bytes <= free_bytes) {
    // aligned_alloc wants a multiple of the alignment.
    data = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  }
  if (data == nullptr) {
    throw capacity_error(
        "out of memory: {} bytes wanted, {} bytes free; a smaller context (-c) or "
        "a smaller model needs less",
        bytes, free_bytes);
  }
  live_.emplace(data, bytes);
  allocated_bytes_ += bytes;
  return {this, data, bytes};
}

void CpuBackend::deallocate(void* data) noexcept {
  const auto entry = live_.find(data);
  if (entry == live_.end()) return;
  allocated_bytes_ -= entry->second;
  live_.erase(entry);
  std::free(data);
}

void CpuBackend::upload(void* destination, std::span<const std::byte> source) {
  if (!source.empty()) std::memcpy(destination, source.data(), source.size());
}

void CpuBackend::download(std::span<std::byte> destination, const void* source) {
  if (!destination.empty()) std::memcpy(destination.data(), source, destination.size());
}

}  // namespace fut::cpu
