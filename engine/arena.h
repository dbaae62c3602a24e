// Filling one allocation piece by piece: what both ways of loading a model share. Internal to
// engine/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "kernels/check.h"

namespace fut {

class Arena {
 public:
  static constexpr std::size_t kAlignment = 256;

  [[nodiscard]] static constexpr std::size_t aligned(std::size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  Arena(Backend& backend, std::size_t bytes)
      : backend_(backend), buffer_(backend.allocate(bytes)) {}

  // Copies `bytes` to the next aligned place and returns it.
  template <class T = std::byte>
  const T* put(std::span<const std::byte> bytes) {
    FUT_CHECK(used_ + aligned(bytes.size()) <= buffer_.bytes(),
              "{} bytes for an arena of {} with {} in use", bytes.size(), buffer_.bytes(), used_);
    std::byte* place = buffer_.as<std::byte>() + used_;
    if (!bytes.empty()) backend_.upload(place, bytes);
    used_ += aligned(bytes.size());
    return reinterpret_cast<const T*>(place);
  }

  // The allocation itself, when all is in it.
  [[nodiscard]] DeviceBuffer take() { return std::move(buffer_); }

 private:
  Backend& backend_;
  DeviceBuffer buffer_;
  std::size_t used_ = 0;
};

}  // namespace fut
