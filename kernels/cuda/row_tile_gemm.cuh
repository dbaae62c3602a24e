// The row product of 9 to 32 tokens over many rows of 8-bit codes: Y = X W^T, the same bits as row_gemm.cuh
// gives fewer tokens. Sizes and shares are in row_tile_gemm_plan.h, places in layout/row_tile.h.
//
// work     Persistent: a cluster of two blocks takes a contiguous run of strips of 16 rows, each block up to
//          16 of them at a time, all of K. One warp copies stages of 128 columns into a ring: codes by the
//          tensor memory engine, tokens from the second-level cache, half of them by each block for both.
//          Four warpgroups of four strips widen codes in registers and multiply (wgmma).
// sums     As in row_gemm.cuh: one chain for each segment of K, in the order of columns, and the segments'
//          sums as a balanced tree. A thread keeps what waits for its other half: of 1 and 2 segments in
//          registers, of 4 and 8 in shared memory.
// overlap  The first stages of codes are asked for before the kernel before has ended. While a tile's
//          sums are finished, the ring fills up for the next one.
// bound    bytes of the weights
//
// What was tried, and in vain: README.md, "Weights that lie row after row".
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/bulk_copy.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/int4_wgmma.cuh"
#include "kernels/cuda/ptx/multicast_copy.cuh"
#include "kernels/cuda/ptx/tensor_copy.cuh"
#include "kernels/cuda/ptx/warp.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"
#include "kernels/cuda/row_tile_gemm_plan.h"

namespace fut::cuda {

// kPaired: a strip is eight neighbouring rows, and eight others elsewhere, as the order has it.
template <class Format, int kTiles, bool kPaired, class Epilogue>
class RowTileGemm {
 public:
  __device__ RowTileGemm(const RowTileGemmArgs& args, std::uint8_t* shared)
      : args_(args),
        shared_(shared),
        ring_(ptx::shared_address(shared)),
        barriers_(ring_ + row_tile_barriers_offset(kTiles)),
        rank_(static_cast<int>(blockIdx.x) % kRowTileCluster),
        run_(args.strips_of(static_cast<int>(blockIdx.x) / kRowTileCluster,
                            static_cast<int>(gridDim.x) / kRowTileCluster),
             kRowTileCluster) {}

  // By one thread, before anybody uses the ring.
  __device__ void init_barriers() const {
    for (int s = 0; s < kStages; ++s) {
      ptx::barrier_init(full(s), 1);
      ptx::barrier_init(empty(s), 4 * kRowTileConsumers * kRowTileCluster);
    }
    ptx::barrier_init_fence();
  }

  // One warp.
  __device__ void produce(const CUtensorMap& weights) const {
    const int steps = run_.num_tiles * args_.num_stages();
    const int early = min(kStages, steps);
    Place at;
#pragma unroll 1
    for (int step = 0; step < early; ++step) {
      copy_weights(weights, at);
      at.advance(args_.num_stages());
    }
    ptx::take_turn();  // tokens come from the kernel before
#pragma unroll 1
    for (int step = 0; step < early; ++step) copy_tokens(step % args_.num_stages(), step);
#pragma unroll 1
    for (int step = early; step < steps; ++step) {
      ptx::barrier_wait(empty(at.stage), parity_of(step) ^ 1);
      copy_weights(weights, at);
      copy_tokens(at.k, at.stage);
      at.advance(args_.num_stages());
    }
  }

  // A whole warpgroup, number 0 to kRowTileConsumers - 1.
  __device__ void consume(int warpgroup, const Epilogue& epilogue) const {
    int step = 0;
    for (int tile = 0; tile < run_.num_tiles; ++tile) {
      const RowTileStrips part = run_.tile(tile * kRowTileCluster + rank_);
      if (4 * warpgroup < part.count()) {
        Sums sums(saved_sums());
        multiply_tile(sums, step);
        finish(sums.total, part, epilogue);
        __syncwarp();  // products take whole warps
      } else {
        skip_tile(step);
      }
    }
  }

