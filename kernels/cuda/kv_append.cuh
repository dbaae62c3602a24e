// The step's own rows on the GPU: rotated and rounded as attention reads them, stored raw, and packed
// with the fifteen before them when their block of 16 is complete. Bit by bit what the CPU stores.
#pragma once

#include <cmath>

#include "kernels/cuda/ptx/async_copy.cuh"
#include "kernels/cuda/ptx/bulk_copy.cuh"
#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/ptx/matrix_fragments.cuh"
#include "kernels/layout/kv_page_int4.h"
#include "kernels/numeric/formats.h"
#include "kernels/numeric/kv_int4.h"

namespace fut::cuda {

// A row in a warp's registers: lane l holds dims l * D/32 and the next ones.
template <int D>
struct WarpRow {
  static constexpr int kOwn = D / 32;
  float v[kOwn];

  __device__ __forceinline__ void load(const float* row) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) v[i] = row[static_cast<int>(threadIdx.x % 32) * kOwn + i];
  }
  __device__ __forceinline__ void load_bf16(const std::uint16_t* row) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i)
      v[i] = bf16_to_f32(row[static_cast<int>(threadIdx.x % 32) * kOwn + i]);
  }

  // numeric/hadamard.h, butterflies and final product in its order. block 0: nothing.
  __device__ __forceinline__ void rotate(int block, float norm) {
    if (block == 0) return;
#pragma unroll
    for (int distance = 1; distance < kOwn; distance *= 2) {
      if (distance >= block) continue;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        if ((i & distance) != 0) continue;
        const float a = v[i];
        const float b = v[i + distance];
        v[i] = a + b;
        v[i + distance] = a - b;
      }
    }
    for (int distance = kOwn; distance < block; distance *= 2) {
      const int lanes = distance / kOwn;
      const bool upper = (threadIdx.x & lanes) != 0;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const float other = __shfl_xor_sync(0xFFFFFFFFU, v[i], lanes);
        v[i] = upper ? other - v[i] : v[i] + other;
      }
    }
#pragma unroll
    for (int i = 0; i < kOwn; ++i) v[i] *= norm;
  }

  __device__ __forceinline__ void round_to_bf16() {
#pragma unroll
    for (int i = 0; i < kOwn; i += 2) {
      const std::uint32_t pair = ptx::bf16x2(v[i], v[i + 1]);
      v[i] = __uint_as_float(pair << 16);
      v[i + 1] = __uint_as_float(pair & 0xFFFF0000U);
    }
  }

  // As 16-bit numbers to a row of shared memory; `pack` makes two of them.
  template <class Pack>
  __device__ __forceinline__ void store(std::uint8_t* row, const Pack& pack) const {
    auto* pairs = reinterpret_cast<std::uint32_t*>(row) + threadIdx.x % 32 * (kOwn / 2);
#pragma unroll
    for (int i = 0; i < kOwn; i += 2) pairs[i / 2] = pack(v[i], v[i + 1]);
  }
};

// What a number is encoded by, and the same as it is stored.
struct PackedParams {
  float minimum;
  float inverse;  // of the scale, nearly; 0 where that is 0
  std::uint32_t bits;
  std::uint32_t unused;
};

// Packs a complete block of 16 tokens, all threads of a block of threads together.
template <int D, int kGroups>
class BlockPacker {
 public:
  // rows: [key | value][16] rows of BF16 in shared memory, row_bytes apart. params: room for
  // [part][token][group]. head: the KV head's bytes in the page. first_token: of the block, within
  // the page.
  __device__ BlockPacker(const std::uint8_t* rows, int row_bytes, PackedParams* params,
                         std::uint8_t* head, int first_token)
      : rows_(rows),
        row_bytes_(row_bytes),
        params_(params),
        head_(head),
        first_token_(first_token) {}

