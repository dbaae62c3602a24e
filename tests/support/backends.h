// Running one op on a backend so that a wrong access cannot hide: guard zones around every buffer,
// gaps between rows, outputs that start as NaN. And which backends there are to run on.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "tests/support/compare.h"

namespace fut::test {

inline constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

// The CPU backend in every build of its vector loops that this machine runs, with one thread and
// with three: all must give the same bits.
struct CpuSetup {
  std::string name;
  std::unique_ptr<Backend> backend;
};
[[nodiscard]] std::vector<CpuSetup> cpu_setups();

// The GPU backend, for tests that have asked FUT_REQUIRE_GPU_DEVICE(); null in builds without CUDA.
[[nodiscard]] std::unique_ptr<Backend> gpu_backend();

// Why the GPU half of a test cannot run here; empty where it can. Where the environment variable
// FUT_REQUIRE_GPU is 1, a test with a reason fails instead of being skipped.
[[nodiscard]] std::string gpu_missing();
[[nodiscard]] bool gpu_required();

// An array in a backend's memory between two guard zones.
template <class T>
class Guarded {
 public:
  Guarded(Backend& backend, std::vector<T> values)
      : backend_(backend),
        size_(values.size()),
        buffer_(backend.allocate(2 * kGuardBytes + size_ * sizeof(T))) {
    std::vector<std::byte> bytes(buffer_.bytes(), kGuardPattern);
    if (size_ > 0) std::memcpy(bytes.data() + kGuardBytes, values.data(), size_ * sizeof(T));
    backend_.upload(buffer_.as<std::byte>(), bytes);
  }

  [[nodiscard]] T* data() const {
    return reinterpret_cast<T*>(buffer_.as<std::byte>() + kGuardBytes);
  }

  // What lies between the guard zones now. A guard zone that was written to fails the test.
  [[nodiscard]] std::vector<T> values() const {
    backend_.synchronize();
    std::vector<std::byte> bytes(buffer_.bytes());
    backend_.download(bytes, buffer_.as<std::byte>());
    const std::size_t end = kGuardBytes + size_ * sizeof(T);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (i >= kGuardBytes && i < end) continue;
      if (bytes[i] == kGuardPattern) continue;
      ADD_FAILURE() << "wrote " << (i < kGuardBytes ? "before" : "past") << " an array of " << size_
                    << " elements, at byte "
                    << static_cast<std::int64_t>(i) - static_cast<std::int64_t>(kGuardBytes);
      break;
    }
    std::vector<T> result(size_);
    if (size_ > 0) std::memcpy(result.data(), bytes.data() + kGuardBytes, size_ * sizeof(T));
    return result;
  }

 private:
  static constexpr std::size_t kGuardBytes = 256;  // keeps the alignment of allocate()
  static constexpr std::byte kGuardPattern{0xA5};
  Backend& backend_;
  std::size_t size_;
  DeviceBuffer buffer_;
};

// A float32 matrix whose rows have gaps of poison between them.
class GuardedMatrix {
 public:
  GuardedMatrix(Backend& backend, Shape shape, std::span<const float> values);
  // An output: all poison.
  GuardedMatrix(Backend& backend, Shape shape);

  [[nodiscard]] MatrixView<float> view() const;
  [[nodiscard]] MatrixView<const float> const_view() const;
  [[nodiscard]] Shape shape() const { return shape_; }
  // Without the gaps. A gap that was written to fails the test.
  [[nodiscard]] std::vector<float> values() const;

 private:
  static constexpr std::int64_t kGap = 16;  // keeps rows aligned
  static std::vector<float> spread(Shape shape, std::span<const float> values);
  Shape shape_;
  Guarded<float> array_;
};

// T(value) for each type of activations, F16 and E4M3 saturating: its bits, and the number they are.
[[nodiscard]] std::uint32_t bits_of(DType dtype, float value);
[[nodiscard]] float value_of(DType dtype, std::uint32_t bits);
[[nodiscard]] inline float rounded_to(DType dtype, float value) {
  return value_of(dtype, bits_of(dtype, value));
}

// A matrix of F32, F16, BF16 or E4M3 whose rows have gaps of poison (a NaN of the type) between
// them.
class GuardedActivation {
 public:
  // Holds `values`, each rounded to the type.
  GuardedActivation(Backend& backend, DType dtype, Shape shape, std::span<const float> values);
  // An output: all poison.
  GuardedActivation(Backend& backend, DType dtype, Shape shape);

  [[nodiscard]] ActivationView view() const;
  [[nodiscard]] ConstActivationView const_view() const { return view(); }
  [[nodiscard]] Shape shape() const { return shape_; }
  [[nodiscard]] DType dtype() const { return dtype_; }
  // Without the gaps: the bits of each element, and the number they are, widened. A gap that was
  // written to fails the test.
  [[nodiscard]] std::vector<std::uint32_t> bits() const;
  [[nodiscard]] std::vector<float> values() const;

 private:
  static constexpr std::int64_t kGap = 16;  // keeps rows aligned
  static std::vector<std::byte> spread(DType dtype, Shape shape, std::span<const float> values);
  DType dtype_;
  Shape shape_;
  Guarded<std::byte> array_;
};

// A weight matrix of the given type holding `values`, rounded where the type is narrower.
class GuardedWeight {
 public:
  GuardedWeight(Backend& backend, DType dtype, Shape shape, std::span<const float> values);
  [[nodiscard]] DenseMatrix view() const;
  // The values as the type holds them, widened again: what an op computes with.
  [[nodiscard]] const std::vector<float>& rounded() const { return rounded_; }

 private:
  DType dtype_;
  Shape shape_;
  std::vector<float> rounded_;
  Guarded<std::byte> array_;
};

// Reproducible inputs.
[[nodiscard]] std::vector<float> normal_values(std::int64_t count, std::uint32_t seed,
                                               float deviation = 1.0F);
// Integers from -limit to limit: products and sums of them are exact in float32 as long as they
// stay below 2^24, whatever the order.
[[nodiscard]] std::vector<float> integer_values(std::int64_t count, std::uint32_t seed, int limit);

}  // namespace fut::test

// Ends a test of the GPU half where there is no GPU: skipped by name, or failed where one is
// required.
#define FUT_REQUIRE_GPU_DEVICE()                                                             \
  if (const std::string missing = ::fut::test::gpu_missing(); !missing.empty()) {            \
    if (::fut::test::gpu_required()) FAIL() << "a GPU is required but missing: " << missing; \
    GTEST_SKIP() << "no GPU: " << missing;                                                   \
  }                                                                                          \
  static_assert(true)
