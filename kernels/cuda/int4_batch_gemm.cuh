// The main loop of INT4 projections for several tokens, 32 at most: Y = X W^T with W as
// layout/int4_tile.h has it, products by wgmma.
//
// work     A block takes 64 rows of W for each of its warpgroups, a warp one strip of 16, and all of K, or
//          a cluster of blocks takes the same rows and each of them some of the 16 segments of K. One
//          more warpgroup feeds the others.
// stages   Some groups of K: the records of the block's strips and the groups' columns of all tokens, F16,
//          copied by the tensor memory engine into a ring. The first weights are on their way before the
//          predecessor has ended.
// sums     As in int4_gemm.cuh, bit by bit: a group's products in one chain that starts from the bias of
//          the stored codes (made by those who feed, once for the block); times scale, groups
//          ascending; segments merged as layout/k_segments.h says, those before the last one parked in
//          shared memory; then blocks of a cluster read each other's sums.
// bound    bytes of the weights
//
// What was tried, and in vain: README.md, "The INT4 main loop".
#pragma once

#include <cstdint>

#include "kernels/cuda/int4_batch_plan.h"
#include "kernels/cuda/int4_batch_sums.cuh"
#include "kernels/cuda/int4_output.h"
#include "kernels/cuda/int4_record.cuh"
#include "kernels/cuda/ptx/async_copy_4.cuh"
#include "kernels/cuda/ptx/bulk_copy.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/int4_mma.cuh"
#include "kernels/cuda/ptx/int4_wgmma.cuh"
#include "kernels/cuda/ptx/matrix_fragments.cuh"
#include "kernels/cuda/ptx/tensor_copy.cuh"
#include "kernels/cuda/ptx/warp.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"

namespace fut::cuda {

// What a block has of the matrix: rows after rows, and of each the same groups, in pieces.
class Int4BatchWork {
 public:
  __device__ explicit Int4BatchWork(const Int4BatchArgs& args)
      : args_(args),
        rank_(static_cast<int>(blockIdx.x) % args.cluster),
        row_group_(static_cast<int>(blockIdx.x) / args.cluster),
        step_(static_cast<int>(gridDim.x) / args.cluster) {}

  [[nodiscard]] __device__ int rank() const { return rank_; }
  [[nodiscard]] __device__ int first_row_group() const { return row_group_; }
  [[nodiscard]] __device__ int row_group_step() const { return step_; }
  [[nodiscard]] __device__ int num_row_groups() const {
    return (args_.row_groups() - row_group_ + step_ - 1) / step_;
  }
  // Of the block's segment s, counted from its first.
  [[nodiscard]] __device__ int segment_begin(int s) const {
    return layout::k_segment_begin(rank_ * args_.segments() + s, args_.num_groups);
  }
  [[nodiscard]] __device__ int first_group() const { return segment_begin(0); }
  [[nodiscard]] __device__ int end_group() const { return segment_begin(args_.segments()); }

 private:
  const Int4BatchArgs& args_;
  int rank_, row_group_, step_;
};

// What a kernel takes: tokens [columns / 64][token][64], weights [strip][group][record].
struct Int4BatchMaps {
  CUtensorMap tokens, weights;
};

// Of a warp that makes biases those that store them: a token pair of each tile of eight each.
inline constexpr int kInt4BiasLanes = 4;

// Addresses in the ring.
template <class Config>
class Int4BatchRing {
 public:
  __device__ Int4BatchRing(const Int4BatchArgs& args, std::uint32_t shared)
      : stages_(args.stages),
        ring_(shared + args.layout.ring),
        stage_bytes_(args.layout.stage_bytes),
        barriers_(shared + args.layout.barriers),
        biases_(shared + args.layout.biases) {}

  // By one thread; warps: those that use the ring.
  __device__ void init_barriers(int warps) const {
    for (int s = 0; s < stages_; ++s) {
      ptx::barrier_init(full(s), 1);
      ptx::barrier_init(ready(s), kInt4BiasLanes);
      ptx::barrier_init(empty(s), warps);
    }
    ptx::barrier_init_fence();
  }

  [[nodiscard]] __device__ int stages() const { return stages_; }
  // Copies have arrived; biases are there as well; all warps have done with it.
  [[nodiscard]] __device__ std::uint32_t full(int stage) const { return barriers_ + 24 * stage; }
  [[nodiscard]] __device__ std::uint32_t ready(int stage) const { return full(stage) + 8; }
  [[nodiscard]] __device__ std::uint32_t empty(int stage) const { return full(stage) + 16; }

