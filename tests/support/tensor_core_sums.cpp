// See the header. Sixteen weight rows at a time.
#include "tests/support/tensor_core_sums.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cpu/cpu_backend.h"

namespace fut::test {
namespace {

constexpr int kStep = 32;      // columns of an instruction
constexpr int kFraction = 13;  // bits behind the point
constexpr int kLanes = 4;
constexpr int kRows = 16;
constexpr int kVectors = kRows / kLanes;

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef std::uint32_t Words __attribute__((vector_size(kLanes * 4)));
typedef std::int32_t Integers __attribute__((vector_size(kLanes * 4)));
typedef std::uint8_t Bytes __attribute__((vector_size(kRows)));

// Exponents as bytes: that of a product is the sum of its factors', and a zero's is below all others.
constexpr int kNumber = 64;  // 2^-6, the least exponent of E4M3: subnormal numbers have it, too
constexpr int kOne = 2 * kNumber + 12;           // a product of exponent 0
constexpr int kLeast = 2 * kNumber - kFraction;  // of a sum that is not zero

Integers exponents_of(const Floats& v) {
  const Integers above = (Integers)((Words)v >> 23 & 0xFFU) - 127 + 6;
  const Integers number = (above > 0 ? above : Integers{}) + kNumber;
  return v == 0.0F ? Integers{} : number;
}

// One token, with zeros past its last column.
struct Token {
  std::vector<float> numbers;
  std::vector<std::uint8_t> exponents;
};

void set(Token& token, const float* x, std::int64_t cols) {
  std::copy_n(x, cols, token.numbers.begin());
  for (std::size_t k = 0; k < token.numbers.size(); k += kLanes) {
    Floats v;
    std::memcpy(&v, token.numbers.data() + k, sizeof(v));
    const Integers exponents = exponents_of(v);
    for (int i = 0; i < kLanes; ++i) {
      token.exponents[k + static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(exponents[i]);
    }
  }
}

// Sixteen weight rows, column after column.
struct Columns {
  std::vector<std::array<Floats, kVectors>> weights;
  std::vector<Bytes> exponents;
};

void gather(const cpu::DotBlock& b, std::int64_t first_row, Columns& columns) {
  const auto* weight = static_cast<const float*>(b.weight);
  const auto width = static_cast<std::size_t>((b.cols + kStep - 1) / kStep * kStep);
  columns.weights.assign(width, {});
  columns.exponents.assign(width, Bytes{});
  const std::int64_t rows = std::min<std::int64_t>(kRows, b.num_rows - first_row);
  for (std::size_t k = 0; k < static_cast<std::size_t>(b.cols); ++k) {
    auto& column = columns.weights[k];
    const float* first = weight + first_row * b.weight_stride + static_cast<std::int64_t>(k);
    for (std::int64_t n = 0; n < rows; ++n) {
      column[static_cast<std::size_t>(n / kLanes)][n % kLanes] = first[n * b.weight_stride];
    }
    for (int n = 0; n < kRows; n += kLanes) {
      const Integers exponents = exponents_of(column[static_cast<std::size_t>(n / kLanes)]);
      for (int i = 0; i < kLanes; ++i) {
        columns.exponents[k][n + i] = static_cast<std::uint8_t>(exponents[i]);
      }
    }
  }
}

// sums = sums + products of kStep columns.
void add_step(const Token& token, const Columns& columns, std::size_t first,
              std::array<Floats, kVectors>& sums) {
  Bytes largest{};
  for (std::size_t k = first; k < first + kStep; ++k) {
    const Bytes own = columns.exponents[k] + token.exponents[k];
    largest = own > largest ? own : largest;
  }
  std::array<Integers, kVectors> units;
  std::array<Floats, kVectors> to_units;
  for (std::size_t v = 0; v < kVectors; ++v) {
    Integers of_products;
    for (int i = 0; i < kLanes; ++i) of_products[i] = largest[static_cast<int>(v) * kLanes + i];
    Integers exponent = (Integers)((Words)sums[v] >> 23 & 0xFFU) - 127 + kOne;
    exponent = exponent > of_products ? exponent : of_products;
    exponent = (exponent > kLeast ? exponent : Integers{} + kLeast) - kOne;
    to_units[v] = (Floats)((127 + kFraction - exponent) << 23);
    units[v] = __builtin_convertvector(sums[v] * to_units[v], Integers);
  }
  for (std::size_t k = first; k < first + kStep; ++k) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      const Floats product = columns.weights[k][v] * token.numbers[k];
      units[v] += __builtin_convertvector(product * to_units[v], Integers);
    }
  }
  for (std::size_t v = 0; v < kVectors; ++v) {
    const Floats exact = __builtin_convertvector(units[v], Floats);
    const Floats kept = (Floats)((Words)exact & ~((1U << (23 - kFraction)) - 1));
    sums[v] = kept / to_units[v];
  }
}

const cpu::VectorLoops& own_loops() {
  return *cpu::usable_vector_loops().back();
}

// What this thread has widened last, if that is numbers of E4M3: the reference widens weights right before
// their products.
thread_local const float* widened_codes = nullptr;

void widen(DType dtype, const void* in, std::int64_t count, float* out) {
  own_loops().widen(dtype, in, count, out);
  widened_codes = dtype == DType::E4M3 ? out : nullptr;
}
void widen_int8(const std::int8_t* in, std::int64_t count, float* out) {
  own_loops().widen_int8(in, count, out);
  widened_codes = nullptr;
}
void unpack_int4(const std::uint8_t* codes, int group, float* out) {
  own_loops().unpack_int4(codes, group, out);
  widened_codes = nullptr;
}

// Few tokens: from the codes themselves.
void dots_of_codes(cpu::DotBlock b) {
  std::vector<float> weights(static_cast<std::size_t>(b.num_rows * b.cols));
  for (std::int64_t n = 0; n < b.num_rows; ++n) {
    own_loops().widen(DType::E4M3, static_cast<const std::uint8_t*>(b.weight) + n * b.weight_stride,
                      b.cols, weights.data() + n * b.cols);
  }
  b.weight = weights.data();
  b.weight_stride = b.cols;
  tensor_core_dots(b);
}

void dots(const cpu::DotBlock& b) {
  const bool of_codes = b.weight == widened_codes;
  widened_codes = nullptr;
  if (b.dtype == DType::E4M3) return dots_of_codes(b);
  if (of_codes) return tensor_core_dots(b);
  own_loops().dots(b);
}

}  // namespace

