// What tests of the GPU's matrix ops with BF16 and E4M3 weights share: operands with and without gaps,
// weights of a kind, and linear_residual and gate_up_swiglu on such cases.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/numeric/activation_scales.h"
#include "kernels/numeric/e4m3.h"
#include "tests/support/packed_weights.h"

namespace fut::test {

[[nodiscard]] inline std::string name_of(const char* kind, const Shape& shape,
                                         std::int64_t tokens) {
  return std::string(kind) + " [" + std::to_string(shape.rows) + ", " + std::to_string(shape.cols) +
         "], " + std::to_string(tokens) + " tokens";
}

// The first rows of x in a backend's memory; rows lie `gap` numbers apart, so that four of them can be
// read at once or not.
class Input {
 public:
  Input(Backend& backend, DType dtype, const std::vector<float>& values, Shape shape, int gap)
      : dtype_(dtype), shape_(shape), stride_(shape.cols + gap), array_(backend, bytes(values)) {}
  [[nodiscard]] ConstActivationView view() const {
    return {array_.data(), dtype_, shape_.rows, shape_.cols, stride_};
  }

 private:
  [[nodiscard]] std::vector<std::byte> bytes(const std::vector<float>& values) const {
    const auto width = static_cast<std::size_t>(dtype_bytes(dtype_));
    std::vector<std::byte> result(static_cast<std::size_t>(shape_.rows * stride_) * width);
    for (std::int64_t i = 0; i < shape_.rows * stride_; ++i) {
      const bool is_gap = i % stride_ >= shape_.cols;
      const float value =
          is_gap ? kPoison
                 : values[static_cast<std::size_t>(i / stride_ * shape_.cols + i % stride_)];
      const std::uint32_t bits = bits_of(dtype_, value);
      std::memcpy(result.data() + static_cast<std::size_t>(i) * width, &bits, width);
    }
    return result;
  }

  DType dtype_;
  Shape shape_;
  std::int64_t stride_;
  Guarded<std::byte> array_;
};

enum class Kind { Bf16, E4m3 };
inline constexpr Kind kKinds[] = {Kind::Bf16, Kind::E4m3};
[[nodiscard]] inline const char* name_of(Kind kind) {
  return kind == Kind::Bf16 ? "BF16" : "E4M3";
}
[[nodiscard]] inline DType operand_type(Kind kind) {
  return kind == Kind::Bf16 ? DType::BF16 : DType::E4M3;
}

// Weights of a kind. Exact ones are small integers, scales powers of two.
class Matrix {
 public:
  Matrix(Backend& backend, Kind kind, Shape shape, bool exact, std::uint32_t seed) {
    const std::int64_t count = shape.rows * shape.cols;
    if (kind == Kind::E4m3) {
      e4m3_ = std::make_unique<GuardedE4m3>(backend, shape,
                                            exact ? Scales::PowersOfTwo : Scales::Any, seed);
    } else {
      dense_ = std::make_unique<GuardedWeight>(
          backend, DType::BF16, shape,
          exact ? integer_values(count, seed, 8) : normal_values(count, seed, 0.3F));
    }
  }
  [[nodiscard]] Weights view() const {
    return e4m3_ ? Weights(e4m3_->view()) : Weights(dense_->view());
  }
  [[nodiscard]] Bounded product(std::int64_t row, std::span<const float> x, float x_scale) const {
    if (e4m3_) return e4m3_->bounded_product(row, x, x_scale);
    return contract_dot(
        bounded(x), bounded(row_of(dense_->rounded(), row, static_cast<std::int64_t>(x.size()))));
  }

 private:
  std::unique_ptr<GuardedE4m3> e4m3_;
  std::unique_ptr<GuardedWeight> dense_;
};

[[nodiscard]] inline std::vector<float> first_rows(const std::vector<float>& all, std::int64_t rows,
                                                   std::int64_t cols) {
  return {all.begin(), all.begin() + rows * cols};
}

[[nodiscard]] inline const std::unique_ptr<Backend>& cpu() {
  static const std::unique_ptr<Backend> backend = std::move(cpu_setups().back().backend);
  return backend;
}

struct ResidualCase {
  Kind kind;
  Shape shape;
  bool exact;
  DType residual_type;
  std::vector<float> x, residual;
  float x_scale = 1;

