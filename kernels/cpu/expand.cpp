// expand on the CPU: INT4 codes to E4M3 of a scale a row.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/numeric/activation_scales.h"
#include "kernels/numeric/formats.h"

namespace fut::cpu {
namespace {

constexpr int kStripRows = layout::Int4Tile::kStripRows;

float scale_at(const Int4Matrix& weight, int packed_row, int group) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, weight.packed + weight.tile.scale_offset(packed_row, group), sizeof(bits));
  return bf16_to_f32(bits);
}

// Columns that share both scales lie next to each other: `body(begin, end, group, 1 / column scale)`.
template <class Body>
void for_segments(const ExpandArgs& a, const Body& body) {
  const auto cols = static_cast<int>(a.weight.cols);
  const int per_scale = a.num_column_scales == 0 ? cols : cols / a.num_column_scales;
  for (int begin = 0; begin < cols;) {
    const int group = begin / a.weight.tile.group;
    const int end =
        std::min({(group + 1) * a.weight.tile.group, (begin / per_scale + 1) * per_scale, cols});
    body(begin, end, group,
         a.num_column_scales == 0 ? 1.0F : 1.0F / a.column_scales[begin / per_scale]);
    begin = end;
  }
}

class StripExpansion {
 public:
  StripExpansion(const VectorLoops& loops, const ExpandArgs& a, float* codes)
      : loops_(loops), a_(a), codes_(codes) {}

  void run(int strip) const {
    float inverses[kStripRows];
    for (int r = 0; r < kStripRows; ++r) inverses[r] = 1.0F / set_row_scale(kStripRows * strip + r);
    const layout::Int4Tile& tile = a_.weight.tile;
    int unpacked = -1;
    for_segments(a_, [&](int begin, int end, int group, float column_factor) {
      if (group != unpacked) {
        loops_.unpack_int4(a_.weight.packed + tile.record_offset(strip, group), tile.group, codes_);
        unpacked = group;
      }
      for (int r = 0; r < kStripRows; ++r) {
        const int packed_row = kStripRows * strip + r;
        const int row = a_.weight.order.source_row(packed_row);
        if (row == layout::RowOrder::kNoRow) continue;
        // All products but the rounding are exact: codes are small, scales BF16 or powers of two.
        const float factor = scale_at(a_.weight, packed_row, group) * column_factor * inverses[r];
        std::uint8_t* out = a_.codes + std::int64_t{row} * a_.weight.cols;
        const float* codes = codes_ + r * tile.group - group * tile.group;
        for (int k = begin; k < end; ++k) out[k] = f32_to_e4m3(codes[k] * factor);
      }
    });
  }

 private:
  // The scale of a packed row, 1 for one that only fills up.
  [[nodiscard]] float set_row_scale(int packed_row) const {
    const int row = a_.weight.order.source_row(packed_row);
    if (row == layout::RowOrder::kNoRow) return 1;
    float amax = 0;
    for_segments(a_, [&](int, int, int group, float column_factor) {
      amax = std::max(amax, std::abs(scale_at(a_.weight, packed_row, group) * column_factor));
    });
    return a_.row_scales[row] = expanded_row_scale(amax);
  }

  const VectorLoops& loops_;
  const ExpandArgs& a_;
  float* codes_;  // [16, group] of the thread's own
};

}  // namespace

void expand(Workers& workers, const ExpandArgs& a) {
  check(a);
  const std::int64_t codes = std::int64_t{kStripRows} * a.weight.tile.group;
  workers.scratch.reserve(workers.pool.num_threads() * codes, 1);
  float* scratch = workers.scratch.take(workers.pool.num_threads() * codes);
  workers.pool.parallel_for(a.weight.tile.num_strips(), kStripRows * a.weight.cols,
                            [&](std::int64_t begin, std::int64_t end, int thread) {
                              const StripExpansion strips(workers.loops, a,
                                                          scratch + thread * codes);
                              for (std::int64_t s = begin; s < end; ++s)
                                strips.run(static_cast<int>(s));
                            });
}

}  // namespace fut::cpu
