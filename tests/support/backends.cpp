// Guarded matrices, reproducible inputs, and the question whether there is a GPU.
#include "tests/support/backends.h"

#include <cstdlib>
#include <fmt/format.h>
#include <random>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/numeric/formats.h"

#if FUT_CUDA
#include "kernels/cuda/device.h"
#endif

namespace fut::test {
namespace {

std::vector<std::byte> narrowed(DType dtype, std::span<const float> values,
                                std::vector<float>& rounded) {
  std::vector<std::byte> bytes(values.size() * static_cast<std::size_t>(dtype_bytes(dtype)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::F32) {
      std::memcpy(bytes.data() + 4 * i, &values[i], 4);
      rounded.push_back(values[i]);
      continue;
    }
    const bool is_bf16 = dtype == DType::BF16;
    const std::uint16_t bits = is_bf16 ? f32_to_bf16(values[i]) : f32_to_f16(values[i]);
    std::memcpy(bytes.data() + 2 * i, &bits, 2);
    rounded.push_back(is_bf16 ? bf16_to_f32(bits) : f16_to_f32(bits));
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

GuardedWeight::GuardedWeight(Backend& backend, DType dtype, Shape shape,
                             std::span<const float> values)
    : dtype_(dtype), shape_(shape), array_(backend, narrowed(dtype, values, rounded_)) {}

WeightMatrix GuardedWeight::view() const {
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