  // Sums of E4M3 products of a prompt, that is with a BF16 residual, are exact below 2^13 alone.
  ResidualCase(Kind k, const Shape& s, bool is_exact, DType type, std::int64_t num_tokens)
      : kind(k), shape(s), exact(is_exact), residual_type(type) {
    const int largest = type == DType::BF16 ? 2 : 16;
    x = rounded_row(operand_type(kind), exact ? integer_values(num_tokens * s.cols, 1, largest)
                                              : normal_values(num_tokens * s.cols, 1, 3.0F));
    residual = rounded_row(type, exact ? integer_values(num_tokens * s.rows, 2, 100)
                                       : normal_values(num_tokens * s.rows, 2, 5.0F));
    if (kind == Kind::E4m3) x_scale = 0.25F;
  }

  [[nodiscard]] std::vector<float> run(Backend& backend, const Matrix& weight, std::int64_t tokens,
                                       int gap) const {
    const Input input(backend, operand_type(kind), x, {tokens, shape.cols}, gap);
    const GuardedActivation out(backend, residual_type, {tokens, shape.rows},
                                first_rows(residual, tokens, shape.rows));
    backend.linear_residual(
        {.x = input.view(), .x_scale = x_scale, .weight = weight.view(), .residual = out.view()});
    return out.values();
  }
};

// Outputs are channels; twice as many weight rows, the first half of them gates.
struct SwigluCase {
  Kind kind;
  Shape shape;  // channels, columns
  DType x_type = DType::F32;
  float eps = 1e-5F;
  float out_scale = 0.5F;
  std::vector<float> x = {};

  [[nodiscard]] float operand_scale() const {
    return kind == Kind::E4m3 ? normalised_operand_scale(shape.cols) : 1.0F;
  }
  [[nodiscard]] std::vector<float> run(Backend& backend, const GateUpWeights& weights,
                                       std::int64_t tokens, int gap) const {
    const Input input(backend, x_type, x, {tokens, shape.cols}, gap);
    const GuardedActivation out(backend, operand_type(kind), {tokens, shape.rows});
    backend.gate_up_swiglu({.x = input.view(),
                            .eps = eps,
                            .weights = weights,
                            .operand_scale = operand_scale(),
                            .out_scale = kind == Kind::E4m3 ? out_scale : 1.0F,
                            .out = out.view()});
    return out.values();
  }
};

// Gates of 64 and -0 or so large that silu is the identity: column 0 alone counts, where x is 1 after the
// norm. Rows of up are integers.
[[nodiscard]] inline std::vector<float> saturated_gates(const Shape& shape) {
  std::vector<float> w(static_cast<std::size_t>(shape.rows * shape.cols));
  for (std::int64_t n = 0; n < shape.rows; ++n) {
    w[static_cast<std::size_t>(n * shape.cols)] = 64.0F + 8.0F * static_cast<float>(n % 4);
  }
  const std::vector<float> up = integer_values(shape.rows * shape.cols, 4, 4);
  w.insert(w.end(), up.begin(), up.end());
  return w;
}

// Weights from numbers: BF16, or E4M3 with scales of 1/2 and 1.
class NumberedMatrix {
 public:
  NumberedMatrix(Backend& backend, Kind kind, Shape shape, const std::vector<float>& values)
      : kind_(kind),
        shape_(shape),
        dense_(backend, DType::BF16, shape, values),
        codes_(backend, codes_of(values)),
        scales_(backend, scales_of(shape.rows)) {}
  [[nodiscard]] GateUpWeights view() const {
    if (kind_ == Kind::Bf16) return Weights(dense_.view());
    return Weights(E4m3Matrix{codes_.data(), scales_.data(), shape_.rows, shape_.cols});
  }
  [[nodiscard]] GateUpWeights apart() const {
    const DenseMatrix all = dense_.view();
    const std::int64_t half = shape_.rows / 2;
    const auto* first = static_cast<const std::uint16_t*>(all.data);
    return GateUpMatrices{{DType::BF16, first, half, shape_.cols},
                          {DType::BF16, first + half * shape_.cols, half, shape_.cols}};
  }