  // Of group 0; kTokenBytes from group to group.
  [[nodiscard]] __device__ std::uint32_t tokens(int stage) const {
    return ring_ + stage * stage_bytes_;
  }
  // Of strip 0; kRecordBytes from group to group and kStripBytes from strip to strip.
  static constexpr int kStripBytes = Config::kStageGroups * Config::kRecordBytes;
  [[nodiscard]] __device__ std::uint32_t records(int stage) const {
    return tokens(stage) + Config::kStageGroups * Config::kTokenBytes;
  }
  // Of lane t: float4, 64 bytes from tile to tile, kBiasBytes from group to group.
  [[nodiscard]] __device__ std::uint32_t biases(int stage) const {
    return biases_ + stage * (Config::kStageGroups * Config::kBiasBytes);
  }

  __device__ void advance(int& stage, std::uint32_t& parity) const {
    if (++stage == stages_) {
      stage = 0;
      parity ^= 1;
    }
  }

 private:
  int stages_;
  std::uint32_t ring_;
  int stage_bytes_;
  std::uint32_t barriers_, biases_;
};

// The warpgroup that fills the ring, by its first warp, and makes biases, by the others.
template <class Config>
class Int4BatchFeeder {
 public:
  __device__ Int4BatchFeeder(const Int4BatchArgs& args, const Int4BatchMaps& maps,
                             const Int4BatchRing<Config>& ring)
      : args_(args), maps_(maps), ring_(ring), work_(args) {
    const int groups = work_.end_group() - work_.first_group();
    uses_ = (groups + Config::kStageGroups - 1) / Config::kStageGroups * work_.num_row_groups();
  }

  // A whole warp, of which one lane asks: in a branch of one lane alone the compiler would take addresses of
  // the products, far from here, for ones that differ from lane to lane.
  __device__ void copy() const {
    const std::uint64_t policy = ptx::evict_first_policy();
    Place weights = {work_.first_row_group(), work_.first_group()};
    Place tokens = weights;
    const int first = min(ring_.stages(), uses_);
    for (int s = 0; s < first; ++s) request_weights(s, weights, policy);
    ptx::take_turn();
    for (int s = 0; s < first; ++s) request_tokens(s, tokens);
    int stage = 0;
    std::uint32_t parity = 0;
    for (int use = first; use < uses_; ++use) {
      ptx::barrier_wait(ring_.empty(stage), parity);
      request_weights(stage, weights, policy);
      request_tokens(stage, tokens);
      ring_.advance(stage, parity);
    }
  }

  // A warp, number 0 .. kBiasWarps - 1. A stage is always the same warp's: another could come to wait for its
  // next use before this one, and a barrier tells only every other use apart.
  __device__ void make_biases(int number) const {
    int stage = 0;
    std::uint32_t parity = 0;
    for (int use = 0; use < uses_; ++use) {
      if (stage % kBiasWarps == number) {
        ptx::barrier_wait(ring_.full(stage), parity);
#pragma unroll 1
        for (int i = 0; i < Config::kStageGroups; ++i) {
#pragma unroll 1
          for (int n = 0; n < Config::kTiles; ++n) make_bias(stage, i, n);
        }
        __syncwarp();
        // Each lane for what it stored itself, which is all that racecheck believes.
        ptx::barrier_arrive_if(ring_.ready(stage), threadIdx.x % 32 < kInt4BiasLanes);
      }
      ring_.advance(stage, parity);
    }
  }

  static constexpr int kBiasWarps = 3;

 private:
  struct Place {
    int row_group, group;
  };
  __device__ void advance(Place& p) const {
    p.group += Config::kStageGroups;
    if (p.group >= work_.end_group()) {
      p = {p.row_group + work_.row_group_step(), work_.first_group()};
    }
  }

  // Groups behind the block's last and strips behind the matrix's are copied, or are zeros, and not used.
  __device__ void request_weights(int stage, Place& at, std::uint64_t policy) const {
    if (threadIdx.x % 32 == 0) {
      ptx::barrier_expect(
          ring_.full(stage),
          Config::kStageGroups * (Config::kTokenBytes + args_.strips() * Config::kRecordBytes));
      ptx::copy_box_3(ring_.records(stage), maps_.weights, ring_.full(stage), 0, at.group,
                      at.row_group * args_.strips(), policy);
    }
    __syncwarp();
    advance(at);
  }
  __device__ void request_tokens(int stage, Place& at) const {
    if (threadIdx.x % 32 == 0) {
      ptx::copy_box_3(ring_.tokens(stage), maps_.tokens, ring_.full(stage), 0, 0,
                      at.group * (Config::kGroup / 64));
    }
    __syncwarp();
    advance(at);
  }

