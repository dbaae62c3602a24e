// The main loop of every product of a prompt's tokens: Y[M, N] = X[M, K] W[N, K]^T, E4M3 or BF16
// operands, float32 sums. Epilogues are in the ops' own files, sizes in prompt_gemm_plan.h.
//
// work     Persistent: a block takes tile after tile of 128 tokens by 128 or 256 weight rows; a cluster of
//          two blocks takes neighbouring tokens and the same rows, of which each block loads half for
//          both. One thread copies stages of 128 bytes of K by the tensor memory engine into a ring; two
//          warpgroups of 64 tokens each multiply out of it (wgmma) and finish their sums.
// overlap  The second warpgroup runs some stages behind the first, so that each has the tensor cores for
//          itself while the other one finishes a tile; the ring is filled for the next tile meanwhile.
// sums     One chain of the tensor core over K, ascending in steps of 32 bytes of a row, whatever tile and
//          cluster are chosen and whatever tokens stand beside: the same bits always.
// bound    arithmetic
//
// What was tried, and in vain: README.md, "Products of prompts".
#pragma once

#include <cstdint>

#include "kernels/cuda/prompt_gemm_plan.h"
#include "kernels/cuda/ptx/bulk_copy.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/tensor_copy.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "kernels/layout/prompt_tile.h"

namespace fut::cuda {

// Operand formats.
struct PromptE4m3 {
  using Operands = ptx::E4m3Operands;
  static constexpr int kBytes = 1;
  static constexpr bool kHasScales = true;
};
struct PromptBf16 {
  using Operands = ptx::Bf16Operands;
  static constexpr int kBytes = 2;
  static constexpr bool kHasScales = false;
};

// Parameters of a kernel: that is where maps may lie.
struct PromptMaps {
  CUtensorMap x;
  CUtensorMap weights[PromptProduct::kMaxParts];
};

// Where the sums of this thread belong: tokens `token` and token + 8.
struct PromptPlace {
  int token = 0;
  PromptTile tile;
  const float* scales = nullptr;  // of the tile's rows, in shared memory, as they come
};

// kSpread: rows lie in layout's spread order; see PromptGemmArgs.
template <class Format, int kTileRows, bool kSpread, class Epilogue>
class PromptGemm {
 public:
  static constexpr int kStages = prompt_stages(kTileRows);
  static constexpr int kStageBytes = prompt_stage_bytes(kTileRows);
  static constexpr int kStageColumns = layout::kPromptRowBytes / Format::kBytes;

  __device__ PromptGemm(const PromptMaps& maps, const PromptGemmArgs& args, std::uint8_t* shared)
      : maps_(maps),
        args_(args),
        shared_(aligned(shared)),
        ring_(ptx::shared_address(shared_)),
        barriers_(ring_ + kStages * kStageBytes),
        rank_(static_cast<int>(blockIdx.x) % args.cluster) {}

  __device__ __forceinline__ void run(const Epilogue& epilogue) const {
    // The same for all lanes of a warp, so that the compiler knows it.
    const int warpgroup = __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / 128, 0);
    if (threadIdx.x == 0) {
      ptx::prefetch_map(maps_.x);
      ptx::prefetch_map(maps_.weights[0]);
      init_barriers();
    }
    ptx::cluster_arrive();
    ptx::cluster_wait();
    ptx::take_turn();
    if (warpgroup == 0) {
      ptx::give_registers<56>();
      if (threadIdx.x == 0) produce();
      __syncwarp();
    } else {
      ptx::take_registers<224>();
      consume(warpgroup - 1, epilogue);
    }
    // Nobody leaves while the other block may still write into its ring or arrive at its barriers.
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }

 private:
  // By one thread, before anybody uses the ring.
  __device__ void init_barriers() const {
    for (int s = 0; s < kStages; ++s) {
      ptx::barrier_init(full(s), 1);
      ptx::barrier_init(empty(s), static_cast<std::uint32_t>(4 * kPromptConsumers * args_.cluster));
    }
    ptx::barrier_init_fence();
  }