 private:
  static constexpr int kStages = row_tile_stages(kTiles);
  static constexpr int kStageBytes = row_tile_stage_bytes(kTiles);
  static constexpr int kChunkBytes = kTiles * layout::kRowTileChunkBytes;  // of tokens

  // Where the producer stands: a stage of K of a tile, and its place in the ring.
  struct Place {
    int tile = 0;
    int k = 0;
    int stage = 0;

    __device__ void advance(int num_k) {
      stage = stage + 1 == kStages ? 0 : stage + 1;
      if (++k == num_k) {
        k = 0;
        ++tile;
      }
    }
  };

  // The sum of the segment that is being multiplied, and those that wait for their other halves.
  struct Sums {
    float total[kTiles][4] = {};
    float one[kTiles][4] = {};
    float two[kTiles][4] = {};
    float4* four;  // and of eight, behind it
    int segment = 0;

    __device__ explicit Sums(float4* place) : four(place) {}

    // The next segment begins, or after the last one `total` is the sum of all.
    __device__ __forceinline__ void end_segment() {
      if (segment % 2 == 0) {
        put_aside(one);
      } else {
        add(one);
        if (segment % 4 == 1) {
          put_aside(two);
        } else {
          add(two);
          end_quarter();
        }
      }
      ++segment;
    }

   private:
    __device__ __forceinline__ void put_aside(float (&place)[kTiles][4]) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          place[n][i] = total[n][i];
          total[n][i] = 0;
        }
      }
    }
    __device__ __forceinline__ void add(const float (&earlier)[kTiles][4]) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) total[n][i] = earlier[n][i] + total[n][i];
      }
    }
    __device__ __forceinline__ void end_quarter() {
      float4* eight = four + kTiles * 128 * kRowTileConsumers;
      if (segment % 8 == 3) {
        save(four);
      } else {
        add_saved(four);
        if (segment < layout::kNumKSegments / 2) {
          save(eight);
        } else {
          add_saved(eight);
        }
      }
    }
    __device__ __forceinline__ void save(float4* place) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n, place += 128 * kRowTileConsumers) {
        float(&t)[4] = total[n];
        *place = make_float4(t[0], t[1], t[2], t[3]);
        t[0] = t[1] = t[2] = t[3] = 0;
      }
    }
    __device__ __forceinline__ void add_saved(const float4* place) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n, place += 128 * kRowTileConsumers) {
        float(&t)[4] = total[n];
        const float4 v = *place;
        t[0] = v.x + t[0];
        t[1] = v.y + t[1];
        t[2] = v.z + t[2];
        t[3] = v.w + t[3];
      }
    }
  };

  // ---- the ring: step after step of all tiles -----------------------------------------------------

  __device__ static std::uint32_t parity_of(int step) {
    return static_cast<std::uint32_t>(step / kStages % 2);
  }
  __device__ std::uint32_t weights_at(int stage) const {
    return ring_ + stage * kStageBytes;
  }
  __device__ std::uint32_t tokens_at(int stage) const {
    return weights_at(stage) + kRowTileStrips * layout::kRowTileStripBytes;
  }
  __device__ std::uint32_t full(int stage) const {
    return barriers_ + 8 * stage;
  }
  __device__ std::uint32_t empty(int stage) const {
    return barriers_ + 8 * (kStages + stage);
  }
  __device__ int chunks_of(int stage_of_k) const {
    return min(kRowTileStageChunks, args_.num_chunks - kRowTileStageChunks * stage_of_k);
  }

  // Announces all that is going to come, and asks for the codes: a box for each lane, for one lane alone
  // would not keep up.
  __device__ void copy_weights(const CUtensorMap& weights, const Place& at) const {
    constexpr int kHalves = kPaired ? 2 : 1;  // of a strip, that lie apart
    constexpr int kBoxBytes = layout::kRowTileStripBytes / kHalves;
    static_assert(kRowTileStrips * kHalves <= 32);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const RowTileStrips part = run_.tile(at.tile * kRowTileCluster + rank_);
    const std::uint32_t barrier = full(at.stage);
    if (lane == 0) {
      ptx::barrier_expect(barrier,
                          static_cast<std::uint32_t>(part.count() * layout::kRowTileStripBytes +
                                                     chunks_of(at.k) * kChunkBytes));
    }
    __syncwarp();
    if (lane < part.count() * kHalves) {
      const int packed =
          part.begin * layout::kRowTileStripRows + lane * (layout::kRowTileStripRows / kHalves);
      ptx::copy_box(weights_at(at.stage) + lane * kBoxBytes, weights, barrier,
                    at.k * layout::kRowTileRowBytes,
                    kPaired ? args_.order.source_row(packed) : packed, ptx::evict_first_policy());
    }
  }

  // Chunk 0 of a stage is copied by the first block for both, chunk 1 by the second one; by a lane each
  // where a block stands alone.
  __device__ void copy_tokens(int k, int stage) const {
    constexpr auto kAll = static_cast<std::uint16_t>((1 << kRowTileCluster) - 1);
    const int i = rank_ + kRowTileCluster * (static_cast<int>(threadIdx.x) % 32);
    if (i < chunks_of(k)) {
      const std::int64_t chunk = kRowTileStageChunks * k + i;
      ptx::bulk_copy_to_blocks(tokens_at(stage) + i * kChunkBytes,
                               args_.operands + chunk * kChunkBytes, kChunkBytes, full(stage),
                               kAll);
    }
  }

  // This warp has done with a step: both blocks may fill its place, for both write into it.
  __device__ __forceinline__ void release(int stage) const {
    __syncwarp();
    const auto lane = threadIdx.x % 32;
    if (lane < kRowTileCluster) {
      ptx::barrier_arrive_in_cluster(ptx::address_in_block(empty(stage), lane));
    }
  }

  // ---- products -----------------------------------------------------------------------------------

  __device__ float4* saved_sums() const {
    return reinterpret_cast<float4*>(shared_ + row_tile_sums_offset(kTiles)) + threadIdx.x;
  }

  // A warpgroup without strips.
  __device__ void skip_tile(int& step) const {
    for (int k = 0; k < args_.num_stages(); ++k, ++step) {
      ptx::barrier_wait(full(step % kStages), parity_of(step));
      release(step % kStages);
    }
  }

  __device__ __forceinline__ void multiply_tile(Sums& sums, int& step) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const std::uint32_t codes = static_cast<std::uint32_t>(
        ptx::warp_index() * layout::kRowTileStripBytes + layout::tile_codes(lane / 4, lane % 4, 0));
    int segment_end = layout::k_segment_begin(1, args_.num_chunks);
    int chunk = 0;
