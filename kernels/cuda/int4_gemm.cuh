// The main loop of every INT4 projection for 1 to 32 tokens: Y = X W^T with W as layout/int4_tile.h
// has it. Operands and epilogues are parameters; what they are is in the ops' own files.
//
// work     A cluster of C blocks takes a contiguous run of strips. Of the 16 segments of K each block
//          takes 16 / C, and of the strips each warp takes every C-th: 16 warps, one segment each.
//          Nothing is shared by warps until a strip's segments are added up, so no barrier of the
//          block stands in the loop over the weights.
// weights  Each warp has a ring of pieces, some groups of one strip, that bulk copies fill and refill; they start before the predecessor kernel has ended, for nobody writes weights.
// tokens   F16, in shared memory in the order of operand B: for 64 columns lane t has the 16 halves
//          that it needs of a token side by side. With one tile of 8 tokens a warp holds its part in
//          registers, where it fits.
// sums     A group's products are added by the tensor core, one chain for each 64 columns, the two
//          chains added; times scale, groups ascending; segments merged as layout/k_segments.h says.
//          None of it depends on the number of tokens, of blocks or of pieces: the same bits always.
// bound    bytes of the weights
#pragma once

#include <cstdint>

#include "kernels/cuda/int4_gemm_plan.h"
#include "kernels/cuda/ptx/bulk_copy.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/int4_mma.cuh"
#include "kernels/layout/k_segments.h"

namespace fut::cuda {

// v[0] + ... + v[kCount - 1] as a balanced binary tree, the stride in floats.
template <int kCount>
__device__ __forceinline__ float tree_sum(const float* values, int stride) {
  if constexpr (kCount == 1) {
    return values[0];
  } else {
    return tree_sum<kCount / 2>(values, stride) +
           tree_sum<kCount / 2>(values + kCount / 2 * stride, stride);
  }
}

// One warp's pieces of the weights: a ring in shared memory, filled by bulk copies, in the order in
// which they are used. Called by whole warps.
template <class Config>
class WeightRing {
  static_assert(kInt4GemmThreads / 32 == layout::kNumKSegments, "a warp for each segment");
  static_assert(Config::kHeldGroups == 0 || Config::kTiles == 1, "operands of one tile are held");

 public:
  __device__ WeightRing(const Int4GemmArgs& args, std::uint32_t barriers, std::uint32_t buffer,
                        int first_strip, int end_strip, int first_group, int end_group)
      : args_(args),
        barriers_(barriers),
        buffer_(buffer),
        policy_(ptx::evict_first_policy()),
        next_strip_(first_strip),
        end_strip_(end_strip),
        first_group_(first_group),
        next_group_(first_group),
        end_group_(end_group) {
    if (is_leader()) {
      for (int s = 0; s < Config::kStages; ++s) ptx::barrier_init(barriers_ + 8 * s, 1);
      ptx::barrier_init_fence();
      for (int s = 0; s < Config::kStages; ++s) request();
    }
    __syncwarp();
  }

  // The address of the next piece, once it is there.
  __device__ std::uint32_t wait() const {
    ptx::barrier_wait(barriers_ + 8 * stage_, parity_);
    return buffer_ + stage_ * Config::kPieceBytes;
  }