  // What the sums of tile n of a stage's group i start from, by the same products in the same order as in
  // the main loop for few tokens.
  __device__ void make_bias(int stage, int i, int n) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    std::uint32_t a[4];
    ptx::bias_operand(a);
    float chain[4] = {};
    const std::uint32_t tokens = ring_.tokens(stage) + i * Config::kTokenBytes;
#pragma unroll
    for (int half = 0; half < Config::kGroup / 32; ++half) {
      std::uint32_t m[4];
      ptx::load_matrices(m,
                         tokens + half / 2 * Config::kBoxBytes +
                             ptx::swizzled_offset(8 * n + lane % 8, half % 2 * 32 + lane / 8 * 8));
      ptx::mma_m16n8k16(chain, a, m[0], m[1]);
      ptx::mma_m16n8k16(chain, a, m[2], m[3]);
    }
    if (lane < kInt4BiasLanes) {
      constexpr float kUpper = layout::kInt4UnitRatio;  // rows g + 8
      ptx::store_shared_floats(
          ring_.biases(stage) + i * Config::kBiasBytes + n * 64 + lane * 16,
          make_float4(chain[0], chain[1], chain[0] * kUpper, chain[1] * kUpper));
    }
  }

  const Int4BatchArgs& args_;
  const Int4BatchMaps& maps_;
  const Int4BatchRing<Config>& ring_;
  const Int4BatchWork work_;
  int uses_;  // of stages
};

// An epilogue is as in int4_gemm.cuh.
template <class Config, class Epilogue>
class Int4BatchGemm {
 public:
  __device__ Int4BatchGemm(const Int4BatchArgs& args, const Int4BatchMaps& maps,
                           const Epilogue& epilogue, std::uint8_t* shared)
      : args_(args),
        maps_(maps),
        epilogue_(epilogue),
        shared_(shared),
        warp_(ptx::warp_index()),
        work_(args),
        ring_(args, ptx::shared_address(shared)) {}

  __device__ void run() {
    if (threadIdx.x == 0) {
      ptx::prefetch_map(maps_.weights);
      ptx::prefetch_map(maps_.tokens);
      ring_.init_barriers(args_.strips());
      *noticed() = 0;
    }
    __syncthreads();
    if (warp_ < args_.strips()) {
      ptx::take_registers<Config::kRegisters>();
      multiply();
    } else {
      ptx::give_registers<Config::kFeederRegisters>();
      feed(warp_ - args_.strips());
    }
    if constexpr (Epilogue::kFinishes) {
      __syncthreads();
      epilogue_.finish(*noticed() != 0);
    }
  }

 private:
  static constexpr int kTiles = Config::kTiles;
  static constexpr int kBlocks = Config::kGroup / 64;
  using Sums = Int4BatchSums<Config>;

  // By the warps of the last warpgroup.
  __device__ void feed(int warp) const {
    const Int4BatchFeeder<Config> feeder(args_, maps_, ring_);
    if (warp > 0) {
      feeder.make_biases(warp - 1);
    } else {
      feeder.copy();
    }
    __syncwarp();
    ptx::take_turn();
    if constexpr (Epilogue::kFinishes) epilogue_.begin();
    if (args_.cluster > 1) {
      ptx::cluster_arrive();
      ptx::cluster_wait();
      ptx::cluster_arrive_relaxed();
      ptx::cluster_wait();
    }
  }

  __device__ void multiply() {
    ptx::take_turn();
    if constexpr (Epilogue::kFinishes) epilogue_.begin();
    load_factors();
    Sums parked(args_, ptx::shared_address(shared_), warp_, work_.rank());
    int stage = 0;
    std::uint32_t parity = 0;
    for (int rows = work_.first_row_group(); rows < args_.row_groups();
         rows += work_.row_group_step()) {
      const int strip = rows * args_.strips() + warp_;
      fetch_inputs(parked, strip);
      float sums[kTiles][4];
      add_up(parked, stage, parity, sums);
      parked.publish(sums);
      if (args_.cluster > 1) {
        finish_shared(parked, strip);
      } else {
        __syncwarp();
        finish_own(parked, strip);
      }
      __syncwarp();  // products take whole warps
    }
  }

  // Whether the epilogue's store() said so to any thread of the block. In shared memory: as a variable of the
  // threads it would make the compiler take the loop of products for one of lanes apart.
  [[nodiscard]] __device__ int* noticed() const {
    return reinterpret_cast<int*>(shared_ + args_.layout.noticed);
  }