  __device__ __forceinline__ void pack() const {
    for (int i = threadIdx.x; i < 2 * 16 * kPieces; i += blockDim.x) find_params(i);
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * D / 16 * 32; i += blockDim.x) pack_word(i);
  }

 private:
  static constexpr int kPieceDims = 32;  // of a thread that looks for the least and the largest
  static constexpr int kPieces = D / kPieceDims;
  static constexpr int kGroupPieces = kPieces / kGroups;

  [[nodiscard]] __device__ __forceinline__ const std::uint16_t* row(int part, int token) const {
    return reinterpret_cast<const std::uint16_t*>(rows_ + (16 * part + token) * row_bytes_);
  }
  [[nodiscard]] __device__ __forceinline__ PackedParams& params(int part, int token,
                                                                int group) const {
    return params_[(part * 16 + token) * kGroups + group];
  }

  // Of zeros of both signs the first counts as the least and the last as the largest: pieces and
  // numbers are looked at in order.
  __device__ __forceinline__ static void take_in(float v, float& least, float& largest) {
    least = v < least ? v : least;
    largest = v < largest ? largest : v;
  }

  // Piece i of [part][token][piece]; neighbouring lanes hold neighbouring pieces.
  __device__ __forceinline__ void find_params(int i) const {
    const int piece = i % kPieces;
    const int token = i / kPieces % 16;
    const int part = i / kPieces / 16;
    const auto* numbers = reinterpret_cast<const uint4*>(row(part, token) + piece * kPieceDims);
    float least = INFINITY;
    float largest = -INFINITY;
#pragma unroll 1
    for (int n = 0; n < kPieceDims / 8; ++n) {
      const uint4 v = numbers[n];
      const std::uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (const std::uint32_t pair : pairs) {
        take_in(__uint_as_float(pair << 16), least, largest);
        take_in(__uint_as_float(pair & 0xFFFF0000U), least, largest);
      }
    }
#pragma unroll
    for (int distance = 1; distance < kGroupPieces; distance *= 2) {
      const float other_least = __shfl_xor_sync(0xFFFFFFFFU, least, distance);
      const float other_largest = __shfl_xor_sync(0xFFFFFFFFU, largest, distance);
      const bool upper = (piece & distance) != 0;
      const float first = upper ? other_least : least;
      const float second = upper ? least : other_least;
      least = second < first ? second : first;
      const float former = upper ? other_largest : largest;
      const float latter = upper ? largest : other_largest;
      largest = latter < former ? former : latter;
    }
    if (piece % kGroupPieces == 0) store_params(part, token, piece / kGroupPieces, least, largest);
  }

  __device__ __forceinline__ void store_params(int part, int token, int group, float least,
                                               float largest) const {
    constexpr layout::KvPageInt4 kPage{1, D, D / kGroups};
    const KvInt4Params found = kv_int4_params(least, largest);
    const float scale = f16_to_f32(found.scale);
    const std::uint32_t bits = found.scale | std::uint32_t{found.minimum} << 16;
    params(part, token, group) = {f16_to_f32(found.minimum),
                                  scale == 0.0F ? 0.0F : ptx::reciprocal_fast(scale), bits, 0};
    *reinterpret_cast<std::uint32_t*>(head_ + kPage.params_offset(static_cast<layout::KvPart>(part),
                                                                  0, first_token_ + token, group)) =
        bits;
  }

  // Nibble `nibble` of a lane's word, and the number that it stands for.
  struct Place {
    float number;
    const PackedParams& params;
  };
  [[nodiscard]] __device__ __forceinline__ Place place(int part, int tile, int lane,
                                                       int nibble) const {
    constexpr int kGroupDims = D / kGroups;
    const layout::Int4Coord c = layout::int4_fragment_coord({lane, nibble});
    const int token = part == 0 ? c.row : c.col;
    const int dim = 16 * tile + (part == 0 ? c.col : c.row);
    return {bf16_to_f32(row(part, token)[dim]), params(part, token, dim / kGroupDims)};
  }

  // Word i of [part][tile][lane].
  __device__ __forceinline__ void pack_word(int i) const {
    constexpr layout::KvPageInt4 kPage{1, D, D / kGroups};
    const int lane = i % 32;
    const int tile = i / 32 % (D / 16);
    const int part = i / 32 / (D / 16);
    std::uint32_t word = 0;
    bool sure = true;
#pragma unroll
    for (int nibble = 0; nibble < 8; ++nibble) {
      const Place p = place(part, tile, lane, nibble);
      // The true quotient is within 2^-18 of this one, up to 16.
      const float quotient = (p.number - p.params.minimum) * p.params.inverse;
      const float whole = rintf(fminf(fmaxf(quotient, 0.0F), 15.0F));
      sure = sure && !(fabsf(fabsf(quotient - whole) - 0.5F) < 0x1p-12F);
      word |= static_cast<std::uint32_t>(whole) << (4 * nibble);
    }
    if (!sure) word = exact_word(part, tile, lane);
    *reinterpret_cast<std::uint32_t*>(
        head_ +
        kPage.block_offset(static_cast<layout::KvPart>(part), 0,
                           first_token_ / layout::KvPageInt4::kBlockTokens) +
        tile / 4 * layout::Int4Tile::kBlockBytes + 16 * lane + 4 * (tile % 4)) = word;
  }

  // Where a quotient lies so near a border that a true division has to tell.
  [[nodiscard]] __device__ __forceinline__ std::uint32_t exact_word(int part, int tile,
                                                                    int lane) const {
    std::uint32_t word = 0;
#pragma unroll 1
    for (int nibble = 0; nibble < 8; ++nibble) {
      const Place p = place(part, tile, lane, nibble);
      const KvInt4Params stored = {static_cast<std::uint16_t>(p.params.bits & 0xFFFFU),
                                   static_cast<std::uint16_t>(p.params.bits >> 16)};
      word |= static_cast<std::uint32_t>(encode_kv_int4(p.number, stored)) << (4 * nibble);
    }
    return word;
  }

  const std::uint8_t* rows_;
  int row_bytes_;
  PackedParams* params_;
  std::uint8_t* head_;
  int first_token_;
};

}  // namespace fut::cuda