  // One thread.
  __device__ void produce() const {
    int stage = 0;
    std::uint32_t parity = 0;
    for (int index = first_tile(); index < args_.num_tiles; index += num_clusters()) {
      const PromptTile tile = args_.tile(index);
      for (int k = 0; k < args_.num_stages_of_k; ++k) {
        ptx::barrier_wait(empty(stage), parity ^ 1);
        ptx::barrier_expect(full(stage), kStageBytes);
        ptx::copy_box(tokens_at(stage), maps_.x, full(stage), k * kStageColumns,
                      (tile.token_tile + rank_) * layout::kPromptTileTokens);
        copy_weights(tile, stage, k * kStageColumns);
        advance(stage, parity);
      }
    }
  }

  // A whole warpgroup, number 0 or 1.
  __device__ void consume(int warpgroup, const Epilogue& epilogue) const {
    int stage = 0;
    std::uint32_t parity = 0;
    float sums[kTileRows / 2];
    float scales[kTileRows / 128];
    int buffer = 0;
    if (warpgroup == 1) ptx::barrier_wait(full(args_.lag - 1), 0);
    for (int index = first_tile(); index < args_.num_tiles; index += num_clusters()) {
      const PromptTile tile = args_.tile(index);
      load_scales(scales, tile);  // which arrive while the tile is multiplied
      int previous = 0;
      for (int k = 0; k < args_.num_stages_of_k; ++k) {
        ptx::barrier_wait(full(stage), parity);
        multiply(sums, stage, warpgroup, k);
        ptx::wgmma_wait<1>();
        if (k > 0) release(previous);
        previous = stage;
        advance(stage, parity);
      }
      ptx::wgmma_wait<0>();
      ptx::hold_registers(sums);
      release(previous);
      const float* tile_scales = share_scales(scales, warpgroup, buffer);
      buffer ^= 1;
      const int thread = static_cast<int>(threadIdx.x) % 128;
      const int token = (tile.token_tile + rank_) * layout::kPromptTileTokens + 64 * warpgroup +
                        layout::prompt_sum(thread, 0).token;
      epilogue.template finish<Format, kSpread>(sums, args_, PromptPlace{token, tile, tile_scales});
      __syncwarp();  // products take whole warps
    }
  }

  __device__ static std::uint8_t* aligned(std::uint8_t* shared) {
    const std::uint32_t over = ptx::shared_address(shared) % kPromptAlignment;
    return shared + (over == 0 ? 0 : kPromptAlignment - over);
  }

  // Of the rows of a tile, some for each thread of a warpgroup.
  __device__ void load_scales(float (&scales)[kTileRows / 128], const PromptTile& tile) const {
    if constexpr (Format::kHasScales) {
#pragma unroll
      for (int i = 0; i < kTileRows / 128; ++i) {
        int row = static_cast<int>(threadIdx.x) % 128 + 128 * i;
        int part = tile.part;
        if (args_.paired && row >= args_.rows_of_tile) {
          row -= args_.rows_of_tile;
          part = 1;
        }
        row += tile.row;
        // Not through the cache of what never changes: expanded weights get others at the same address.
        const float* all = args_.row_scales + args_.part_begin[part];
        scales[i] = row < args_.part_rows[part] ? all[row] : 0.0F;
      }
    }
  }
  // For all of the warpgroup, times the factor. Of two buffers in turns the one that nobody reads any more.
  __device__ const float* share_scales(const float (&scales)[kTileRows / 128], int warpgroup,
                                       int buffer) const {
    auto* all = reinterpret_cast<float*>(shared_ + kStages * (kStageBytes + 2 * 8)) +
                (2 * warpgroup + buffer) * kTileRows;
    if constexpr (Format::kHasScales) {
#pragma unroll
      for (int i = 0; i < kTileRows / 128; ++i) {
        all[threadIdx.x % 128 + 128 * i] = scales[i] * args_.scale_factor;
      }
      ptx::meet_at(1 + warpgroup, 128);
    }
    return all;
  }

