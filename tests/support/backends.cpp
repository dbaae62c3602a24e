// Guarded matrices, reproducible inputs, and the question whether there is a GPU.
#include "tests/support/backends.h"

#include <cstdlib>
#include <fmt/format.h>
#include <random>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/error.h"
#include "kernels/numeric/e4m3.h"
#include "kernels/numeric/formats.h"
#include "kernels/numeric/kv_int4.h"

#if FUT_CUDA
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device.h"
#endif

namespace fut::test {
namespace {

// Element `i` of an array of `dtype`. The host is little-endian: the low bytes come first.
void put_bits(std::span<std::byte> array, DType dtype, std::int64_t i, std::uint32_t bits) {
  std::memcpy(array.data() + i * dtype_bytes(dtype), &bits,
              static_cast<std::size_t>(dtype_bytes(dtype)));
}

std::uint32_t get_bits(std::span<const std::byte> array, DType dtype, std::int64_t i) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, array.data() + i * dtype_bytes(dtype),
              static_cast<std::size_t>(dtype_bytes(dtype)));
  return bits;
}

std::vector<std::byte> narrowed(DType dtype, std::span<const float> values,
                                std::vector<float>& rounded) {
  std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(dtype_bytes(dtype)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    put_bits(bytes, dtype, static_cast<std::int64_t>(i), bits_of(dtype, values[i]));
    rounded.push_back(rounded_to(dtype, values[i]));
  }
  return bytes;
}

}  // namespace

std::vector<CpuSetup> cpu_setups() {
  std::vector<CpuSetup> setups;
  for (const cpu::VectorLoops* loops : cpu::usable_vector_loops()) {
    for (const int threads : {1, 3}) {
      setups.push_back(
          {fmt::format("{}, {} threads", loops->name, threads),
           std::make_unique<cpu::CpuBackend>(threads, cpu::available_memory_bytes(), *loops)});
    }
  }
  return setups;
}

std::unique_ptr<Backend> gpu_backend() {
#if FUT_CUDA
  return std::make_unique<cuda::CudaBackend>(0);
#else
  return nullptr;
#endif
}

std::string gpu_missing() {
#if FUT_CUDA
  const cuda::Discovery found = cuda::discover_devices();
  if (found.devices.empty()) return found.reason;
  return cuda::capability_fault(found.devices.front());
#else
  return "the tests were built without CUDA";
#endif
}

bool gpu_required() {
  const char* value = std::getenv("FUT_REQUIRE_GPU");
  return value != nullptr && std::string_view(value) == "1";
}

GuardedMatrix::GuardedMatrix(Backend& backend, Shape shape, std::span<const float> values)
    : shape_(shape), array_(backend, spread(shape, values)) {}

GuardedMatrix::GuardedMatrix(Backend& backend, Shape shape)
    : shape_(shape), array_(backend, spread(shape, {})) {}

std::vector<float> GuardedMatrix::spread(Shape shape, std::span<const float> values) {
  const std::int64_t stride = shape.cols + kGap;
  std::vector<float> result(static_cast<std::size_t>(shape.rows * stride), kPoison);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    result[static_cast<std::size_t>(index / shape.cols * stride + index % shape.cols)] = values[i];
  }
  return result;
}

MatrixView<float> GuardedMatrix::view() const {
  return {array_.data(), shape_.rows, shape_.cols, shape_.cols + kGap};
}

MatrixView<const float> GuardedMatrix::const_view() const {
  return {array_.data(), shape_.rows, shape_.cols, shape_.cols + kGap};
}

std::vector<float> GuardedMatrix::values() const {
  const std::vector<float> all = array_.values();
  const auto poison_bits = std::bit_cast<std::uint32_t>(kPoison);
  std::vector<float> result;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::int64_t col = static_cast<std::int64_t>(i) % (shape_.cols + kGap);
    if (col < shape_.cols) {
      result.push_back(all[i]);
    } else if (std::bit_cast<std::uint32_t>(all[i]) != poison_bits) {
      ADD_FAILURE() << "wrote between two rows of [" << shape_.rows << ", " << shape_.cols
                    << "], at element " << i;
      break;
    }
  }
  return result;
}