#pragma unroll 1
    while (true) {
#pragma unroll 1
      while (chunk >= segment_end) {
        sums.end_segment();
        if (sums.segment == layout::kNumKSegments) return;
        segment_end = layout::k_segment_begin(sums.segment + 1, args_.num_chunks);
      }
      const int stage = step % kStages;
      const int half = chunk % kRowTileStageChunks;
      if (half == 0) ptx::barrier_wait(full(stage), parity_of(step));
      multiply_chunk(sums.total, (weights_at(stage) + codes) ^ 64 * half,
                     tokens_at(stage) + half * kChunkBytes);
      ++chunk;
      if (half == kRowTileStageChunks - 1 || chunk == args_.num_chunks) {
        release(stage);
        ++step;
      }
    }
  }

  // Of 64 columns: row_formats.cuh takes the same codes in a step.
  __device__ __forceinline__ void multiply_chunk(float (&sums)[kTiles][4], std::uint32_t codes,
                                                 std::uint32_t tokens) const {
    constexpr int kEightRows = 8 * layout::kRowTileRowBytes;
    const uint4 lower = ptx::load_shared_16(codes);
    const uint4 upper = ptx::load_shared_16(codes + kEightRows);
    std::uint32_t a[4][4];
    Format::widen(a[0][0], a[0][2], lower.x);
    Format::widen(a[0][1], a[0][3], upper.x);
    Format::widen(a[1][0], a[1][2], lower.y);
    Format::widen(a[1][1], a[1][3], upper.y);
    Format::widen(a[2][0], a[2][2], lower.z);
    Format::widen(a[2][1], a[2][3], upper.z);
    Format::widen(a[3][0], a[3][2], lower.w);
    Format::widen(a[3][1], a[3][3], upper.w);
    ptx::multiply_warpgroup<kTiles, 1>(sums, a, ptx::wgmma_descriptor(tokens));
  }

  __device__ void finish(const float (&sums)[kTiles][4], const RowTileStrips& part,
                         const Epilogue& epilogue) const {
    const int strip = part.begin + ptx::warp_index();
    if (strip >= part.end) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int packed = strip * layout::kRowTileStripRows + layout::tile_row(lane / 4);
    const int lower_row = args_.order.source_row(packed);
    const int upper_row = args_.order.source_row(packed + layout::RowOrder::kHalfStrip);
    // Loads before all stores, behind which the compiler would leave them one by one.
    const float scales[2] = {args_.row_scales[max(lower_row, 0)],
                             args_.row_scales[max(upper_row, 0)]};
    float r[kTiles][2];
    load_factors(r);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = 8 * n + lane % 4 * 2 + i;
        if (token >= args_.num_tokens) continue;
        const float factor = args_.scale_factor;
        epilogue.store(token, lower_row, upper_row,
                       Format::finish(sums[n][i], scales, 0, factor, r[n][i]),
                       Format::finish(sums[n][i + 2], scales, 1, factor, r[n][i]));
      }
    }
  }

  // 1 / rms of this thread's tokens.
  __device__ __forceinline__ void load_factors(float (&r)[kTiles][2]) const {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token =
            min(8 * n + static_cast<int>(threadIdx.x) % 4 * 2 + i, args_.num_tokens - 1);
        r[n][i] = args_.factors != nullptr ? args_.factors[token] : 1.0F;
      }
    }
  }

  const RowTileGemmArgs& args_;
  std::uint8_t* shared_;
  std::uint32_t ring_, barriers_;
  int rank_;
  RowTileRun run_;
};