  // For all who multiply.
  __device__ void load_factors() const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    auto* factors = reinterpret_cast<float*>(shared_ + args_.layout.factors);
    if (warp_ == 0) {
      factors[lane] = args_.factors != nullptr && lane < args_.num_tokens ? args_.factors[lane] : 1;
    }
    ptx::meet_at(1, 128 * args_.warpgroups);
  }
  [[nodiscard]] __device__ float factor(int token) const {
    return reinterpret_cast<const float*>(shared_ + args_.layout.factors)[token];
  }

  // ---- products ---------------------------------------------------------------------------------

  // The block's share of K.
  __device__ __forceinline__ void add_up(Sums& parked, int& stage, std::uint32_t& parity,
                                         float (&sums)[kTiles][4]) const {
    int segment = 0;
    int segment_end = work_.segment_begin(1);
    const int end = work_.end_group();
    clear(sums);
    // Merges segments that are complete, also those without groups.
    const auto merge_until = [&](int group) {
      while (group == segment_end) {
        parked.merge(segment, sums);
        if (++segment == args_.segments()) return;
        clear(sums);
        segment_end = work_.segment_begin(segment + 1);
      }
    };
    merge_until(work_.first_group());
#pragma unroll 1
    for (int group = work_.first_group(); group < end; group += Config::kStageGroups) {
      ptx::barrier_wait(ring_.full(stage), parity);
      ptx::barrier_wait(ring_.ready(stage), parity);
      float chain[Config::kStageGroups][kTiles][4];
      float2 scales[Config::kStageGroups];
      multiply_stage(stage, chain, scales);
      __syncwarp();
      if (threadIdx.x % 32 == 0) ptx::barrier_arrive(ring_.empty(stage));
      ring_.advance(stage, parity);
#pragma unroll
      for (int i = 0; i < Config::kStageGroups; ++i) {
        if (i > 0 && group + i == end) break;
        add_scaled(scales[i], chain[i], sums);
        if (group + i + 1 == segment_end) merge_until(group + i + 1);
      }
    }
  }

  __device__ __forceinline__ static void clear(float (&sums)[kTiles][4]) {
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) sums[i / 4][i % 4] = 0;
  }

  // The products of a stage's groups, each a chain of its own, and their scales.
  __device__ __forceinline__ void multiply_stage(int stage,
                                                 float (&chain)[Config::kStageGroups][kTiles][4],
                                                 float2 (&scales)[Config::kStageGroups]) const {
    constexpr int kCount = Config::kStageGroups;
    constexpr int kTogether = Config::kTogether;
    const auto lane = static_cast<int>(threadIdx.x) % 32;
    const std::uint32_t record = ring_.records(stage) + warp_ * Int4BatchRing<Config>::kStripBytes;
    uint4 words[kCount][kBlocks];
    const auto load = [&](int i, int block) {
      words[i][block] = load_codes(record + i * Config::kRecordBytes, block);
    };
    // All of them at once where there are registers.
    constexpr int kAhead = kTiles == 4 ? kTogether : kBlocks;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int block = 0; block < kAhead; ++block) load(i, block);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float4 start = ptx::load_shared_floats(ring_.biases(stage) + i * Config::kBiasBytes +
                                                     n * 64 + lane % 4 * 16);
        chain[i][n][0] = start.x;
        chain[i][n][1] = start.y;
        chain[i][n][2] = start.z;
        chain[i][n][3] = start.w;
      }
    }