  // All lanes have used what they read of the piece: its place is filled again.
  __device__ void release() {
    __syncwarp();
    if (is_leader()) {
      ptx::order_copies_after_reads();
      request();
    }
    if (++stage_ == Config::kStages) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  __device__ static bool is_leader() { return threadIdx.x % 32 == 0; }

  __device__ const std::uint8_t* record(int strip) const {
    return args_.packed + (static_cast<std::int64_t>(strip) * args_.num_groups + next_group_) *
                              Config::kRecordBytes;
  }

  // Asks for the next piece, where there is one.
  __device__ void request() {
    if (next_strip_ >= end_strip_ || first_group_ >= end_group_) return;
    const int groups = min(Config::kPieceGroups, end_group_ - next_group_);
    const std::uint32_t bytes = groups * Config::kRecordBytes;
    const std::uint32_t barrier = barriers_ + 8 * request_stage_;
    const std::uint32_t place = buffer_ + request_stage_ * Config::kPieceBytes;
    ptx::barrier_expect(barrier, bytes);
    ptx::bulk_copy(place, record(next_strip_), bytes, barrier, policy_);
    if (++request_stage_ == Config::kStages) request_stage_ = 0;
    next_group_ += Config::kPieceGroups;
    if (next_group_ >= end_group_) {
      next_group_ = first_group_;
      next_strip_ += Config::kCluster;
    }
  }

  const Int4GemmArgs& args_;
  std::uint32_t barriers_, buffer_;
  std::uint64_t policy_;
  int next_strip_, end_strip_, first_group_, next_group_, end_group_;
  int request_stage_ = 0;
  int stage_ = 0;
  std::uint32_t parity_ = 0;
};

// Where 4 columns of a token go in shared memory, in halves from the token's begin: columns k, k + 1,
// and 16 halves on k + 2, k + 3. k is a multiple of 4.
__device__ __forceinline__ int operand_offset(int k) {
  const int column = k % 16;
  return k / 64 * 64 + column % 8 / 2 * 16 + k % 64 / 16 * 4 + column / 8 * 2;
}

template <class Config, class Operand, class Epilogue>
class Int4Gemm {
 public:
  __device__ Int4Gemm(const Int4GemmArgs& args, const Operand& operand, const Epilogue& epilogue,
                      std::uint8_t* shared)
      : args_(args),
        operand_(operand),
        epilogue_(epilogue),
        layout_(args.layout),
        shared_(shared),
        rank_(kCluster > 1 ? blockIdx.x % kCluster : 0),
        first_strip_(share(args.num_strips, blockIdx.x / kCluster)),
        end_strip_(share(args.num_strips, blockIdx.x / kCluster + 1)) {
    const int warp = threadIdx.x / 32;
    strip_lane_ = warp / kSegments;
    segment_ = rank_ * kSegments + warp % kSegments;
    first_group_ = layout::k_segment_begin(segment_, args.num_groups);
    end_group_ = layout::k_segment_begin(segment_ + 1, args.num_groups);
    block_column_ = layout::k_segment_begin(rank_ * kSegments, args.num_groups) * Config::kGroup;
  }

  __device__ void run() {
    const int warp = threadIdx.x / 32;
    WeightRing<Config> ring(
        args_, ptx::shared_address(shared_ + layout_.barriers) + warp * Config::kStages * 8,
        ptx::shared_address(shared_ + layout_.ring) + warp * Config::kStages * Config::kPieceBytes,
        first_strip_ + strip_lane_, end_strip_, first_group_, end_group_);
    if constexpr (kCluster > 1) ptx::cluster_arrive();
    ptx::allow_next_kernel();
    ptx::wait_for_previous_kernel();
    if constexpr (kCluster > 1) ptx::cluster_wait();  // all blocks are there to be written to
    stage_tokens();
    if constexpr (kCluster > 1) {
      __syncthreads();
    } else {
      __syncwarp();  // a warp reads what it wrote itself
    }
    find_operands();
    int buffer = 0;
    for (int first = first_strip_; first < end_strip_; first += args_.round_strips * kCluster) {
      multiply_round(ring, first);
      finish_round(first, buffer);
      buffer ^= 1;
    }
    // A block without strips waits for those that still write their squares into it.
    if constexpr (kCluster > 1 && Operand::kNormalised) {
      __syncwarp();
      ptx::cluster_arrive();
      ptx::cluster_wait();
    }
  }

 private:
  static constexpr int kTiles = Config::kTiles;
  static constexpr int kCluster = Config::kCluster;
  static constexpr int kSegments = layout::kNumKSegments / kCluster;  // of a block
  static constexpr int kBlocks = Config::kGroup / 64;                 // of 64 columns, in a group
  static constexpr int kHeldGroups = Config::kHeldGroups;
  static constexpr int kOperandRegisters = 8 * kBlocks;  // of one group and tile of tokens

