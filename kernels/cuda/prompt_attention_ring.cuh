// What attention of prompts has in shared memory: queries, rings of keys and of values, their barriers, and
// the tile at hand. Numbers of a head come in strips of 64 dims, 128 bytes a row, in the swizzle of wgmma.
#pragma once

#include "kernels/cuda/prompt_attention.h"
#include "kernels/cuda/ptx/bulk_copy.cuh"

namespace fut::cuda {

// Consecutive tokens of one sequence with the heads of one KV head.
struct AttentionTile {
  int num_tokens = 0;  // 0: there is no tile left
  int first_token = 0;
  int first_position = 0;
  int kv_head = 0;
  int kv_length = 0;
  int num_key_tiles = 0;
};

// Byte offsets.
template <int kHeadDim>
struct PromptAttentionShared {
  static constexpr int kStrips = kHeadDim / 64;
  static constexpr int kStages = kHeadDim == 128 ? 3 : 4;  // of either ring
  static constexpr int kStripBytes = kTileKeys * 128;
  static constexpr int kStageBytes = kStrips * kStripBytes;  // of keys, of values and of queries
  static constexpr int kKeys = kStageBytes;
  static constexpr int kValues = kKeys + kStages * kStageBytes;
  static constexpr int kBarriers = kValues + kStages * kStageBytes;
  static constexpr int kTile = kBarriers + 8 * (2 + 4 * kStages);
  static constexpr int kBytes = kTile + static_cast<int>(sizeof(AttentionTile));
  static constexpr int kAlignment = 1024;  // of the swizzle
  static constexpr int kDynamicBytes = kBytes + kAlignment;
  static_assert(kTileQueries == kTileKeys && kDynamicBytes <= 226 * 1024);
};

// Addresses as a thread knows them. Key tiles are numbered over all tiles of a block: the number says the
// stage, and the parity of its barriers.
template <int kHeadDim>
class PromptAttentionRings {
 public:
  using Shared = PromptAttentionShared<kHeadDim>;
  static constexpr int kStages = Shared::kStages;
  static constexpr int kConsumerWarps = 4 * kQueryGroups;
  static constexpr int kKeyRing = 0;
  static constexpr int kValueRing = 1;

  __device__ explicit PromptAttentionRings(std::uint8_t* shared) {
    const std::uint32_t over = ptx::shared_address(shared) % Shared::kAlignment;
    if (over != 0) shared += Shared::kAlignment - over;
    base_ = ptx::shared_address(shared);
    tile_ = reinterpret_cast<AttentionTile*>(shared + Shared::kTile);
  }

  // By one thread, before anybody uses them.
  __device__ void init_barriers() const {
    ptx::barrier_init(queries_full(), 1);
    ptx::barrier_init(queries_empty(), 32 * kConsumerWarps);
    for (int stage = 0; stage < kStages; ++stage) {
      for (const int ring : {kKeyRing, kValueRing}) {
        ptx::barrier_init(full(ring, stage), 1);
        ptx::barrier_init(empty(ring, stage), kConsumerWarps);
      }
    }
    ptx::barrier_init_fence();
  }

  // Filled and emptied with the queries.
  [[nodiscard]] __device__ AttentionTile& tile() const { return *tile_; }
  [[nodiscard]] __device__ std::uint32_t queries() const { return base_; }
  [[nodiscard]] __device__ std::uint32_t at(int ring, int number) const {
    return base_ + (ring == kKeyRing ? Shared::kKeys : Shared::kValues) +
           number % kStages * Shared::kStageBytes;
  }
  [[nodiscard]] __device__ std::uint32_t queries_full() const { return base_ + Shared::kBarriers; }
  [[nodiscard]] __device__ std::uint32_t queries_empty() const { return queries_full() + 8; }
  [[nodiscard]] __device__ std::uint32_t full(int ring, int number) const {
    return queries_full() + 16 + 8 * (ring * kStages + number % kStages);
  }
  [[nodiscard]] __device__ std::uint32_t empty(int ring, int number) const {
    return full(ring, number) + 8 * 2 * kStages;
  }
  [[nodiscard]] __device__ static std::uint32_t parity_of(int number) {
    return static_cast<std::uint32_t>(number / kStages) & 1U;
  }

 private:
  std::uint32_t base_ = 0;
  AttentionTile* tile_ = nullptr;
};

}  // namespace fut::cuda
