// Memory and graphs of the GPU backend.
#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <memory>
#include <utility>

#include "kernels/cuda/allocations.h"
#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/product_roof.h"
#include "kernels/cuda/read_roof.h"

namespace fut::cuda {

CudaBackend::Chosen::Chosen(int chosen, int failing_allocation) : index(chosen) {
  use_device(chosen);
  allocations() = AllocationCount(failing_allocation);
}

CudaBackend::CudaBackend(int index, bool record_graphs, int failing_allocation, int long_context)
    : chosen_(index, failing_allocation),
      description_(describe(device_info(index))),
      record_graphs_(record_graphs),
      context_(long_context) {}

std::string CudaBackend::fault(const ModelSizes& sizes) const {
  constexpr int kRowMultiple = 16;  // numbers of a weight row that a kernel loads at a time
  if (sizes.plain) return "--precision f32 is the CPU's alone";
  if (sizes.head_dim != 64 && sizes.head_dim != 128) {
    return fmt::format("the GPU's attention takes heads of 64 and 128, this model's have {}",
                       sizes.head_dim);
  }
  const int heads = sizes.num_q_heads / sizes.num_kv_heads;
  if (heads > kAttentionHeads) {
    return fmt::format(
        "the GPU's attention takes {} query heads a KV head at most, this model has {}",
        kAttentionHeads, heads);
  }
  for (const int width : {sizes.hidden_size, sizes.intermediate_size}) {
    if (width % kRowMultiple == 0) continue;
    return fmt::format("the GPU's products take widths that are multiples of {}, {} is none",
                       kRowMultiple, width);
  }
  return {};
}

MemoryState CudaBackend::memory() const {
  const DeviceMemoryState state = device_memory();
  return {state.total_bytes, state.free_bytes, false};
}

DeviceBuffer CudaBackend::allocate(std::size_t bytes) {
  if (bytes == 0) return {};
  DeviceMemory memory(bytes);
  void* data = memory.as<void>();
  live_.emplace(data, std::move(memory));
  return {this, data, bytes};
}

DeviceBuffer CudaBackend::allocate_shared(std::size_t bytes) {
  if (bytes == 0) return {};
  PinnedMemory memory(bytes);
  void* data = memory.bytes().data();
  live_shared_.emplace(data, std::move(memory));
  return {this, data, bytes};
}

void CudaBackend::deallocate(void* data) noexcept {
  if (live_.erase(data) == 0) live_shared_.erase(data);
}

void CudaBackend::upload(void* destination, std::span<const std::byte> source) {
  if (UploadRing::takes(source.size())) {
    return copy_to_device(destination, uploads_.copy(source, context_.stream()), context_.stream());
  }
  copy_to_device(destination, source, context_.stream());
  synchronize();  // the caller may do with the source what it likes
}

std::unique_ptr<Staging> CudaBackend::make_staging(int pieces, std::size_t bytes_each) {
  return std::make_unique<CudaStaging>(chosen_.index, pieces, bytes_each);
}

void CudaBackend::download(std::span<std::byte> destination, const void* source) {
  copy_to_host(destination, source, context_.stream());
  synchronize();
}

bool CudaBackend::idle() {
  return context_.stream().is_idle();
}

Backend::Procedure CudaBackend::capture(Procedure body) {
  if (!record_graphs_) return body;
  const auto graph = std::make_shared<Graph>(context_.stream(), body);
  return [graph, this] { graph->launch(context_.stream()); };
}

SaturationCounts CudaBackend::saturations() const {
  std::array<std::uint64_t, 3> counts = {};
  copy_to_host(std::as_writable_bytes(std::span(counts)), context_.saturations(),
               context_.stream());
  context_.stream().synchronize();
  return {.operands = counts[0], .attention_outputs = counts[1], .swiglu_outputs = counts[2]};
}

std::vector<double> CudaBackend::time_runs(const Procedure& body, int runs) {
  constexpr double kMicroseconds = 1000;  // of a millisecond
  std::vector<Event> borders(static_cast<std::size_t>(runs) + 1);
  borders[0].record(context_.stream());
  for (std::size_t i = 1; i < borders.size(); ++i) {
    body();
    borders[i].record(context_.stream());
  }
  synchronize();
  std::vector<double> times;
  for (std::size_t i = 1; i < borders.size(); ++i) {
    times.push_back(kMicroseconds *
                    static_cast<double>(borders[i].milliseconds_since(borders[i - 1])));
  }
  return times;
}

double CudaBackend::measure_read_roof() {
  constexpr int kRuns = 20;
  constexpr std::size_t bytes = std::size_t{2} << 30;
  const DeviceMemory memory(bytes);
  const DeviceMemory sink(sizeof(std::uint32_t));
  const std::vector<double> times = time_runs(
      [&] { read_all(memory.as<void>(), bytes, sink.as<std::uint32_t>(), context_); }, kRuns);
  const double least = *std::min_element(times.begin(), times.end());
  return static_cast<double>(bytes) / least * 1e6;
}

double CudaBackend::measure_product_roof() {
  constexpr int kRounds = 4096;  // milliseconds
  constexpr int kRuns = 200;     // until the clock is what power allows
  const DeviceMemory sink(sizeof(float));
  double flops = 0;
  std::vector<double> times =
      time_runs([&] { flops = multiply_only(kRounds, sink.as<float>(), context_); }, kRuns);
  const auto late = times.begin() + kRuns / 2;
  std::nth_element(late, late + kRuns / 4, times.end());
  return flops / *(late + kRuns / 4) * 1e6;
}

}  // namespace fut::cuda