#pragma unroll
    for (int block = 0; block < kBlocks; block += kTogether) {
      std::uint32_t a[kCount][4 * kTogether][4];
      std::uint64_t b[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          if (block + j >= kAhead) load(i, block + j);
          const uint4& w = words[i][block + j];
          ptx::unpack_codes(a[i][4 * j], w.x);
          ptx::unpack_codes(a[i][4 * j + 1], w.y);
          ptx::unpack_codes(a[i][4 * j + 2], w.z);
          ptx::unpack_codes(a[i][4 * j + 3], w.w);
        }
        b[i] = ptx::wgmma_descriptor(ring_.tokens(stage) + i * Config::kTokenBytes +
                                     block * Config::kBoxBytes);
      }
      ptx::multiply_chains<kTiles, kCount, kTogether>(chain, a, b);
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      scales[i] = load_scales<Config::kRecordBytes>(record + i * Config::kRecordBytes);
    }
  }

  // sums += scale times the products of a group.
  __device__ __forceinline__ static void add_scaled(const float2& scales,
                                                    const float (&chain)[kTiles][4],
                                                    float (&sums)[kTiles][4]) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[n][j] += (j < 2 ? scales.x : scales.y) * chain[n][j];
    }
  }

  // ---- results ----------------------------------------------------------------------------------

  [[nodiscard]] __device__ float* inputs(const Sums& parked, int pair) const {
    return reinterpret_cast<float*>(shared_ + args_.layout.inputs) +
           ((warp_ * parked.owned() + pair) * 32 + threadIdx.x % 32) * 4;
  }

  // Calls fn(output, number among this lane's) for the outputs that this lane finishes.
  template <class Fn>
  __device__ __forceinline__ void for_each_output(const Sums& parked, int strip,
                                                  const Fn& fn) const {
    if (strip >= args_.num_strips || !parked.finishes()) return;
#pragma unroll 1
    for (int i = 0; i < parked.owned(); ++i) {
      const Int4Output out{strip, static_cast<int>(threadIdx.x) % 32 / 4, parked.token(i)};
      if (out.token < args_.num_tokens) fn(out, i);
    }
  }

  __device__ void fetch_inputs(const Sums& parked, int strip) const {
    if constexpr (Epilogue::kFetches) {
      for_each_output(parked, strip, [&](const Int4Output& out, int i) {
        epilogue_.fetch(out, epilogue_.look_ahead(out), ptx::shared_address(inputs(parked, i)));
      });
    }
  }

  __device__ void store(const Sums& parked, const Int4Output& out, int i, const float2& pair) {
    const bool notices =
        epilogue_.store(out, pair.x * (1 / layout::kInt4LowUnit),
                        pair.y * (1 / layout::kInt4HighUnit), factor(out.token), inputs(parked, i));
    if constexpr (Epilogue::kFinishes) {
      if (notices) *noticed() = 1;
    }
  }

  __device__ void finish_shared(const Sums& parked, int strip) {
    switch (args_.cluster) {
      case 2:
        return finish_cluster<2>(parked, strip);
      case 4:
        return finish_cluster<4>(parked, strip);
      default:
        return finish_cluster<8>(parked, strip);
    }
  }

  // Reads what others published before anything is stored: their blocks have to stay until then, and a
  // barrier behind the stores would wait for them.
  template <int kCluster>
  __device__ __forceinline__ void finish_cluster(const Sums& parked, int strip) {
    constexpr int kOwned = batch_owned_pairs(kTiles, kCluster);
    ptx::cluster_arrive();
    ptx::cluster_wait();
    const bool finishes = parked.finishes() && strip < args_.num_strips;
    float pairs[kOwned][2] = {};
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      if (!finishes) continue;
      const float2 pair = parked.template collect<kCluster>(i);
      pairs[i][0] = pair.x;
      pairs[i][1] = pair.y;
    }
    ptx::hold_registers(pairs);  // loads are over when their values are there
    __syncwarp();
    ptx::cluster_arrive_relaxed();
    if constexpr (Epilogue::kFetches) ptx::wait_for_copies();
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      const Int4Output out{strip, static_cast<int>(threadIdx.x) % 32 / 4, parked.token(i)};
      if (finishes && out.token < args_.num_tokens)
        store(parked, out, i, make_float2(pairs[i][0], pairs[i][1]));
    }
    __syncwarp();
    ptx::cluster_wait();
  }

  __device__ void finish_own(const Sums& parked, int strip) {
    if constexpr (Epilogue::kFetches) ptx::wait_for_copies();
    for_each_output(parked, strip, [&](const Int4Output& out, int i) {
      store(parked, out, i, parked.own_pair(i));
    });
  }

  const Int4BatchArgs& args_;
  const Int4BatchMaps& maps_;
  const Epilogue& epilogue_;
  std::uint8_t* shared_;
  int warp_;
  const Int4BatchWork work_;
  const Int4BatchRing<Config> ring_;
};

template <class Config, class Epilogue>
__global__ void __launch_bounds__(Config::kThreads, 1)
    int4_batch_gemm_kernel(const __grid_constant__ Int4BatchArgs args,
                           const __grid_constant__ Int4BatchMaps maps,
                           const __grid_constant__ Epilogue epilogue) {
  extern __shared__ __align__(1024) std::uint8_t int4_batch_gemm_shared[];
  Int4BatchGemm<Config, Epilogue>(args, maps, epilogue, int4_batch_gemm_shared).run();
}

}  // namespace fut::cuda
