// Memory of the CPU backend, and how much of it there is.
#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>

#include "kernels/check.h"

namespace fut::cpu {
namespace {

constexpr std::size_t kAlignment = 256;

constexpr std::size_t kUnknown = std::numeric_limits<std::size_t>::max();

// A whole file that holds one number; kUnknown where it does not, or says "max".
std::size_t number_in_file(const char* path) {
  std::ifstream file(path);
  std::size_t number = 0;
  return file >> number ? number : kUnknown;
}

// The number after `name` in a file of lines that begin with a name and a number; 0 without it.
std::size_t number_after(const char* path, std::string_view name) {
  std::ifstream file(path);
  std::string word;
  std::size_t number = 0;
  std::string rest;
  while (file >> word >> number && std::getline(file, rest)) {
    if (word == name) return number;
  }
  return 0;
}

std::size_t available_in_machine() {
  constexpr const char* kMeminfo = "/proc/meminfo";  // in KiB
  const std::size_t available = number_after(kMeminfo, "MemAvailable:");
  return available == 0 ? kUnknown : (available + number_after(kMeminfo, "SwapFree:")) * 1024;
}

// Cached pages of files count as used in a control group, though they give way when asked.
std::size_t available_in_control_group() {
  constexpr const char* kStat = "/sys/fs/cgroup/memory.stat";
  const std::size_t limit = number_in_file("/sys/fs/cgroup/memory.max");
  const std::size_t used = number_in_file("/sys/fs/cgroup/memory.current");
  if (limit == kUnknown || used == kUnknown) return kUnknown;
  const std::size_t cached =
      number_after(kStat, "inactive_file") + number_after(kStat, "active_file");
  return limit - std::min(limit, used - std::min(used, cached));
}

// Copies at once, by the thread that read the piece: what it read is in its own cache.
class CpuStaging final : public Staging {
 public:
  CpuStaging(Backend& backend, int pieces, std::size_t bytes_each)
      : bytes_each_(bytes_each),
        memory_(backend.allocate(static_cast<std::size_t>(pieces) * bytes_each)) {}

  [[nodiscard]] std::span<std::byte> take(int piece) override {
    return {memory_.as<std::byte>() + static_cast<std::size_t>(piece) * bytes_each_, bytes_each_};
  }
  void send(int /*piece*/, std::span<const std::byte> source, void* destination) override {
    if (!source.empty()) std::memcpy(destination, source.data(), source.size());
  }
  void finish() override {}

 private:
  std::size_t bytes_each_;
  DeviceBuffer memory_;
};

}  // namespace

std::size_t available_memory_bytes() {
  return std::min(available_in_machine(), available_in_control_group());
}

std::string describe_machine() {
  constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
  return fmt::format("cpu, {} cores, {}, {:.1f} GiB free", usable_cores(),
                     usable_vector_loops().back()->name,
                     static_cast<double>(available_memory_bytes()) / kGib);
}

CpuBackend::CpuBackend(int num_threads, std::size_t memory_limit_bytes, const VectorLoops& loops,
                       int failing_allocation, int long_context)
    : workers_{ThreadPool(num_threads), loops, Scratch(), {}},
      memory_limit_bytes_(memory_limit_bytes),
      long_context_(long_context),
      allocations_(failing_allocation) {}

std::string CpuBackend::description() const {
  const int threads = workers_.pool.num_threads();
  return fmt::format("CPU, {} thread{}, {}", threads, threads == 1 ? "" : "s", workers_.loops.name);
}

SaturationCounts CpuBackend::saturations() const {
  const SaturationCounters& counters = workers_.saturations;
  return {.operands = counters.operands.load(),
          .attention_outputs = counters.attention_outputs.load(),
          .swiglu_outputs = counters.swiglu_outputs.load()};
}

DeviceBuffer CpuBackend::allocate(std::size_t bytes) {
  if (bytes == 0) return {};
  allocations_.next(bytes);
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

std::unique_ptr<Staging> CpuBackend::make_staging(int pieces, std::size_t bytes_each) {
  return std::make_unique<CpuStaging>(*this, pieces, bytes_each);
}

void CpuBackend::download(std::span<std::byte> destination, const void* source) {
  if (!destination.empty()) std::memcpy(destination.data(), source, destination.size());
}

std::vector<double> CpuBackend::time_runs(const Procedure& body, int runs) {
  std::vector<double> times;
  for (int i = 0; i < runs; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    times.push_back(time.count());
  }
  return times;
}

double CpuBackend::measure_read_roof() {
  constexpr int kRuns = 5;
  constexpr std::size_t bytes = std::size_t{256} << 20;
  const DeviceBuffer buffer = allocate(bytes);
  const auto words = static_cast<std::int64_t>(bytes / sizeof(std::uint64_t));
  std::fill_n(buffer.as<std::uint64_t>(), words, 1);
  std::atomic<std::uint64_t> sum = 0;
  const std::vector<double> times = time_runs(
      [&] {
        workers_.pool.parallel_for(words, 1, [&](std::int64_t begin, std::int64_t end, int) {
          const auto* first = buffer.as<std::uint64_t>();
          sum += std::accumulate(first + begin, first + end, std::uint64_t{0});
        });
      },
      kRuns);
  return static_cast<double>(bytes) / *std::min_element(times.begin(), times.end()) * 1e6;
}

}  // namespace fut::cpu