void tensor_core_dots(const cpu::DotBlock& b) {
  thread_local Columns columns;
  const auto width = static_cast<std::size_t>((b.cols + kStep - 1) / kStep * kStep);
  Token token{std::vector<float>(width), std::vector<std::uint8_t>(width)};
  for (std::int64_t row = 0; row < b.num_rows; row += kRows) {
    gather(b, row, columns);
    const std::int64_t rows = std::min<std::int64_t>(kRows, b.num_rows - row);
    for (std::int64_t m = 0; m < b.num_tokens; ++m) {
      set(token, b.x + m * b.x_stride, b.cols);
      std::array<Floats, kVectors> sums{};
      for (std::size_t k = 0; k < width; k += kStep) add_step(token, columns, k, sums);
      for (std::int64_t n = 0; n < rows; ++n) {
        b.out[m * b.out_stride + row + n] = sums[static_cast<std::size_t>(n / kLanes)][n % kLanes];
      }
    }
  }
}

std::unique_ptr<Backend> backend_with_tensor_core_sums(int num_threads) {
  static const cpu::VectorLoops loops = [] {
    cpu::VectorLoops changed = own_loops();
    changed.name = "sums of tensor cores";
    changed.widen = &widen;
    changed.widen_int8 = &widen_int8;
    changed.unpack_int4 = &unpack_int4;
    changed.dots = &dots;
    return changed;
  }();
  return std::make_unique<cpu::CpuBackend>(num_threads, cpu::available_memory_bytes(), loops);
}

}  // namespace fut::test
