// Where attention of prompts finds the keys and values of a page of an INT4 cache: rows that it keeps raw,
// the step's own, and codes. All of them become BF16 rows in shared memory.
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/ptx/matrix_fragments.cuh"
#include "kernels/tensor.h"

namespace fut::cuda {

// Rows of both parts of one page.
template <int kHeadDim>
struct KvTile {
  // 16 bytes more than the numbers: eight rows of a matrix load then lie in different banks.
  static constexpr int kStride = kHeadDim + 8;
  alignas(16) std::uint16_t keys[layout::kPageTokens * kStride];
  alignas(16) std::uint16_t values[layout::kPageTokens * kStride];
};

// One sequence of a step, and how far it is looked at.
struct KvSpan {
  const std::int32_t* pages = nullptr;
  int raw_slot = 0;
  int begin = 0;        // first position of the step
  int first_token = 0;  // which token of the step stands there
  int end = 0;          // what follows is read as zeros: it may hold anything
};

template <bool kAligned>
__device__ __forceinline__ uint4 load_8_numbers(const std::uint16_t* from) {
  if constexpr (kAligned) return *reinterpret_cast<const uint4*>(from);
  const auto pair = [&](int i) { return from[i] | static_cast<std::uint32_t>(from[i + 1]) << 16; };
  return {pair(0), pair(2), pair(4), pair(6)};
}

// Row r of `to` from row(r) for all r < 64 but those with skip(r); zeros where row(r) is null. All loads
// are under way before the first is needed.
template <int kHeadDim, int kWarps, bool kAligned, class Row, class Skip>
__device__ __forceinline__ void copy_rows(std::uint16_t* to, const Row& row, const Skip& skip) {
  constexpr int kChunks = kHeadDim / 8;
  constexpr int kThreads = 32 * kWarps;
  constexpr int kOwn = layout::kPageTokens * kChunks / kThreads;
  const auto row_of = [&](int i) {
    return (i * kThreads + static_cast<int>(threadIdx.x)) / kChunks;
  };
  const int column = static_cast<int>(threadIdx.x) % kChunks * 8;
  static_assert(kThreads % kChunks == 0, "a thread's chunks stand below each other");
  uint4 numbers[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const std::uint16_t* from = skip(row_of(i)) ? nullptr : row(row_of(i));
    numbers[i] = from == nullptr ? uint4{} : load_8_numbers<kAligned>(from + column);
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if (skip(row_of(i))) continue;
    *reinterpret_cast<uint4*>(to + row_of(i) * KvTile<kHeadDim>::kStride + column) = numbers[i];
  }
}

// The step's own keys (or values), BF16.
struct StepRows {
  const std::uint16_t* data = nullptr;
  std::int64_t stride = 0;
};

// An INT4 cache, and the step's own rows.
template <int kHeadDim>
struct CodedRows {
  static constexpr int kWarps =
      kHeadDim / 16;  // unpacking is dear: once for as many rows as may be
  const std::uint8_t* data;
  layout::KvPageInt4 page;
  const std::uint16_t* raw;
  layout::KvRawStore raw_rows;
  StepRows keys, values;
  bool aligned;  // the step's rows lie at multiples of 16 bytes

  // The rule of decode for the first query of the step, which holds for all of them: those that
  // follow see the step's own keys raw.
  __device__ static bool is_coded(const KvSpan& span, int position) {
    return position < span.begin && !layout::is_raw(position, span.begin);
  }

  // The row of a position that is not coded.
  __device__ const std::uint16_t* row(const KvSpan& span, layout::KvPart part, int head,
                                      int position) const {
    if (position >= span.end) return nullptr;
    if (position < span.begin) {
      return raw + span.raw_slot * raw_rows.elements() + raw_rows.offset(part, head, position);
    }
    const StepRows& step = part == layout::KvPart::Key ? keys : values;
    return step.data + (span.first_token + position - span.begin) * step.stride + head * kHeadDim;
  }

  template <bool kAligned>
  __device__ void copy(const KvSpan& span, layout::KvPart part, int head, int first,
                       std::uint16_t* to) const {
    copy_rows<kHeadDim, kWarps, kAligned>(
        to, [&](int r) { return row(span, part, head, first + r); },
        [&](int r) { return is_coded(span, first + r); });
  }

  __device__ void load(const KvSpan& span, int head, int first, KvTile<kHeadDim>& tile) const;
};

// ---- codes ---------------------------------------------------------------------------------------

// minimum + scale * u of one token and group; each step is rounded.
struct KvScale {
  float scale, minimum;

  __device__ __forceinline__ explicit KvScale(std::uint32_t params) {
    scale = __half2float(__ushort_as_half(static_cast<std::uint16_t>(params)));
    minimum = __half2float(__ushort_as_half(static_cast<std::uint16_t>(params >> 16)));
  }
  // Of nibble `n` of a word of codes.
  __device__ __forceinline__ float number(std::uint32_t word, int n) const {
    // A float32 has steps of 1 from 2^23 on.
    const float code = __uint_as_float(0x4B000000U | (word >> (4 * n) & 0xFU)) - 0x1p23F;
    return __fadd_rn(minimum, __fmul_rn(scale, code));
  }
};

// What lane 4g + t holds of a 16 x 16 tile of codes: nibble of row g + 8 * lower, column 2t + 8 * right
// + odd.
__device__ __forceinline__ constexpr int nibble_at(int lower, int right, int odd) {
  return layout::int4_fragment_slot(8 * lower, 8 * right + odd).nibble;
}

// What a lane needs of 16 tokens by 64 dims of one part, as it lies in the page: four words, one for each
// 16 dims, and of each half of the dims (kv_group is 32 at least) the parameters of its tokens.
template <layout::KvPart kPart>
struct CodedPiece {
  static constexpr int kTokens = kPart == layout::KvPart::Key ? 2 : 4;
  std::uint32_t words[4];
  std::uint32_t params[2][kTokens];

