// How a product of a prompt's tokens is cut into tiles: their width, the blocks that share weights, the
// order in which tiles are taken. One table, read by launchers and by the kernel. Includes no CUDA
// header.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/cuda/int4_gemm_plan.h"
#include "kernels/layout/prompt_tile.h"
#include "kernels/tensor.h"

namespace fut::cuda {

inline constexpr int kPromptConsumers = 2;  // warpgroups that multiply, 64 tokens each
inline constexpr int kPromptThreads = 128 * (1 + kPromptConsumers);
inline constexpr int kPromptTokenBytes = layout::kPromptTileTokens * layout::kPromptRowBytes;

// Instances: weight rows of a tile, and the stages of the ring.
[[nodiscard]] constexpr int prompt_stage_bytes(int tile_rows) {
  return kPromptTokenBytes + tile_rows * layout::kPromptRowBytes;
}
[[nodiscard]] constexpr int prompt_stages(int tile_rows) {
  return tile_rows == 256 ? 4 : 6;
}
inline constexpr int kPromptAlignment = 1024;  // of a stage, for the swizzle
// float [warpgroup][2][row of the tile]
[[nodiscard]] constexpr int prompt_scale_bytes(int tile_rows) {
  return kPromptConsumers * 2 * tile_rows * 4;
}
// Stages, scales, two barriers for each stage.
[[nodiscard]] constexpr int prompt_shared_bytes(int tile_rows) {
  return kPromptAlignment + prompt_scale_bytes(tile_rows) +
         prompt_stages(tile_rows) * (prompt_stage_bytes(tile_rows) + 2 * 8);
}
static_assert(prompt_shared_bytes(256) <= kMaxSharedBytes &&
              prompt_shared_bytes(128) <= kMaxSharedBytes);

inline constexpr int kPromptLag = 3;  // of PromptGemmArgs::lag

// Weights whose rows lie one after the other, as up to three matrices; `begin` counts over all of them.
struct PromptPart {
  const void* data = nullptr;
  int begin = 0;
  int rows = 0;
};

// Y[M, N] = X[M, K] W[N, K]^T, operands as their type has them.
struct PromptProduct {
  static constexpr int kMaxParts = 3;
  const void* x = nullptr;
  std::int64_t x_stride = 0;  // elements
  std::int64_t tokens = 0;
  PromptPart parts[kMaxParts];
  int num_parts = 0;
  const float* row_scales = nullptr;  // of all rows; null for BF16
  int cols = 0;
  int code_bytes = 0;   // of both operands
  bool paired = false;  // half a tile of part 0 and the same rows of part 1 go together

  [[nodiscard]] constexpr int rows() const {
    int sum = 0;
    for (int i = 0; i < num_parts; ++i) sum += parts[i].rows;
    return sum;
  }
};

// A tile: which 128 tokens for the first block of its cluster, which rows of which part.
struct PromptTile {
  int token_tile = 0;
  int part = 0;
  int row = 0;  // of the part
};

struct PromptGemmArgs {
  int num_tokens = 0;
  int num_stages_of_k = 0;  // of 128 bytes
  int cluster = 1;          // blocks, of neighbouring tokens, that share weight rows
  int token_groups = 0;     // of `cluster` token tiles
  int row_tiles = 0;
  int lag = 1;    // stages that are there when the second warpgroup starts
  int group = 1;  // token groups whose tiles of the same rows are taken one after the other
  int num_tiles = 0;
  int rows_of_tile = 0;                           // of a part
  int part_tiles[PromptProduct::kMaxParts] = {};  // the first tile of each part
  int part_begin[PromptProduct::kMaxParts] = {};
  int part_rows[PromptProduct::kMaxParts] = {};
  bool paired = false;
  bool spread = false;  // rows lie in layout's spread order; outputs are written in eights
  const float* row_scales = nullptr;
  float scale_factor = 1;  // multiplies them

  // Blocks that work at a time take neighbouring tokens and rows, which the second-level cache then
  // holds for each other.
  [[nodiscard]] constexpr PromptTile tile(int index) const {
    const int band = index / (group * row_tiles);
    const int first = band * group;
    const int height = token_groups - first < group ? token_groups - first : group;
    const int within = index - band * group * row_tiles;
    const int row_tile = within / height;
    const int part = part_tiles[2] <= row_tile ? 2 : part_tiles[1] <= row_tile ? 1 : 0;
    return {(first + within % height) * cluster, part,
            (row_tile - part_tiles[part]) * rows_of_tile};
  }
};

struct PromptGemmPlan {
  int tile_rows = 0;   // 128 or 256
  int num_blocks = 0;  // a multiple of the cluster
  PromptGemmArgs args;
};

// in_eights: the epilogue may read and write eight neighbouring numbers of a row at once.
[[nodiscard]] PromptGemmPlan plan_prompt_gemm(const PromptProduct& product, bool in_eights,
                                              const Int4GemmMachine& machine);
// One way to do it, of those that plan_prompt_gemm chooses from. spread: where parts are whole blocks of
// 32 rows; else tiles have 128 rows.
[[nodiscard]] PromptGemmPlan make_prompt_plan(const PromptProduct& product, int tile_rows,
                                              int cluster, bool spread,
                                              const Int4GemmMachine& machine);

// The parts of weights of any kind but INT8 and INT4. Throws what the GPU cannot read.
[[nodiscard]] PromptProduct prompt_product(const char* op,
                                           std::initializer_list<DenseMatrix> parts);
[[nodiscard]] PromptProduct prompt_product(const char* op, const Weights& weights);
// The first of two parts ends and the second begins at row `rows`.
void split_product(PromptProduct& product, int rows);

// Whether rows can be read by the tensor memory engine as they lie.
[[nodiscard]] bool prompt_rows_readable(const ConstActivationView& x);

}  // namespace fut::cuda
