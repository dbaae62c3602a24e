// Drawing, packing and multiplying low-bit weights, one element at a time.
#include "tests/support/packed_weights.h"

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "kernels/layout/k_segments.h"
#include "kernels/numeric/e4m3.h"
#include "kernels/numeric/formats.h"

namespace fut::test {
namespace {

// Codes times scales are about this large.
constexpr float kWeightSize = 0.3F;

std::vector<float> draw_scales(std::int64_t count, Scales scales, std::uint32_t seed,
                               float deviation) {
  std::vector<float> values = normal_values(count, seed, deviation);
  if (scales == Scales::Any) return values;
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = std::copysign(std::ldexp(1.0F, -static_cast<int>(i % 3)), values[i]);
  }
  return values;
}

std::vector<std::uint8_t> packed_codes(const layout::Int4Tile& tile, const layout::RowOrder& order,
                                       Scales scales, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::uniform_int_distribution<int> stored(0, 15);
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(tile.bytes()));
  const std::vector<float> drawn = draw_scales(
      std::int64_t{tile.num_strips()} * 16 * tile.num_groups(), scales, seed, kWeightSize / 4);
  std::size_t next_scale = 0;
  for (int row = 0; row < 16 * tile.num_strips(); ++row) {
    const bool fills_up = order.source_row(row) == layout::RowOrder::kNoRow;
    for (int col = 0; col < tile.cols; ++col) {
      const int u = fills_up ? layout::kInt4CodeBias : stored(generator);
      layout::write_nibble(packed.data(), tile.slot(row, col), u);
    }
    for (int g = 0; g < tile.num_groups(); ++g) {
      const std::uint16_t bits = f32_to_bf16(fills_up ? 0.0F : drawn[next_scale]);
      std::memcpy(packed.data() + tile.scale_offset(row, g), &bits, sizeof(bits));
      ++next_scale;
    }
  }
  return packed;
}

// Every code of an output's row, found nibble by nibble.
std::vector<float> codes_in(const std::vector<std::uint8_t>& packed, const layout::Int4Tile& tile,
                            const layout::RowOrder& order) {
  std::vector<float> codes;
  for (int output = 0; output < order.source_rows; ++output) {
    for (int col = 0; col < tile.cols; ++col) {
      const layout::Int4Slot slot = tile.slot(order.packed_row(output), col);
      codes.push_back(
          static_cast<float>(layout::read_nibble(packed.data(), slot) - layout::kInt4CodeBias));
    }
  }
  return codes;
}

// The numbers that E4M3 codes hold.
std::vector<float> e4m3_values(Shape shape, Scales scales, std::uint32_t seed) {
  const std::int64_t count = shape.rows * shape.cols;
  std::vector<float> values = scales == Scales::PowersOfTwo ? integer_values(count, seed, 8)
                                                            : normal_values(count, seed, 60.0F);
  for (float& v : values) v = rounded_to(DType::E4M3, v);
  return values;
}

template <class T, class Encode>
std::vector<T> codes_of(const std::vector<float>& values, const Encode& encode) {
  std::vector<T> codes;
  for (const float v : values) codes.push_back(encode(v));
  return codes;
}

}  // namespace

GuardedInt4::GuardedInt4(Backend& backend, layout::RowOrder order, std::int64_t cols, int group,
                         Scales scales, std::uint32_t seed)
    : order_(order),
      tile_{order.packed_rows(), static_cast<int>(cols), group},
      packed_(packed_codes(tile_, order, scales, seed)),
      codes_(codes_in(packed_, tile_, order_)),
      array_(backend, packed_) {}

GuardedInt4::GuardedInt4(Backend& backend, const GuardedInt4& like,
                         std::vector<std::uint8_t> packed)
    : order_(like.order_),
      tile_(like.tile_),
      packed_(std::move(packed)),
      codes_(codes_in(packed_, tile_, order_)),
      array_(backend, packed_) {}

Int4Matrix GuardedInt4::view() const {
  return {array_.data(), tile_, order_, order_.source_rows, tile_.cols};
}

std::span<const float> GuardedInt4::in_group(std::span<const float> row, int group) const {
  return row.subspan(static_cast<std::size_t>(group * tile_.group),
                     static_cast<std::size_t>(tile_.group));
}

std::span<const float> GuardedInt4::codes(std::int64_t output) const {
  return row_of(codes_, output, tile_.cols);
}

float GuardedInt4::scale(std::int64_t output, std::int64_t group) const {
  const int row = order_.packed_row(static_cast<int>(output));
  std::uint16_t bits = 0;
  std::memcpy(&bits, packed_.data() + tile_.scale_offset(row, static_cast<int>(group)),
              sizeof(bits));
  return bf16_to_f32(bits);
}