  // The i-th of this lane's tokens: rows of a tile of keys, columns of one of values.
  __device__ __forceinline__ static int token(int i) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (kPart == layout::KvPart::Key) {
      return layout::int4_fragment_coord({.lane = lane, .nibble = nibble_at(i, 0, 0)}).row;
    } else {
      return layout::int4_fragment_coord({.lane = lane, .nibble = nibble_at(0, i / 2, i % 2)}).col;
    }
  }

  __device__ __forceinline__ void fetch(const layout::KvPageInt4& page,
                                        const std::uint8_t* page_data, int head, int block,
                                        int first_dim) {
    using layout::Int4Tile;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const uint4 all = *reinterpret_cast<const uint4*>(
        page_data + page.block_offset(kPart, head, block) +
        first_dim / Int4Tile::kBlockCols * Int4Tile::kBlockBytes + 16 * lane);
    words[0] = all.x;
    words[1] = all.y;
    words[2] = all.z;
    words[3] = all.w;
    const int first_token = block * layout::KvPageInt4::kBlockTokens;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int group = (first_dim + half * Int4Tile::kBlockCols / 2) / page.kv_group;
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
        params[half][i] = *reinterpret_cast<const std::uint32_t*>(
            page_data + page.params_offset(kPart, head, first_token + token(i), group));
      }
    }
  }

  // To rows of BF16, `corner` being the place of the first token and dim.
  template <int kStride>
  __device__ __forceinline__ void unpack(std::uint16_t* corner) const {
    const int g = static_cast<int>(threadIdx.x) % 32 / 4;
    const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
        const KvScale scale(params[tile / 2][i]);
        std::uint16_t* to = corner + token(i) * kStride + tile * layout::Int4Tile::kTileCols;
        const auto pair = [&](int first, int second) {
          return ptx::bf16x2(scale.number(words[tile], first), scale.number(words[tile], second));
        };
        if constexpr (kPart == layout::KvPart::Key) {
          to += 2 * t;
          *reinterpret_cast<std::uint32_t*>(to) = pair(nibble_at(i, 0, 0), nibble_at(i, 0, 1));
          *reinterpret_cast<std::uint32_t*>(to + 8) = pair(nibble_at(i, 1, 0), nibble_at(i, 1, 1));
        } else {
          const std::uint32_t both = pair(nibble_at(0, i / 2, i % 2), nibble_at(1, i / 2, i % 2));
          to[g] = static_cast<std::uint16_t>(both);
          to[g + 8] = static_cast<std::uint16_t>(both >> 16);
        }
      }
    }
  }
};

// What a warp unpacks of one part of a page: pieces in turns.
template <int kHeadDim, int kWarps, layout::KvPart kPart, class IsCoded>
__device__ __forceinline__ void unpack_page(const layout::KvPageInt4& page,
                                            const std::uint8_t* page_data, int head,
                                            const IsCoded& is_coded, std::uint16_t* rows) {
  constexpr int kPieces = kHeadDim / 64;  // of a block of 16 tokens
  constexpr int kOwn = layout::kPageTokens / layout::KvPageInt4::kBlockTokens * kPieces / kWarps;
  const auto piece_of = [](int i) { return i * kWarps + static_cast<int>(threadIdx.x) / 32; };
  CodedPiece<kPart> pieces[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int block = piece_of(i) / kPieces;
    if (!is_coded(block)) continue;
    pieces[i].fetch(page, page_data, head, block, piece_of(i) % kPieces * 64);
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int block = piece_of(i) / kPieces;
    if (!is_coded(block)) continue;
    constexpr int kStride = KvTile<kHeadDim>::kStride;
    pieces[i].template unpack<kStride>(rows + block * layout::KvPageInt4::kBlockTokens * kStride +
                                       piece_of(i) % kPieces * 64);
  }
}

template <int kHeadDim>
__device__ void CodedRows<kHeadDim>::load(const KvSpan& span, int head, int first,
                                          KvTile<kHeadDim>& tile) const {
  using layout::KvPart;
  if (aligned) {
    copy<true>(span, KvPart::Key, head, first, tile.keys);
    copy<true>(span, KvPart::Value, head, first, tile.values);
  } else {
    copy<false>(span, KvPart::Key, head, first, tile.keys);
    copy<false>(span, KvPart::Value, head, first, tile.values);
  }
  const std::uint8_t* page_data = data + span.pages[first / layout::kPageTokens] * page.bytes();
  const auto coded = [&](int block) {
    return is_coded(span, first + block * layout::KvPageInt4::kBlockTokens);
  };
  unpack_page<kHeadDim, kWarps, KvPart::Key>(page, page_data, head, coded, tile.keys);
  unpack_page<kHeadDim, kWarps, KvPart::Value>(page, page_data, head, coded, tile.values);
}

}  // namespace fut::cuda