  __device__ int first_tile() const {
    return static_cast<int>(blockIdx.x) / args_.cluster;
  }
  __device__ int num_clusters() const {
    return static_cast<int>(gridDim.x) / args_.cluster;
  }

  __device__ std::uint32_t tokens_at(int stage) const {
    return ring_ + stage * kStageBytes;
  }
  __device__ std::uint32_t weights_at(int stage) const {
    return tokens_at(stage) + kPromptTokenBytes;
  }
  __device__ std::uint32_t full(int stage) const {
    return barriers_ + 8 * stage;
  }
  __device__ std::uint32_t empty(int stage) const {
    return barriers_ + 8 * (kStages + stage);
  }

  __device__ static void advance(int& stage, std::uint32_t& parity) {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }

  // Both halves of the tile's rows, or this block's half for both blocks.
  __device__ void copy_weights(const PromptTile& tile, int stage, int column) const {
    constexpr int kHalf = kTileRows / 2;
    const int first = args_.cluster == 2 ? rank_ : 0;
    const int end = args_.cluster == 2 ? rank_ + 1 : 2;
    for (int half = first; half < end; ++half) {
      const CUtensorMap& map = maps_.weights[args_.paired ? half : tile.part];
      const int row = tile.row + (args_.paired ? 0 : half * kHalf);
      const std::uint32_t place = weights_at(stage) + half * (kHalf * layout::kPromptRowBytes);
      if (args_.cluster == 2) {
        constexpr std::uint16_t kBoth = 3;
        if constexpr (kSpread) {
          ptx::copy_box_5(place, map, full(stage), column, row / layout::kSpreadRows, kBoth);
        } else {
          ptx::copy_box(place, map, full(stage), column, row, kBoth);
        }
      } else if constexpr (kSpread) {
        ptx::copy_box_5(place, map, full(stage), column, row / layout::kSpreadRows);
      } else {
        ptx::copy_box(place, map, full(stage), column, row);
      }
    }
  }

  // Adds the products of a stage to the sums; the first stage of a tile begins them.
  __device__ __forceinline__ void multiply(float (&sums)[kTileRows / 2], int stage, int warpgroup,
                                           int k) const {
    constexpr int kSteps = layout::kPromptRowBytes / 32;
    constexpr int kTokenBytes = 64 * layout::kPromptRowBytes;
    const std::uint64_t tokens = ptx::wgmma_descriptor(tokens_at(stage) + warpgroup * kTokenBytes);
    const std::uint64_t weights = ptx::wgmma_descriptor(weights_at(stage));
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      ptx::wgmma(typename Format::Operands{}, sums, tokens + 2 * step, weights + 2 * step,
                 step > 0 ? 1 : k);
    }
    ptx::wgmma_commit();
  }

  // This warp has done with a stage: all blocks of the cluster may fill it, which write into it.
  __device__ __forceinline__ void release(int stage) const {
    const auto lane = threadIdx.x % 32;
    if (lane < static_cast<unsigned>(args_.cluster)) {
      ptx::barrier_arrive_in_cluster(ptx::address_in_block(empty(stage), lane));
    }
  }

  const PromptMaps& maps_;
  const PromptGemmArgs& args_;
  std::uint8_t* shared_;
  std::uint32_t ring_, barriers_;
  int rank_;
};

template <class Format, int kTileRows, bool kSpread, class Epilogue>
__global__ void __launch_bounds__(kPromptThreads, 1)
    prompt_gemm_kernel(const __grid_constant__ PromptMaps maps,
                       const __grid_constant__ PromptGemmArgs args,
                       const __grid_constant__ Epilogue epilogue) {
  extern __shared__ __align__(1024) std::uint8_t prompt_gemm_shared[];
  PromptGemm<Format, kTileRows, kSpread, Epilogue>(maps, args, prompt_gemm_shared).run(epilogue);
}

}  // namespace fut::cuda