std::uint32_t bits_of(DType dtype, float value) {
  switch (dtype) {
    case DType::F32:
      return std::bit_cast<std::uint32_t>(value);
    case DType::F16:
      return f32_to_f16_saturating(value);
    case DType::BF16:
      return f32_to_bf16(value);
    case DType::E4M3:
      return f32_to_e4m3(value);
    case DType::U8:
      break;
  }
  throw runtime_failure("no test has numbers of {}", dtype_name(dtype));
}

float value_of(DType dtype, std::uint32_t bits) {
  switch (dtype) {
    case DType::F32:
      return std::bit_cast<float>(bits);
    case DType::F16:
      return f16_to_f32(static_cast<std::uint16_t>(bits));
    case DType::BF16:
      return bf16_to_f32(static_cast<std::uint16_t>(bits));
    case DType::E4M3:
      return e4m3_to_f32(static_cast<std::uint8_t>(bits));
    case DType::U8:
      break;
  }
  throw runtime_failure("no test has numbers of {}", dtype_name(dtype));
}

GuardedActivation::GuardedActivation(Backend& backend, DType dtype, Shape shape,
                                     std::span<const float> values)
    : dtype_(dtype), shape_(shape), array_(backend, spread(dtype, shape, values)) {}

GuardedActivation::GuardedActivation(Backend& backend, DType dtype, Shape shape)
    : dtype_(dtype), shape_(shape), array_(backend, spread(dtype, shape, {})) {}

std::vector<std::byte> GuardedActivation::spread(DType dtype, Shape shape,
                                                 std::span<const float> values) {
  const std::int64_t stride = shape.cols + kGap;
  std::vector<std::byte> result(static_cast<std::size_t>(shape.rows * stride * dtype_bytes(dtype)));
  for (std::int64_t i = 0; i < shape.rows * stride; ++i) {
    put_bits(result, dtype, i, bits_of(dtype, kPoison));
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    put_bits(result, dtype, index / shape.cols * stride + index % shape.cols,
             bits_of(dtype, values[i]));
  }
  return result;
}

ActivationView GuardedActivation::view() const {
  return {array_.data(), dtype_, shape_.rows, shape_.cols, shape_.cols + kGap};
}

std::vector<std::uint32_t> GuardedActivation::bits() const {
  const std::vector<std::byte> all = array_.values();
  const std::int64_t stride = shape_.cols + kGap;
  std::vector<std::uint32_t> result;
  for (std::int64_t i = 0; i < shape_.rows * stride; ++i) {
    const std::uint32_t bits = get_bits(all, dtype_, i);
    if (i % stride < shape_.cols) {
      result.push_back(bits);
    } else if (bits != bits_of(dtype_, kPoison)) {
      ADD_FAILURE() << "wrote between two rows of [" << shape_.rows << ", " << shape_.cols
                    << "], at element " << i;
      break;
    }
  }
  return result;
}

std::vector<float> GuardedActivation::values() const {
  std::vector<float> result;
  for (const std::uint32_t b : bits()) result.push_back(value_of(dtype_, b));
  return result;
}

GuardedWeight::GuardedWeight(Backend& backend, DType dtype, Shape shape,
                             std::span<const float> values)
    : dtype_(dtype), shape_(shape), array_(backend, narrowed(dtype, values, rounded_)) {}

DenseMatrix GuardedWeight::view() const {
  return {dtype_, array_.data(), shape_.rows, shape_.cols};
}

std::vector<float> normal_values(std::int64_t count, std::uint32_t seed, float deviation) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> distribution(0.0F, deviation);
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(distribution(generator));
  return values;
}

std::vector<float> integer_values(std::int64_t count, std::uint32_t seed, int limit) {
  std::mt19937 generator(seed);
  std::uniform_int_distribution<int> distribution(-limit, limit);
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>(distribution(generator)));
  }
  return values;
}

}  // namespace fut::test
