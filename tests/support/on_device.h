// Copies of host arrays on the GPU, and the way back. For builds with CUDA.
#pragma once

#include <span>
#include <vector>

#include "kernels/cuda/launch_context.h"

namespace fut::test {

class OnDevice {
 public:
  template <class T>
  T* copy(std::span<const T> values) {
    T* data = memory_.emplace_back(values.size_bytes()).template as<T>();
    overwrite(data, values);
    return data;
  }
  // Writes over what copy() returned.
  template <class T>
  void overwrite(T* data, std::span<const T> values) {
    cuda::copy_to_device(data, std::as_bytes(values), context_.stream());
    context_.stream().synchronize();
  }
  template <class T>
  std::vector<T> fetch(const T* data, std::size_t count) {
    std::vector<T> values(count);
    cuda::copy_to_host(std::as_writable_bytes(std::span(values)), data, context_.stream());
    context_.stream().synchronize();
    return values;
  }
  [[nodiscard]] cuda::LaunchContext& context() { return context_; }

 private:
  cuda::LaunchContext context_;
  std::vector<cuda::DeviceMemory> memory_;
};

}  // namespace fut::test
