// Low-bit weights for tests: random codes in a backend's memory between guard zones, and what the
// contract's products with them are. INT4 codes are read back from the packed bytes through
// layout/, one by one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tests/support/backends.h"
#include "tests/support/matrix_reference.h"

namespace fut::test {

// How scales are drawn: powers of two between 1/4 and 1 of either sign, so that sums of small
// integers stay exact, or any numbers.
enum class Scales { PowersOfTwo, Any };

class GuardedInt4 {
 public:
  GuardedInt4(Backend& backend, layout::RowOrder order, std::int64_t cols, int group, Scales scales,
              std::uint32_t seed);
  // The same matrix with other bytes, such as one that was packed wrongly.
  GuardedInt4(Backend& backend, const GuardedInt4& like, std::vector<std::uint8_t> packed);

  [[nodiscard]] Int4Matrix view() const;
  [[nodiscard]] const std::vector<std::uint8_t>& packed() const { return packed_; }
  // Codes of one output, in order of columns.
  [[nodiscard]] std::span<const float> codes(std::int64_t output) const;
  [[nodiscard]] float scale(std::int64_t output, std::int64_t group) const;
  // The merged sum of one output, with `x` as rounded already and no factor; bit by bit, and within
  // what other orders inside a group can give.
  [[nodiscard]] float product(std::int64_t output, std::span<const float> x) const;
  [[nodiscard]] Bounded bounded_product(std::int64_t output, std::span<const float> x) const;

 private:
  [[nodiscard]] std::span<const float> in_group(std::span<const float> row, int group) const;
  layout::RowOrder order_;
  layout::Int4Tile tile_;
  std::vector<std::uint8_t> packed_;
  std::vector<float> codes_;  // read back from packed_, row by row in the order of outputs
  Guarded<std::uint8_t> array_;
};

class GuardedE4m3 {
 public:
  // Codes of normal numbers; with scales that are powers of two, of integers -8 .. 8.
  GuardedE4m3(Backend& backend, Shape shape, Scales scales, std::uint32_t seed);
  [[nodiscard]] E4m3Matrix view() const;
  [[nodiscard]] std::span<const float> row(std::int64_t output) const;
  [[nodiscard]] float scale(std::int64_t output) const;
  // dot(x, codes) * (row scale / x_scale)
  [[nodiscard]] float product(std::int64_t output, std::span<const float> x, float x_scale) const;
  [[nodiscard]] Bounded bounded_product(std::int64_t output, std::span<const float> x,
                                        float x_scale) const;

 private:
  Shape shape_;
  std::vector<float> values_, scales_;
  Guarded<std::uint8_t> codes_;
  Guarded<float> row_scales_;
};

class GuardedInt8 {
 public:
  GuardedInt8(Backend& backend, Shape shape, Scales scales, std::uint32_t seed);
  [[nodiscard]] Int8Matrix view() const;
  // (dot(x, codes) * row scale) * factor
  [[nodiscard]] float product(std::int64_t output, std::span<const float> x, float factor) const;
  [[nodiscard]] Bounded bounded_product(std::int64_t output, std::span<const float> x,
                                        const Bounded& factor) const;

 private:
  Shape shape_;
  std::vector<float> values_, scales_;
  Guarded<std::int8_t> codes_;
  Guarded<float> row_scales_;
};

}  // namespace fut::test
