// Filling one allocation piece by piece: what both ways of loading a model share. Internal to
// engine/.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

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
      : backend_(&backend), buffer_(backend.allocate(bytes)) {}
  // Counts what it would take, and keeps nothing.
  Arena() = default;
  [[nodiscard]] bool counts() const { return backend_ == nullptr; }
  [[nodiscard]] std::size_t used() const { return used_; }

  // The next aligned place for so many bytes; null where it only counts.
  [[nodiscard]] std::byte* place(std::size_t bytes) {
    const std::size_t first = std::exchange(used_, used_ + aligned(bytes));
    if (counts()) return nullptr;
    FUT_CHECK(used_ <= buffer_.bytes(), "{} bytes for an arena of {} with {} in use", bytes,
              buffer_.bytes(), first);
    return buffer_.as<std::byte>() + first;
  }

  // Copies `bytes` to the next aligned place and returns it.
  template <class T = std::byte>
  const T* put(std::span<const std::byte> bytes) {
    return put_repeated<T>(bytes, bytes.size());
  }

  // The same of `pattern`, over and over up to `bytes`.
  template <class T = std::byte>
  const T* put_repeated(std::span<const std::byte> pattern, std::size_t bytes) {
    std::byte* begin = place(bytes);
    if (begin == nullptr) return nullptr;
    for (std::size_t done = 0; done < bytes; done += pattern.size()) {
      backend_->upload(begin + done, pattern.first(std::min(pattern.size(), bytes - done)));
    }
    return reinterpret_cast<const T*>(begin);
  }

  // The allocation itself, when all is in it.
  [[nodiscard]] DeviceBuffer take() { return std::move(buffer_); }

 private:
  Backend* backend_ = nullptr;
  DeviceBuffer buffer_;
  std::size_t used_ = 0;
};

}  // namespace fut