template <class Format, int kTiles, bool kPaired, class Epilogue>
__device__ __forceinline__ void run_row_tile_gemm(const CUtensorMap& weights,
                                                  const RowTileGemmArgs& args,
                                                  const Epilogue& epilogue, std::uint8_t* shared) {
  const RowTileGemm<Format, kTiles, kPaired, Epilogue> gemm(args, shared);
  // Those who multiply come first, so that warps and threads count from 0.
  const int warpgroup = ptx::warp_index() / 4;
  if (threadIdx.x == 0) {
    ptx::prefetch_map(weights);
    gemm.init_barriers();
  }
  ptx::cluster_arrive();
  ptx::cluster_wait();  // all barriers are there to be written to
  if (warpgroup == kRowTileConsumers) {
    ptx::give_registers<kRowTileProducerRegisters>();
    if (ptx::warp_index() == 4 * kRowTileConsumers) gemm.produce(weights);
    __syncwarp();
  } else {
    ptx::take_registers<kRowTileConsumerRegisters>();
    ptx::take_turn();  // before sums are scaled and stored
    gemm.consume(warpgroup, epilogue);
  }
  // Nobody leaves while the other block may still write into its ring or arrive at its barriers.
  ptx::cluster_arrive();
  ptx::cluster_wait();
}

template <class Format, int kTiles, bool kPaired, class Epilogue>
__global__ void __launch_bounds__(kRowTileThreads, 1)
    row_tile_gemm_kernel(const __grid_constant__ CUtensorMap weights,
                         const __grid_constant__ RowTileGemmArgs args,
                         const __grid_constant__ Epilogue epilogue) {
  extern __shared__ __align__(kRowTileAlignment) std::uint8_t row_tile_gemm_shared[];
  run_row_tile_gemm<Format, kTiles, kPaired>(weights, args, epilogue, row_tile_gemm_shared);
}

}  // namespace fut::cuda
