// NVIDIA's management library while it is open: for kernels/nvml*.cpp alone. The library's own header is not
// needed: the few functions and structs that are used are its stable interface (nvml.h: names with a
// version never change).
#pragma once

#include <array>
#include <dlfcn.h>
#include <memory>
#include <string>
#include <vector>

#include "kernels/nvml.h"

namespace fut::nvml {

using Handle = struct nvmlDevice_st*;

class Library {
 public:
  // Opens and initialises it, where it is there.
  Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library();

  [[nodiscard]] Fault fault() const { return fault_; }
  [[nodiscard]] const std::string& reason() const { return reason_; }

  // Whether the library has the function and it succeeds.
  template <class... Args>
  [[nodiscard]] bool call(const char* name, Args... args) const {
    const auto f = function<int(Args...)>(name);
    return f != nullptr && f(args...) == kSuccess;
  }

  // The text that a function of a device, or of none, writes into a buffer.
  template <class... Args>
  [[nodiscard]] std::string text(const char* name, Args... args) const {
    std::array<char, 96> buffer{};  // the longest is 96 (NVML_DEVICE_UUID_V2_BUFFER_SIZE)
    if (!call(name, args..., buffer.data(), static_cast<unsigned int>(buffer.size()))) return {};
    return buffer.data();
  }

 private:
  static constexpr int kSuccess = 0;  // nvmlReturn_t

  template <class Function>
  [[nodiscard]] Function* function(const char* name) const {
    return reinterpret_cast<Function*>(::dlsym(handle_.get(), name));
  }
  struct Close {
    void operator()(void* handle) const noexcept { ::dlclose(handle); }
  };
  std::unique_ptr<void, Close> handle_;
  Fault fault_ = Fault::Other;
  std::string reason_;
};

// Those that compute on the device, this one apart.
[[nodiscard]] std::vector<Process> processes_of(const Library& library, Handle device);

}  // namespace fut::nvml
