// Blocks of an INT4 cache out of rows of numbers: some warps pack 16 tokens of one part and head. The
// same bytes as the CPU's, which are those of numeric/kv_int4.h.
#pragma once

#include <cstdint>

#include "kernels/layout/kv_page_int4.h"
#include "kernels/numeric/formats.h"
#include "kernels/numeric/kv_int4.h"

namespace fut::cuda {

// The least and largest number of lanes that share a group, the same in all of them. Of zeros of
// either sign the first is the least and the last the largest, as on the CPU.
__device__ __forceinline__ void reduce_range(float& least, float& largest, int lanes) {
  constexpr unsigned kAllLanes = 0xFFFFFFFFU;
  for (int distance = 1; distance < lanes; distance *= 2) {
    const bool later = (threadIdx.x & static_cast<unsigned>(distance)) != 0;
    const float other_least = __shfl_xor_sync(kAllLanes, least, distance);
    const float other_largest = __shfl_xor_sync(kAllLanes, largest, distance);
    const float first_least = later ? other_least : least;
    const float last_least = later ? least : other_least;
    least = last_least < first_least ? last_least : first_least;
    const float first_largest = later ? other_largest : largest;
    const float last_largest = later ? largest : other_largest;
    largest = first_largest > last_largest ? first_largest : last_largest;
  }
}

// Codes and parameters of one token: lane i holds dims kDims * i and on of its row.
template <int kDims>
__device__ void encode_row(const layout::KvPageInt4& page, const float (&row)[kDims],
                           std::uint8_t* params_of_token, std::uint8_t* codes) {
  float least = row[0];
  float largest = row[0];
#pragma unroll
  for (int i = 1; i < kDims; ++i) {
    if (row[i] < least) least = row[i];
    if (!(row[i] < largest)) largest = row[i];
  }
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int lanes = page.kv_group / kDims;
  reduce_range(least, largest, lanes);
  const KvInt4Params params = kv_int4_params(least, largest);
  if (lane % lanes == 0) {
    *reinterpret_cast<std::uint32_t*>(params_of_token +
                                      lane / lanes * layout::KvPageInt4::kParamBytes) =
        params.scale | static_cast<std::uint32_t>(params.minimum) << 16;
  }
#pragma unroll
  for (int i = 0; i < kDims; ++i) {
    codes[kDims * lane + i] = static_cast<std::uint8_t>(encode_kv_int4(row[i], params));
  }
}

// The eight codes of this lane's word of a 16 x 16 tile; `codes` is [16 tokens][head_dim].
__device__ __forceinline__ std::uint32_t word_of_codes(layout::KvPart part,
                                                       const std::uint8_t* codes, int head_dim,
                                                       int first_dim) {
  std::uint32_t word = 0;
#pragma unroll
  for (int nibble = 0; nibble < 8; ++nibble) {
    const layout::Int4Coord at =
        layout::int4_fragment_coord({.lane = static_cast<int>(threadIdx.x) % 32, .nibble = nibble});
    const int token = part == layout::KvPart::Key ? at.row : at.col;
    const int dim = first_dim + (part == layout::KvPart::Key ? at.col : at.row);
    word |= static_cast<std::uint32_t>(codes[token * head_dim + dim]) << (4 * nibble);
  }
  return word;
}

// What follows is done by kWarps warps together, `warp` being the own one's number among them.

// Codes and parameters of the 16 tokens from `first_token` of a page on; row(i) is where the BF16 row of
// token i of these lies. codes: [16 tokens][head_dim].
template <int kHeadDim, int kWarps, class Row>
__device__ void encode_kv_block(const layout::KvPageInt4& page, std::uint8_t* page_data,
                                layout::KvPart part, int head, int first_token, const Row& row,
                                std::uint8_t* codes, int warp) {
  constexpr int kDims = kHeadDim / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < layout::KvPageInt4::kBlockTokens / kWarps; ++i) {
    const int token = i * kWarps + warp;
    const std::uint16_t* from = row(token) + kDims * lane;
    float numbers[kDims];
#pragma unroll
    for (int d = 0; d < kDims; ++d) numbers[d] = bf16_to_f32(from[d]);
    encode_row<kDims>(page, numbers,
                      page_data + page.params_offset(part, head, first_token + token, 0),
                      codes + token * kHeadDim);
  }
}

// These codes to their words; a barrier of the warps comes before it, and after it where `codes` is
// used again.
template <int kHeadDim, int kWarps>
__device__ void store_kv_block(const layout::KvPageInt4& page, std::uint8_t* page_data,
                               layout::KvPart part, int head, int first_token,
                               const std::uint8_t* codes, int warp) {
  using layout::Int4Tile;
  std::uint8_t* block =
      page_data + page.block_offset(part, head, first_token / layout::KvPageInt4::kBlockTokens);
  for (int tile = warp; tile < kHeadDim / Int4Tile::kTileCols; tile += kWarps) {
    const int dim = tile * Int4Tile::kTileCols;
    const int in_64_dims = dim % Int4Tile::kBlockCols / Int4Tile::kTileCols;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    *reinterpret_cast<std::uint32_t*>(block + dim / Int4Tile::kBlockCols * Int4Tile::kBlockBytes +
                                      16 * lane + 4 * in_64_dims) =
        word_of_codes(part, codes, kHeadDim, dim);
  }
}

}  // namespace fut::cuda
