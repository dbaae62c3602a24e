// embed on both backends: exact for every type of table, rounded once where out is BF16, and nothing
// beside the output is written.
#include <cstdint>
#include <cstring>
#include <gtest/gtest.h>
#include <span>
#include <vector>

#include "kernels/error.h"
#include "tests/support/backends.h"

#if FUT_CUDA
#include "kernels/cuda/cuda_ops.h"
#include "tests/support/on_device.h"
#endif

namespace fut::test {
namespace {

constexpr DType kDTypes[] = {DType::F32, DType::F16, DType::BF16};
constexpr DType kOutTypes[] = {DType::F32, DType::BF16};

struct Case {
  std::int64_t vocab, cols;
  std::vector<std::int32_t> ids;

  [[nodiscard]] Shape out_shape() const { return {static_cast<std::int64_t>(ids.size()), cols}; }
};

std::vector<Case> cases() {
  std::vector<std::int32_t> many;
  for (std::int32_t i = 0; i < 65; ++i) many.push_back(i * 37 % 100);
  return {{1, 1, {0}},      {5, 33, {4, 0, 4}},   {100, 256, many},
          {100, 384, {99}}, {7, 1000, {6, 6, 0}}, {3, 4096, {2, 1}}};
}

std::vector<float> table_values(const Case& c) {
  std::vector<float> values = normal_values(c.vocab * c.cols, 1);
  values[0] = -0.0F;
  values.back() = 1e-6F;                           // subnormal in F16
  if (values.size() > 2) values[1] = 1.00390625F;  // 1 + 2^-8: a tie in BF16
  return values;
}

// The rows as the type of the table holds them, rounded to that of out.
std::vector<float> expected_rows(const Case& c, const GuardedWeight& table, DType out_type) {
  std::vector<float> expected;
  for (const std::int32_t id : c.ids) {
    const auto first = table.rounded().begin() + id * c.cols;
    for (auto v = first; v != first + c.cols; ++v) expected.push_back(rounded_to(out_type, *v));
  }
  return expected;
}

TEST(Embed, CopiesRowsExactlyOrRoundsThemOnce) {
  for (const CpuSetup& setup : cpu_setups()) {
    for (const Case& c : cases()) {
      for (const DType dtype : kDTypes) {
        for (const DType out_type : kOutTypes) {
          Backend& backend = *setup.backend;
          const GuardedWeight table(backend, dtype, {c.vocab, c.cols}, table_values(c));
          const Guarded<std::int32_t> ids(backend, c.ids);
          const GuardedActivation out(backend, out_type, c.out_shape());
          backend.embed({ids.data(), c.out_shape().rows, table.view(), out.view()});
          EXPECT_TRUE(same_bits(expected_rows(c, table, out_type), out.values(), c.out_shape()))
              << setup.name << ", " << dtype_name(dtype) << " to " << dtype_name(out_type) << ", "
              << c.cols << " columns";
        }
      }
    }
  }
}

TEST(Embed, RefusesAnIdThatTheTableLacks) {
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& backend = *setups[0].backend;
  const GuardedWeight table(backend, DType::F32, {3, 2}, integer_values(6, 1, 9));
  const GuardedMatrix out(backend, {1, 2});
  for (const std::int32_t id : {-1, 3}) {
    const Guarded<std::int32_t> ids(backend, {id});
    EXPECT_THROW(backend.embed({ids.data(), 1, table.view(), out.view()}), Error) << id;
  }
}

#if FUT_CUDA

// Rows with gaps, and a row before and after, all of NaNs of the type.
std::vector<std::byte> poisoned(DType dtype, std::int64_t elements) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(elements * dtype_bytes(dtype)));
  for (std::int64_t i = 0; i < elements; ++i) {
    const std::uint32_t bits = bits_of(dtype, kPoison);
    std::memcpy(bytes.data() + i * dtype_bytes(dtype), &bits,
                static_cast<std::size_t>(dtype_bytes(dtype)));
  }
  return bytes;
}

void expect_bits_of_the_cpu(const Case& c, const GuardedWeight& table, DType out_type) {
  OnDevice device;
  const Shape shape = c.out_shape();
  const std::int64_t stride = shape.cols + 3;
  const int out_bytes = dtype_bytes(out_type);
  std::vector<std::byte> expected = poisoned(out_type, (shape.rows + 2) * stride);
  const DenseMatrix host_table = table.view();
  const auto* bytes = static_cast<const std::byte*>(host_table.data);
  const std::size_t table_bytes = table.rounded().size() * dtype_bytes(host_table.dtype);
  std::byte* out = device.copy(std::span<const std::byte>(expected));
  cuda::embed({device.copy(std::span(c.ids)),
               shape.rows,
               {host_table.dtype, device.copy(std::span(bytes, table_bytes)), c.vocab, c.cols},
               {out + stride * out_bytes, out_type, shape.rows, shape.cols, stride}},
              device.context());

  const std::vector<float> rows = expected_rows(c, table, out_type);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    const std::int64_t element = (index / shape.cols + 1) * stride + index % shape.cols;
    const std::uint32_t bits = bits_of(out_type, rows[i]);
    std::memcpy(expected.data() + element * out_bytes, &bits, static_cast<std::size_t>(out_bytes));
  }
  EXPECT_EQ(expected, device.fetch(out, expected.size()))
      << dtype_name(host_table.dtype) << " to " << dtype_name(out_type) << ", " << c.cols
      << " columns";
}

TEST(EmbedCuda, GivesTheBitsOfTheCpu) {
  FUT_REQUIRE_GPU_DEVICE();
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& host = *setups[0].backend;
  for (const Case& c : cases()) {
    for (const DType dtype : kDTypes) {
      const GuardedWeight table(host, dtype, {c.vocab, c.cols}, table_values(c));
      for (const DType out_type : kOutTypes) expect_bits_of_the_cpu(c, table, out_type);
    }
  }
}

#else

TEST(EmbedCuda, GivesTheBitsOfTheCpu) {
  FUT_REQUIRE_GPU_DEVICE();
}

#endif

}  // namespace
}  // namespace fut::test
