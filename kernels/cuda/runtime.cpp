// The owners of runtime.h, and how failed calls become errors.
#include "kernels/cuda/runtime.h"

#include <algorithm>
#include <string>

#include "kernels/cuda/allocations.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/error.h"

namespace fut::cuda {

AllocationCount& allocations() {
  static AllocationCount count;
  return count;
}

DeviceMemoryState device_memory() {
  DeviceMemoryState state;
  if (cudaMemGetInfo(&state.free_bytes, &state.total_bytes) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // must not surface at the next check
    return {};
  }
  return state;
}

void check_call(cudaError_t result, std::string_view expression,
                const std::source_location& where) {
  if (result == cudaSuccess) return;
  if (result == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());  // reported here; must not surface at the next check
    throw capacity_error("out of GPU memory, {} bytes free: {}:{}: {}", device_memory().free_bytes,
                         where.file_name(), where.line(), expression);
  }
  throw runtime_failure("{}:{}: {}: {}: {}", where.file_name(), where.line(), expression,
                        cudaGetErrorName(result), cudaGetErrorString(result));
}

void check_launch(std::string_view op, StreamHandle stream, const std::source_location& where) {
  check_call(cudaPeekAtLastError(), op, where);
#if FUT_CUDA_DEBUG
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  check_call(cudaStreamIsCapturing(stream, &capturing), op, where);
  if (capturing == cudaStreamCaptureStatusNone) {
    check_call(cudaStreamSynchronize(stream), op, where);
  }
#else
  static_cast<void>(stream);
#endif
}

void use_device(int index) {
  FUT_CUDA_CHECK(cudaSetDevice(index));
}

Stream::Stream() {
  StreamHandle stream = nullptr;
  FUT_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  handle_.reset(stream);
}

void Stream::synchronize() const {
  FUT_CUDA_CHECK(cudaStreamSynchronize(handle()));
}

bool Stream::is_idle() const {
  const cudaError_t result = cudaStreamQuery(handle());
  if (result == cudaErrorNotReady) return false;
  FUT_CUDA_CHECK(result);
  return true;
}

void Stream::Destroy::operator()(StreamHandle stream) const noexcept {
  static_cast<void>(cudaStreamDestroy(stream));
}

Event::Event() {
  EventHandle event = nullptr;
  FUT_CUDA_CHECK(cudaEventCreate(&event));
  handle_.reset(event);
}

void Event::record(const Stream& stream) const {
  FUT_CUDA_CHECK(cudaEventRecord(handle_.get(), stream.handle()));
}

void Event::synchronize() const {
  FUT_CUDA_CHECK(cudaEventSynchronize(handle_.get()));
}

float Event::milliseconds_since(const Event& earlier) const {
  float milliseconds = 0;
  FUT_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, earlier.handle_.get(), handle_.get()));
  return milliseconds;
}

void Event::Destroy::operator()(EventHandle event) const noexcept {
  static_cast<void>(cudaEventDestroy(event));
}

Graph::Graph(const Stream& stream, const std::function<void()>& body) {
  // Relaxed: an op may reserve memory while it is recorded.
  FUT_CUDA_CHECK(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeRelaxed));
  cudaGraph_t recorded = nullptr;
  try {
    body();
  } catch (...) {
    static_cast<void>(cudaStreamEndCapture(stream.handle(), &recorded));
    static_cast<void>(cudaGraphDestroy(recorded));
    static_cast<void>(cudaGetLastError());
    throw;
  }
  FUT_CUDA_CHECK(cudaStreamEndCapture(stream.handle(), &recorded));
  GraphHandle graph = nullptr;
  cudaError_t result = cudaErrorMemoryAllocation;
  try {
    allocations().next(0);  // the driver does not say how much
    result = cudaGraphInstantiate(&graph, recorded, 0);
  } catch (...) {
    static_cast<void>(cudaGraphDestroy(recorded));
    throw;
  }
  static_cast<void>(cudaGraphDestroy(recorded));
  FUT_CUDA_CHECK(result);
  handle_.reset(graph);
  FUT_CUDA_CHECK(cudaGraphUpload(graph, stream.handle()));
}

void Graph::launch(const Stream& stream) const {
  FUT_CUDA_CHECK(cudaGraphLaunch(handle_.get(), stream.handle()));
}

void Graph::Destroy::operator()(GraphHandle graph) const noexcept {
  static_cast<void>(cudaGraphExecDestroy(graph));
}

DeviceMemory::DeviceMemory(std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  allocations().next(bytes);
  void* data = nullptr;
  const cudaError_t result = cudaMalloc(&data, bytes);
  if (result == cudaErrorMemoryAllocation) {
    // The failed call leaves its error behind for the next check; this is where it is reported.
    static_cast<void>(cudaGetLastError());
    throw capacity_error(
        "out of GPU memory: {} bytes wanted, {} bytes free; a smaller context (-c) "
        "or a smaller model needs less",
        bytes, device_memory().free_bytes);
  }
  FUT_CUDA_CHECK(result);
  data_.reset(data);
}

void DeviceMemory::Free::operator()(void* data) const noexcept {
  static_cast<void>(cudaFree(data));
}

PinnedMemory::PinnedMemory(std::size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  allocations().next(bytes);
  void* data = nullptr;
  const cudaError_t result = cudaMallocHost(&data, bytes);
  if (result == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    throw capacity_error("out of pinned host memory: {} bytes wanted", bytes);
  }
  FUT_CUDA_CHECK(result);
  data_.reset(data);
}

void PinnedMemory::Free::operator()(void* data) const noexcept {
  static_cast<void>(cudaFreeHost(data));
}

void copy_to_device(void* destination, std::span<const std::byte> source, const Stream& stream) {
  if (source.empty()) return;
  FUT_CUDA_CHECK(cudaMemcpyAsync(destination, source.data(), source.size(), cudaMemcpyHostToDevice,
                                 stream.handle()));
}

void copy_to_host(std::span<std::byte> destination, const void* source, const Stream& stream) {
  if (destination.empty()) return;
  FUT_CUDA_CHECK(cudaMemcpyAsync(destination.data(), source, destination.size(),
                                 cudaMemcpyDeviceToHost, stream.handle()));
}

}  // namespace fut::cuda