float GuardedInt4::product(std::int64_t output, std::span<const float> x) const {
  std::array<float, layout::kNumKSegments> sums{};
  for (int segment = 0; segment < layout::kNumKSegments; ++segment) {
    const int end = layout::k_segment_begin(segment + 1, tile_.num_groups());
    for (int g = layout::k_segment_begin(segment, tile_.num_groups()); g < end; ++g) {
      const float scaled = scale(output, g) * dot_of(in_group(x, g), in_group(codes(output), g));
      sums[static_cast<std::size_t>(segment)] += scaled;
    }
  }
  return layout::merge_k_segments(sums);
}

namespace {

// A group's products, each taken apart into that of the stored code and that of its bias. A tensor core adds
// sixteen of them at a time to what there is and cuts off what does not fit, where an addition rounds: two
// units in place of one.
Bounded bounded_dot(std::span<const float> x, std::span<const float> codes) {
  constexpr int kProductsAtATime = 16;
  std::vector<Bounded> inputs = bounded(x);
  inputs.insert(inputs.end(), inputs.begin(), inputs.end());
  std::vector<Bounded> weights;
  for (const float code : codes) weights.emplace_back(code + layout::kInt4CodeBias);
  weights.resize(inputs.size(), -float{layout::kInt4CodeBias});
  const auto steps = static_cast<int>(inputs.size()) / kProductsAtATime;
  return dot(inputs, weights, 2 * steps + 1);
}

}  // namespace

Bounded GuardedInt4::bounded_product(std::int64_t output, std::span<const float> x) const {
  std::array<Bounded, layout::kNumKSegments> sums{};
  for (int segment = 0; segment < layout::kNumKSegments; ++segment) {
    const int end = layout::k_segment_begin(segment + 1, tile_.num_groups());
    for (int g = layout::k_segment_begin(segment, tile_.num_groups()); g < end; ++g) {
      const Bounded dot = bounded_dot(in_group(x, g), in_group(codes(output), g));
      Bounded& sum = sums[static_cast<std::size_t>(segment)];
      sum = sum + Bounded(scale(output, g)) * dot;
    }
  }
  for (std::size_t count = sums.size() / 2; count >= 1; count /= 2) {
    for (std::size_t i = 0; i < count; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
  }
  return sums[0];
}

GuardedE4m3::GuardedE4m3(Backend& backend, Shape shape, Scales scales, std::uint32_t seed)
    : shape_(shape),
      values_(e4m3_values(shape, scales, seed)),
      scales_(draw_scales(shape.rows, scales, seed + 1, kWeightSize / 64)),
      codes_(backend, codes_of<std::uint8_t>(values_, [](float v) { return f32_to_e4m3(v); })),
      row_scales_(backend, scales_) {}

E4m3Matrix GuardedE4m3::view() const {
  return {codes_.data(), row_scales_.data(), shape_.rows, shape_.cols};
}

std::span<const float> GuardedE4m3::row(std::int64_t output) const {
  return row_of(values_, output, shape_.cols);
}

float GuardedE4m3::scale(std::int64_t output) const {
  return scales_[static_cast<std::size_t>(output)];
}

float GuardedE4m3::product(std::int64_t output, std::span<const float> x, float x_scale) const {
  return dot_of(x, row(output)) * (scale(output) / x_scale);
}

Bounded GuardedE4m3::bounded_product(std::int64_t output, std::span<const float> x,
                                     float x_scale) const {
  return contract_dot(bounded(x), bounded(row(output))) * Bounded(scale(output) / x_scale);
}

GuardedInt8::GuardedInt8(Backend& backend, Shape shape, Scales scales, std::uint32_t seed)
    : shape_(shape),
      values_(integer_values(shape.rows * shape.cols, seed, 127)),
      scales_(draw_scales(shape.rows, scales, seed + 1, kWeightSize / 64)),
      codes_(backend,
             codes_of<std::int8_t>(values_, [](float v) { return static_cast<std::int8_t>(v); })),
      row_scales_(backend, scales_) {}

Int8Matrix GuardedInt8::view() const {
  return {codes_.data(), row_scales_.data(), shape_.rows, shape_.cols};
}

float GuardedInt8::product(std::int64_t output, std::span<const float> x, float factor) const {
  const float scaled =
      dot_of(x, row_of(values_, output, shape_.cols)) * scales_[static_cast<std::size_t>(output)];
  return scaled * factor;
}

Bounded GuardedInt8::bounded_product(std::int64_t output, std::span<const float> x,
                                     const Bounded& factor) const {
  return contract_dot(bounded(x), bounded(row_of(values_, output, shape_.cols))) *
         Bounded(scales_[static_cast<std::size_t>(output)]) * factor;
}

}  // namespace fut::test
