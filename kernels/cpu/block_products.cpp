// Dot products by the vector loops, and what each kind of weights does with them. Narrow weights
// are widened once for all tokens of a block, or in registers where there are few tokens.
#include "kernels/cpu/block_products.h"

#include <array>
#include <cstring>

#include "kernels/layout/k_segments.h"
#include "kernels/numeric/formats.h"

namespace fut::cpu {
namespace {

// From this many tokens on it pays to widen narrow weights once for all of them.
constexpr std::int64_t kWidenTokens = 8;

using SegmentSums = std::array<float, layout::kNumKSegments>;

// The piece of memory that an INT4 block works in.
struct Int4Work {
  float* codes;     // [16 rows, group]
  float* dots;      // [tokens, 16 rows]: of one group
  float* sums;      // [tokens, 16 rows]: of one segment
  float* segments;  // [tokens, 16 rows, segments]

  Int4Work(float* own, int group, std::int64_t num_tokens)
      : codes(own),
        dots(codes + kBlockRows * group),
        sums(dots + num_tokens * kBlockRows),
        segments(sums + num_tokens * kBlockRows) {}
  [[nodiscard]] static std::int64_t elements(int group, std::int64_t num_tokens) {
    return kBlockRows * (group + num_tokens * (2 + layout::kNumKSegments));
  }
};

// y[m, n] = dot(x[m], row n of weights of a floating type), n the block's rows.
void dense_products(const VectorLoops& loops, const MatrixView<const float>& x, DType dtype,
                    const void* weights, const Block& block, float* own,
                    const MatrixView<float>& y) {
  const auto* rows =
      static_cast<const std::byte*>(weights) + block.first_row * x.cols * dtype_bytes(dtype);
  DotBlock dots = {x.row(block.first_token),
                   x.row_stride,
                   block.num_tokens,
                   dtype,
                   rows,
                   x.cols,
                   block.num_rows,
                   x.cols,
                   y.row(block.first_token) + block.first_row,
                   y.row_stride};
  if (dtype != DType::F32 && block.num_tokens >= kWidenTokens) {
    loops.widen(dtype, rows, block.num_rows * x.cols, own);
    dots.dtype = DType::F32;
    dots.weight = own;
  }
  loops.dots(dots);
}

void products(const VectorLoops& loops, const Operand& operand, const DenseMatrix& weight,
              const Block& block, float* own, const MatrixView<float>& y) {
  dense_products(loops, operand.x, weight.dtype, weight.data, block, own, y);
}

void products(const VectorLoops& loops, const Operand& operand, const E4m3Matrix& weight,
              const Block& block, float* own, const MatrixView<float>& y) {
  dense_products(loops, operand.x, DType::E4M3, weight.codes, block, own, y);
  std::array<float, kBlockRows> factors;
  for (std::int64_t n = 0; n < block.num_rows; ++n) {
    factors[static_cast<std::size_t>(n)] = weight.row_scales[block.first_row + n] / operand.scale;
  }
  for (std::int64_t m = 0; m < block.num_tokens; ++m) {
    float* out = y.row(block.first_token + m) + block.first_row;
    for (std::size_t n = 0; n < static_cast<std::size_t>(block.num_rows); ++n) out[n] *= factors[n];
  }
}

void products(const VectorLoops& loops, const Operand& operand, const Int8Matrix& weight,
              const Block& block, float* own, const MatrixView<float>& y) {
  const MatrixView<const float>& x = operand.x;
  loops.widen_int8(weight.codes + block.first_row * x.cols, block.num_rows * x.cols, own);
  loops.dots({x.row(block.first_token), x.row_stride, block.num_tokens, DType::F32, own, x.cols,
              block.num_rows, x.cols, y.row(block.first_token) + block.first_row, y.row_stride});
  const float* scales = weight.row_scales + block.first_row;
  for (std::int64_t m = block.first_token; m < block.first_token + block.num_tokens; ++m) {
    const float factor = operand.factor(m);
    float* out = y.row(m) + block.first_row;
    for (std::int64_t n = 0; n < block.num_rows; ++n) out[n] = (out[n] * scales[n]) * factor;
  }
}

// Adds scale[n] * dot(x, codes of row n) over one group to the sums of each token and strip row n.
void add_group(const VectorLoops& loops, const Operand& operand, const Int4Matrix& weight,
               const Block& block, int group, const Int4Work& work) {
  const layout::Int4Tile& tile = weight.tile;
  const auto strip = static_cast<int>(block.first_row / kBlockRows);
  const std::uint8_t* record = weight.packed + tile.record_offset(strip, group);
  std::array<std::uint16_t, kBlockRows> scale_bits;
  std::memcpy(scale_bits.data(), record + tile.code_bytes(), sizeof(scale_bits));
  std::array<float, kBlockRows> scales;
  for (std::size_t n = 0; n < kBlockRows; ++n) scales[n] = bf16_to_f32(scale_bits[n]);

  loops.unpack_int4(record, tile.group, work.codes);
  loops.dots({operand.x.row(block.first_token) + static_cast<std::int64_t>(group) * tile.group,
              operand.x.row_stride, block.num_tokens, DType::F32, work.codes, tile.group,
              kBlockRows, tile.group, work.dots, kBlockRows});
  for (std::int64_t m = 0; m < block.num_tokens; ++m) {
    for (std::size_t n = 0; n < kBlockRows; ++n) {
      const std::size_t i = static_cast<std::size_t>(m * kBlockRows) + n;
      work.sums[i] += scales[n] * work.dots[i];
    }
  }
}

void products(const VectorLoops& loops, const Operand& operand, const Int4Matrix& weight,
              const Block& block, float* own, const MatrixView<float>& y) {
  constexpr int kSegments = layout::kNumKSegments;
  const int num_groups = weight.tile.num_groups();
  const std::int64_t num_sums = block.num_tokens * kBlockRows;
  const Int4Work work(own, weight.tile.group, block.num_tokens);
  std::fill_n(work.segments, num_sums * kSegments, 0.0F);
  for (int segment = 0; segment < kSegments; ++segment) {
    const int begin = layout::k_segment_begin(segment, num_groups);
    const int end = layout::k_segment_begin(segment + 1, num_groups);
    if (begin == end) continue;
    std::fill_n(work.sums, num_sums, 0.0F);
    for (int g = begin; g < end; ++g) add_group(loops, operand, weight, block, g, work);
    for (std::int64_t i = 0; i < num_sums; ++i) {
      work.segments[i * kSegments + segment] = work.sums[i];
    }
  }
  for (std::int64_t n = 0; n < block.num_rows; ++n) {
    const int output = weight.order.source_row(static_cast<int>(block.first_row + n));
    if (output == layout::RowOrder::kNoRow) continue;
    for (std::int64_t m = 0; m < block.num_tokens; ++m) {
      SegmentSums sums;
      std::memcpy(sums.data(), work.segments + (m * kBlockRows + n) * kSegments, sizeof(sums));
      const std::int64_t token = block.first_token + m;
      y.row(token)[output] = operand.factor(token) * layout::merge_k_segments(sums);
    }
  }
}

}  // namespace

std::int64_t block_elements(const Weights& weights, std::int64_t num_tokens) {
  if (const auto* int4 = std::get_if<Int4Matrix>(&weights)) {
    return Int4Work::elements(int4->tile.group, std::min(kBlockTokens, num_tokens));
  }
  return kBlockRows * weight_cols(weights);
}

void block_products(const VectorLoops& loops, const Operand& operand, const Weights& weights,
                    const Block& block, float* own, const MatrixView<float>& y) {
  std::visit([&](const auto& weight) { products(loops, operand, weight, block, own, y); }, weights);
}

}  // namespace fut::cpu
