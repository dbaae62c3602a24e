// One KV head of one sequence in the INT4 cache, as a step meets it: what lay there when the step
// began, raw rows and codes, beside the step's own keys and values; and how these are put away
// after it. Not what attention makes of them.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/cpu/vector_loops.h"
#include "kernels/tensor.h"

namespace fut::cpu {

// The step's own keys (after rotation) and values as attention reads them: numbers of BF16, held as
// floats, [num_tokens, num_kv_heads * head_dim] without gaps.
struct StepRows {
  const float* keys = nullptr;
  const float* values = nullptr;
};

// values[i] to the nearest BF16, as floats.
void round_to_bf16(float* values, std::int64_t count);

inline constexpr int kKvBlockTokens = layout::KvPageInt4::kBlockTokens;
inline constexpr int kMaxKvGroups = 4;  // 128 dims in groups of 32

// Scales and minima of one block, group by group.
struct BlockParams {
  std::array<std::array<float, kKvBlockTokens>, kMaxKvGroups> scales;
  std::array<std::array<float, kKvBlockTokens>, kMaxKvGroups> minima;
};

class KvHeadInt4 {
 public:
  // All arguments must outlive the object.
  KvHeadInt4(const VectorLoops& loops, const KvPagesInt4& cache, const RaggedBatch& batch,
             const StepRows& step, int sequence, int head);

  // Positions first_coded() .. end_coded() - 1 are read as codes, all others raw; both are
  // multiples of 16.
  [[nodiscard]] static constexpr std::int64_t first_coded() { return layout::kSinkTokens; }
  [[nodiscard]] std::int64_t end_coded() const { return end_coded_; }
  [[nodiscard]] bool is_coded(std::int64_t position) const {
    return position >= first_coded() && position < end_coded_;
  }

  // out[i, d] = the raw number of position first + i, i < count; none of them is coded.
  void raw_rows(layout::KvPart part, std::int64_t first, std::int64_t count, float* out) const;
  // out[i, d] = the code of position first + i, i < 16; `first` is a multiple of 16 and coded.
  void codes(layout::KvPart part, std::int64_t first, float* out) const;
  [[nodiscard]] BlockParams params(layout::KvPart part, std::int64_t first) const;
  // out[i, d] = the number of position first + i as a prefill reads it, codes widened to
  // BF16(minimum + scale * u); `first` is a multiple of 16.
  void rows(layout::KvPart part, std::int64_t first, std::int64_t count, float* out) const;

  // Packs the blocks that the step completes and keeps the rows that stay raw. Nobody may read the
  // cache of this sequence and head any more.
  void store() const;

 private:
  [[nodiscard]] const float* step_row(layout::KvPart part, std::int64_t position) const;
  [[nodiscard]] std::uint8_t* page(std::int64_t position) const;
  void pack(layout::KvPart part, std::int64_t first) const;

  const VectorLoops& loops_;
  const KvPagesInt4& cache_;
  const RaggedBatch& batch_;
  const StepRows& step_;
  int sequence_;
  int head_;
  std::uint16_t* raw_;  // the sequence's slot
  std::int64_t begin_;  // first position of the step
  std::int64_t end_;    // its last position + 1
  std::int64_t end_coded_;
};

// ---- blocks of codes, apart from any cache ------------------------------------------------------

// The numbers of 16 rows, [16, head_dim] without gaps, to the codes and parameters of the tokens of
// `first_token`'s block (0 .. 63, within the page) of one part and head.
void pack_block(const layout::KvPageInt4& page, layout::KvPart part, int head, int first_token,
                const float* rows, std::uint8_t* page_data);

// The codes of that block as floats, [16, head_dim] without gaps.
void unpack_block(const layout::KvPageInt4& page, layout::KvPart part, int head, int first_token,
                  const std::uint8_t* page_data, float* out);

}  // namespace fut::cpu