  __device__ static int share(int strips, int index) {
    const std::int64_t clusters = gridDim.x / kCluster;
    return static_cast<int>(strips * static_cast<std::int64_t>(index) / clusters);
  }

  // ---- tokens -----------------------------------------------------------------------------------

  // Brings this warp's columns of its share of the tokens into shared memory, and for a norm the sum
  // of their squares. Four tokens at a time, so that their loads are under way together.
  __device__ void stage_tokens() {
    for (int first = strip_lane_; first < args_.num_tokens; first += 4 * kCluster) {
      float squares[4] = {};
      for (int k = first_group_ * Config::kGroup; k < end_group_ * Config::kGroup; k += 256) {
        stage_columns(first, k + threadIdx.x % 32 * 4, squares);
      }
      if constexpr (Operand::kNormalised) {
        for (int j = 0; j < 4; ++j) publish_squares(first + j * kCluster, squares[j]);
      }
    }
  }

  __device__ void stage_columns(int first_token, int k, float (&squares)[4]) {
    const int end = end_group_ * Config::kGroup;
    uint2 halves[4][2];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int token = first_token + j * kCluster;
        const int column = k + 128 * h;
        halves[j][h] = make_uint2(0, 0);
        if (token < args_.num_tokens && column < end) {
          halves[j][h] = operand_.load(token, column, squares[j]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int token = first_token + j * kCluster;
        const int column = k + 128 * h;
        if (token >= args_.num_tokens || column >= end) continue;
        auto* row = reinterpret_cast<std::uint32_t*>(shared_ + layout_.tokens +
                                                     token * layout_.token_stride);
        const int word = operand_offset(column - block_column_) / 2;
        row[word] = halves[j][h].x;
        row[word + 8] = halves[j][h].y;
      }
    }
  }

  __device__ float* squares_of(int segment, int token) const {
    return reinterpret_cast<float*>(shared_ + layout_.squares) + segment * kMaxInt4Tokens + token;
  }

  __device__ void publish_squares(int token, float squares) {
    for (int distance = 16; distance >= 1; distance /= 2) {
      squares += __shfl_xor_sync(0xFFFFFFFFU, squares, distance);
    }
    if (token >= args_.num_tokens) return;
    const int lane = threadIdx.x % 32;
    float* place = squares_of(segment_, token);
    if constexpr (kCluster == 1) {
      if (lane == 0) *place = squares;
    } else if (lane < kCluster) {
      ptx::store_in_cluster(ptx::address_in_block(ptx::shared_address(place), lane), squares);
    }
  }

  // ---- products ---------------------------------------------------------------------------------

  // Where this lane finds operand B of each tile: a token past the last one reads the last one's, and
  // its sums are dropped.
  __device__ void find_operands() {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int token = min(8 * n + lane / 4, args_.num_tokens - 1);
      operand_address_[n] = ptx::shared_address(shared_ + layout_.tokens) +
                            token * layout_.token_stride + lane % 4 * 32 - 2 * block_column_;
    }
#pragma unroll
    for (int i = 0; i < kHeldGroups; ++i) {
      if (first_group_ + i >= end_group_) continue;
#pragma unroll
      for (int q = 0; q < kOperandRegisters / 4; ++q) {
        const uint4 v = load_operand(0, first_group_ + i, q);
        held_[i][4 * q] = v.x;
        held_[i][4 * q + 1] = v.y;
        held_[i][4 * q + 2] = v.z;
        held_[i][4 * q + 3] = v.w;
      }
    }
  }

  // Two tiles of 16 columns of a group: number q of them.
  __device__ uint4 load_operand(int tile, int group, int q) const {
    return ptx::load_shared_16(operand_address_[tile] + group * (2 * Config::kGroup) + q / 2 * 128 +
                               q % 2 * 16);
  }

  struct Record {
    uint4 words[kBlocks];
    float scale, scale_8;  // of rows g and g + 8
  };