 private:
  static std::vector<std::uint8_t> codes_of(const std::vector<float>& values) {
    std::vector<std::uint8_t> codes;
    for (const float v : values) codes.push_back(f32_to_e4m3(v));
    return codes;
  }
  static std::vector<float> scales_of(std::int64_t rows) {
    std::vector<float> scales;
    for (std::int64_t n = 0; n < rows; ++n) scales.push_back(n % 2 == 0 ? 0.5F : 1.0F);
    return scales;
  }

  Kind kind_;
  Shape shape_;
  GuardedWeight dense_;
  Guarded<std::uint8_t> codes_;
  Guarded<float> scales_;
};

// ---- the GPU's bits are the CPU's where sums are exact: the first of `most` tokens, `counts` of them ------

template <class Counts>
void expect_exact_residual(Backend& gpu, Kind kind, const Shape& shape, DType residual_type,
                           std::int64_t most, const Counts& counts) {
  const ResidualCase c(kind, shape, true, residual_type, most);
  const std::vector<float> expected = c.run(*cpu(), Matrix(*cpu(), kind, shape, true, 3), most, 0);
  const Matrix weight(gpu, kind, shape, true, 3);
  for (const std::int64_t tokens : counts) {
    EXPECT_TRUE(same_bits(first_rows(expected, tokens, shape.rows),
                          c.run(gpu, weight, tokens, tokens % 2 == 0 ? 3 : 0),
                          {tokens, shape.rows}))
        << name_of(name_of(kind), shape, tokens);
  }
}

// Outputs, and how many were clipped. x_type_of(tokens): F32, or BF16, which holds eights as well.
template <class Counts, class XTypeOf>
void expect_exact_swiglu(Backend& gpu, Kind kind, const Shape& shape, std::int64_t most,
                         const Counts& counts, const XTypeOf& x_type_of) {
  SwigluCase c{.kind = kind, .shape = shape, .x_type = x_type_of(most)};
  c.eps = 0;
  // Eights of either sign, so that r is 1/8.
  for (const float v : integer_values(most * shape.cols, 5, 1)) c.x.push_back(v < 0 ? -8.0F : 8.0F);
  for (std::int64_t m = 0; m < most; ++m) c.x[static_cast<std::size_t>(m * shape.cols)] = 8;
  const Shape stacked = {2 * shape.rows, shape.cols};
  const std::vector<float> numbers = saturated_gates(shape);
  const SaturationCounts cpu_before = cpu()->saturations();
  const std::vector<float> expected =
      c.run(*cpu(), NumberedMatrix(*cpu(), kind, stacked, numbers).view(), most, 0);
  const std::uint64_t num_clipped = cpu()->saturations().swiglu_outputs - cpu_before.swiglu_outputs;
  const NumberedMatrix weight(gpu, kind, stacked, numbers);
  for (const std::int64_t tokens : counts) {
    const SaturationCounts before = gpu.saturations();
    c.x_type = x_type_of(tokens);
    const bool is_apart = kind == Kind::Bf16 && tokens % 2 == 0;
    EXPECT_TRUE(same_bits(
        first_rows(expected, tokens, shape.rows),
        c.run(gpu, is_apart ? weight.apart() : weight.view(), tokens, tokens % 2 == 0 ? 3 : 0),
        {tokens, shape.rows}))
        << name_of(name_of(kind), shape, tokens);
    if (tokens == most) {
      EXPECT_EQ(gpu.saturations().swiglu_outputs - before.swiglu_outputs, num_clipped);
    }
  }
}

}  // namespace fut::test