  __device__ static void load_record(Record& r, std::uint32_t address) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      r.words[b] = ptx::load_shared_16(address + b * layout::Int4Tile::kBlockBytes + 16 * lane);
    }
    const std::uint32_t scales = address + Config::kRecordBytes - layout::Int4Tile::kScaleBytes;
    r.scale = ptx::load_shared_bf16(scales + 2 * (lane / 4));
    r.scale_8 = ptx::load_shared_bf16(scales + 16 + 2 * (lane / 4));
  }

  // All strips of this warp in one round: sums of its segment to shared memory.
  __device__ void multiply_round(WeightRing<Config>& ring, int first) {
    for (int q = 0; q < args_.round_strips; ++q) {
      if (first + strip_lane_ + q * kCluster >= end_strip_) return;
      float sums[kTiles][4] = {};
      if constexpr (kHeldGroups > 0) {
#pragma unroll
        for (int i = 0; i < kHeldGroups; i += Config::kPieceGroups) {
          if (first_group_ + i < end_group_) multiply_piece(ring, first_group_ + i, i, sums);
        }
      } else {
        for (int group = first_group_; group < end_group_; group += Config::kPieceGroups) {
          multiply_piece(ring, group, 0, sums);
        }
      }
      store_sums(strip_lane_ + q * kCluster, sums);
    }
  }

  // `held`: the piece's first group among those in registers.
  __device__ __forceinline__ void multiply_piece(WeightRing<Config>& ring, int group, int held,
                                                 float (&sums)[kTiles][4]) {
    const std::uint32_t piece = ring.wait();
    Record records[Config::kPieceGroups];
#pragma unroll
    for (int i = 0; i < Config::kPieceGroups; ++i) {
      if (i > 0 && group + i >= end_group_) continue;
      load_record(records[i], piece + i * Config::kRecordBytes);
    }
#pragma unroll
    for (int i = 0; i < Config::kPieceGroups; ++i) {
      if (i > 0 && group + i >= end_group_) continue;
      multiply_group(records[i], group + i, held + i, sums);
    }
    // Not before: a load from shared memory can wait behind those of other warps for longer than a
    // copy takes to arrive in its place. Here what was loaded has been used.
    ring.release();
  }

  __device__ __forceinline__ void multiply_group(const Record& record, int group, int held,
                                                 float (&sums)[kTiles][4]) {
    float chains[kBlocks][kTiles][4] = {};
#pragma unroll
    for (int q = 0; q < 2 * kBlocks; ++q) {  // two tiles of 16 columns at a time
      uint4 b[kTiles];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) b[n] = operand(n, group, held, q);
      const uint4& words = record.words[q / 2];
      std::uint32_t a[4];
      ptx::unpack_codes(a, q % 2 == 0 ? words.x : words.z, masks_);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) ptx::mma_m16n8k16(chains[q / 2][n], a, b[n].x, b[n].y);
      ptx::unpack_codes(a, q % 2 == 0 ? words.y : words.w, masks_);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) ptx::mma_m16n8k16(chains[q / 2][n], a, b[n].z, b[n].w);
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float sum = chains[0][n][i];
        if constexpr (kBlocks == 2) sum += chains[1][n][i];
        sums[n][i] += (i < 2 ? record.scale : record.scale_8) * sum;
      }
    }
  }

  __device__ __forceinline__ uint4 operand(int tile, int group, int held, int q) const {
    if constexpr (kHeldGroups > 0) {
      const std::uint32_t* v = held_[held < kHeldGroups ? held : 0] + 4 * q;
      return make_uint4(v[0], v[1], v[2], v[3]);
    } else {
      return load_operand(tile, group, q);
    }
  }

  // ---- segments together ------------------------------------------------------------------------

  // [strip of the round][segment of the block][row][token]
  __device__ float* partial(int strip, int segment) const {
    return reinterpret_cast<float*>(shared_ + layout_.partial) +
           (strip * kSegments + segment) * 16 * args_.num_tokens;
  }
  // What the blocks of the cluster send: [buffer][own strip of the round][block][row][token]
  __device__ float* incoming(int buffer, int strip, int block) const {
    return reinterpret_cast<float*>(shared_ + layout_.incoming) +
           ((buffer * args_.round_strips + strip) * kCluster + block) * 16 * args_.num_tokens;
  }

  __device__ void store_sums(int strip, const float (&sums)[kTiles][4]) {
    const int lane = threadIdx.x % 32;
    const int tokens = args_.num_tokens;
    float* rows = partial(strip, segment_ % kSegments) + lane / 4 * tokens;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = 8 * n + lane % 4 * 2 + i % 2;
        if (token < tokens) rows[i / 2 * 8 * tokens + token] = sums[n][i];
      }
    }
  }

  __device__ void finish_round(int first, int buffer) {
    __syncthreads();
    const int strips = min(args_.round_strips * kCluster, end_strip_ - first);
    if constexpr (kCluster > 1) {
      send_to_owners(strips, buffer);
      __syncwarp();  // lanes may have left the loop apart, and arriving takes whole warps
      ptx::cluster_arrive();
      ptx::cluster_wait();
    }
    const int own = kCluster > 1 ? (strips - rank_ + kCluster - 1) / kCluster : strips;
    const int tokens = args_.num_tokens;
    for (int i = threadIdx.x; i < own * 8 * tokens; i += blockDim.x) {
      const int token = i % tokens;
      const int g = i / tokens % 8;
      const int strip = i / (8 * tokens);
      const float* rows = kCluster > 1 ? incoming(buffer, strip, 0) : partial(strip, 0);
      constexpr int kParts = kCluster > 1 ? kCluster : kSegments;
      const float lower = tree_sum<kParts>(rows + g * tokens + token, 16 * tokens);
      const float upper = tree_sum<kParts>(rows + (g + 8) * tokens + token, 16 * tokens);
      epilogue_.store(first + strip * kCluster + rank_, g, token, lower, upper, row_scale(token));
    }
    // With a cluster the next round's sums stay away from `incoming`, which has two buffers, and from
    // `partial`, which all have read before the barrier.
    if constexpr (kCluster == 1) __syncthreads();
  }

  // Adds up this block's segments and gives each strip to the block that finishes it.
  __device__ void send_to_owners(int strips, int buffer) {
    const int tokens = args_.num_tokens;
    for (int i = threadIdx.x; i < strips * 16 * tokens; i += blockDim.x) {
      const int strip = i / (16 * tokens);
      const int element = i % (16 * tokens);
      const float sum = tree_sum<kSegments>(partial(strip, 0) + element, 16 * tokens);
      float* place = incoming(buffer, strip / kCluster, rank_) + element;
      ptx::store_in_cluster(ptx::address_in_block(ptx::shared_address(place), strip % kCluster),
                            sum);
    }
  }

  // 1 / rms of a token, for operands that are normalised afterwards.
  __device__ float row_scale(int token) const {
    if constexpr (Operand::kNormalised) {
      const float squares = tree_sum<layout::kNumKSegments>(squares_of(0, token), kMaxInt4Tokens);
      const float mean = squares / static_cast<float>(args_.num_groups * Config::kGroup);
      return 1.0F / sqrtf(mean + operand_.eps);
    } else {
      return 1.0F;
    }
  }

  const Int4GemmArgs& args_;
  const Operand& operand_;
  const Epilogue& epilogue_;
  const Int4GemmLayout& layout_;
  std::uint8_t* shared_;
  int rank_, first_strip_, end_strip_;
  int strip_lane_, segment_, first_group_, end_group_;
  int block_column_;  // of the block's first segment
  std::uint32_t operand_address_[kTiles];
  std::uint32_t held_[kHeldGroups > 0 ? kHeldGroups : 1][kOperandRegisters];
  ptx::Int4Masks masks_;
};

template <class Config, class Operand, class Epilogue>
__global__ void __launch_bounds__(kInt4GemmThreads)
    int4_gemm_kernel(const __grid_constant__ Int4GemmArgs args,
                     const __grid_constant__ Operand operand,
                     const __grid_constant__ Epilogue epilogue) {
  extern __shared__ __align__(128) std::uint8_t int4_gemm_shared[];
  Int4Gemm<Config, Operand, Epilogue>(args, operand, epilogue, int4_gemm_shared).run();
}

}  // namespace fut::cuda
