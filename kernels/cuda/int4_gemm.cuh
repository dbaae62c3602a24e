// The main loop of every INT4 projection for 1 to 32 tokens: Y = X W^T with W as layout/int4_tile.h
// has it. Operands and epilogues are parameters; what they are is in the ops' own files.
//
// work     A cluster of C blocks takes a contiguous run of strips. Of the 16 segments of K each block
//          takes 16 / C, and a warp some neighbouring ones of them, of every so-manieth strip. Nothing
//          is shared by warps until a strip's segments are added up, so no barrier of the block stands
//          in the loop over the weights. With few tokens a warp takes one segment and there is no
//          cluster; with many it takes several, so that less has to be added up between warps, and a
//          block holds a part of the tokens' columns alone.
// weights  see int4_weight_ring.cuh
// tokens   F16, in shared memory in the order of operand B: for 64 columns lane t has the 16 halves
//          that it needs of a token side by side.
// sums     A group's products are added by the tensor core in one chain; times scale, groups ascending;
//          segments merged as layout/k_segments.h says, in registers, in a block and in a cluster alike.
//          None of it depends on the number of tokens, of blocks or of pieces: the same bits always.
// bound    bytes of the weights
#pragma once

#include <cstdint>

#include "kernels/cuda/int4_gemm_plan.h"
#include "kernels/cuda/int4_weight_ring.cuh"
#include "kernels/cuda/ptx/async_copy_4.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/int4_mma.cuh"
#include "kernels/cuda/tree_sum.cuh"

namespace fut::cuda {

// Where 4 columns of a token go in shared memory, in halves from the token's begin: columns k, k + 1,
// and 16 halves on k + 2, k + 3. k is a multiple of 4.
__device__ __forceinline__ int operand_offset(int k) {
  const int column = k % 16;
  return k / 64 * 64 + column % 8 / 2 * 16 + k % 64 / 16 * 4 + column / 8 * 2;
}

// The outputs of rows g and g + 8 of a strip for one token.
struct Int4Output {
  int strip, g, token;
};

// An epilogue has
//   bool store(output, lower, upper, r, inputs): the two sums, r of the operand's norm; whether
//     something is to be told to finish()
//   kFetches: int look_ahead(output) loads what fetch() needs, and fetch(output, ahead, place) starts
//     copies to `place`, 16 bytes that store() sees as `inputs`
//   kFinishes: begin() of every thread before, finish(told) of every thread after all outputs
//   kLeastSharedBytes: a block takes that much shared memory, needed or not
template <class Config, class Operand, class Epilogue>
class Int4Gemm {
  static_assert(kInt4GemmThreads / 32 == layout::kNumKSegments, "a warp for each segment");

 public:
  __device__ Int4Gemm(const Int4GemmArgs& args, const Operand& operand, const Epilogue& epilogue,
                      std::uint8_t* shared)
      : args_(args),
        operand_(operand),
        epilogue_(epilogue),
        layout_(args.layout),
        shared_(shared),
        cluster_(Config::kClusters ? args.cluster : 1),
        rank_(Config::kClusters ? blockIdx.x % args.cluster : 0),
        lanes_(Config::kClusters ? args.lanes : 1),
        first_strip_(int4_share(args.num_strips, blockIdx.x / cluster_, gridDim.x / cluster_)),
        end_strip_(int4_share(args.num_strips, blockIdx.x / cluster_ + 1, gridDim.x / cluster_)) {
    const int warp = threadIdx.x / 32;
    strip_lane_ = warp / parts();
    part_ = warp % parts();
    first_segment_ = rank_ * (layout::kNumKSegments / cluster_) + part_ * kSegments;
    block_column_ = segment_begin(rank_ * (layout::kNumKSegments / cluster_)) * Config::kGroup;
  }

  __device__ void run() {
    const int warp = threadIdx.x / 32;
    WeightRing<Config> ring(
        args_, ptx::shared_address(shared_ + layout_.barriers) + warp * kMaxInt4Stages * 8,
        ptx::shared_address(shared_ + layout_.ring) +
            warp * (Config::kClusters ? args_.stages : kFewTokenStages) * Config::kPieceBytes,
        {first_strip_ + strip_lane_, end_strip_, lanes_, segment_begin(first_segment_),
         segment_begin(first_segment_ + kSegments)});
    if constexpr (Config::kClusters) ptx::cluster_arrive();
    ptx::take_turn();
    if constexpr (Config::kClusters) ptx::cluster_wait();  // all blocks are there to be written to
    if constexpr (Epilogue::kFinishes) epilogue_.begin();
    const int ahead = look_ahead(first_strip_);
    stage_tokens();
    fetch_inputs(first_strip_, ahead);
    if constexpr (Config::kClusters) {
      __syncthreads();
    } else {
      __syncwarp();  // a warp reads what it wrote itself
    }
    find_operands();
    for (int first = first_strip_; first < end_strip_; first += round_size()) {
      multiply_round(ring, first);
      finish_round(first);
      const int next = first + round_size();
      if (next < end_strip_) fetch_inputs(next, look_ahead(next));
    }
    if constexpr (Epilogue::kFinishes) epilogue_.finish(noticed_);
    // A block without strips waits for those that still write their squares into it.
    if constexpr (Config::kClusters && Operand::kNormalised) {
      __syncwarp();
      ptx::cluster_arrive();
      ptx::cluster_wait();
    }
  }

 private:
  static constexpr int kTiles = Config::kTiles;
  static constexpr int kSegments = Config::kSegments;  // of a warp
  static constexpr int kBlocks = Config::kGroup / 64;  // of 64 columns, in a group

  // Warps that share a strip of this block.
  __device__ int parts() const {
    return layout::kNumKSegments / (Config::kClusters ? args_.cluster : 1) / kSegments;
  }
  __device__ int segment_begin(int segment) const {
    return layout::k_segment_begin(segment, args_.num_groups);
  }
  // Strips of a cluster between two additions of segments.
  __device__ int round_size() const { return args_.round_strips * lanes_; }

  // ---- tokens -----------------------------------------------------------------------------------

  // Brings this warp's columns of its share of the tokens into shared memory, and for a norm the sums
  // of their squares, one a segment. Some loads at a time are under way together: of one token's
  // columns where there is one token, else of several tokens.
  __device__ void stage_tokens() {
    constexpr int kLoads = !Operand::kNormalised ? 8 : kTiles == 4 ? 2 : 4;  // as registers allow
    for (int i = 0; i < kSegments; ++i) {
      if (args_.num_tokens <= lanes_) {
        stage_segment<1, kLoads>(first_segment_ + i);
      } else {
        stage_segment<kLoads / 2, 2>(first_segment_ + i);
      }
    }
  }

  template <int kTokens, int kLoads>
  __device__ void stage_segment(int segment) {
    const int begin = segment_begin(segment) * Config::kGroup;
    const int end = segment_begin(segment + 1) * Config::kGroup;
    for (int first = strip_lane_; first < args_.num_tokens; first += kTokens * lanes_) {
      float squares[kTokens] = {};
      for (int k = begin; k < end; k += 128 * kLoads) {
        stage_columns<kTokens, kLoads>(first, k + threadIdx.x % 32 * 4, end, squares);
      }
      if constexpr (Operand::kNormalised) {
        for (int j = 0; j < kTokens; ++j) {
          publish_squares(segment, first + j * lanes_, squares[j]);
        }
      }
    }
  }

  template <int kTokens, int kLoads>
  __device__ void stage_columns(int first_token, int k, int end, float (&squares)[kTokens]) {
    uint2 halves[kTokens][kLoads];
#pragma unroll
    for (int j = 0; j < kTokens; ++j) {
#pragma unroll
      for (int h = 0; h < kLoads; ++h) {
        const int token = first_token + j * lanes_;
        const int column = k + 128 * h;
        halves[j][h] = make_uint2(0, 0);
        if (token < args_.num_tokens && column < end) {
          halves[j][h] = operand_.load(token, column, squares[j]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kTokens; ++j) {
#pragma unroll
      for (int h = 0; h < kLoads; ++h) {
        const int token = first_token + j * lanes_;
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

  __device__ void publish_squares(int segment, int token, float squares) {
    for (int distance = 16; distance >= 1; distance /= 2) {
      squares += __shfl_xor_sync(0xFFFFFFFFU, squares, distance);
    }
    if (token >= args_.num_tokens) return;
    const int lane = threadIdx.x % 32;
    float* place = squares_of(segment, token);
    if constexpr (!Config::kClusters) {
      if (lane == 0) *place = squares;
    } else if (lane < cluster_) {
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

  // All strips of this warp in one round: the sums of its segments to where they meet the others.
  __device__ void multiply_round(WeightRing<Config>& ring, int first) {
    for (int q = 0; q < args_.round_strips; ++q) {
      const int strip = first + strip_lane_ + q * lanes_;
      if (strip >= end_strip_) return;
      float sums[kTiles][4];
      add_segments<kSegments>(ring, first_segment_, sums);
      if (Config::kClusters && parts() == 1) {
        send_sums(strip - first, sums);
      } else {
        store_sums(strip - first, sums);
      }
    }
  }

  // The sums of kCount segments of a strip, merged as a balanced binary tree.
  template <int kCount>
  __device__ __forceinline__ void add_segments(WeightRing<Config>& ring, int segment,
                                               float (&sums)[kTiles][4]) {
    if constexpr (kCount == 1) {
#pragma unroll
      for (int i = 0; i < 4 * kTiles; ++i) sums[i / 4][i % 4] = 0;
      const int end = segment_begin(segment + 1);
#pragma unroll 1
      for (int group = segment_begin(segment); group < end; group += Config::kPieceGroups) {
        multiply_piece(ring, group, end, sums);
      }
    } else {
      add_segments<kCount / 2>(ring, segment, sums);
      float others[kTiles][4];
      add_segments<kCount / 2>(ring, segment + kCount / 2, others);
#pragma unroll
      for (int i = 0; i < 4 * kTiles; ++i) sums[i / 4][i % 4] += others[i / 4][i % 4];
    }
  }

  __device__ __forceinline__ void multiply_piece(WeightRing<Config>& ring, int group, int end,
                                                 float (&sums)[kTiles][4]) {
    const std::uint32_t piece = ring.wait();
    Record records[Config::kPieceGroups];
#pragma unroll
    for (int i = 0; i < Config::kPieceGroups; ++i) {
      if (i > 0 && group + i >= end) continue;
      load_record(records[i], piece + i * Config::kRecordBytes);
    }
#pragma unroll
    for (int i = 0; i < Config::kPieceGroups; ++i) {
      if (i > 0 && group + i >= end) continue;
      multiply_group(records[i], group + i, sums);
    }
    // Loads of all lanes come before the copy that takes their place: release() has the barrier of the
    // warp and the fence between the two proxies that say so. Without the fence results were wrong now
    // and then.
    ring.release();
  }

  __device__ __forceinline__ void multiply_group(const Record& record, int group,
                                                 float (&sums)[kTiles][4]) {
    float chain[kTiles][4] = {};
#pragma unroll
    for (int q = 0; q < 2 * kBlocks; ++q) {  // two tiles of 16 columns at a time
      uint4 b[kTiles];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) b[n] = load_operand(n, group, q);
      const uint4& words = record.words[q / 2];
      std::uint32_t a[4];
      ptx::unpack_codes(a, q % 2 == 0 ? words.x : words.z, masks_);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) ptx::mma_m16n8k16(chain[n], a, b[n].x, b[n].y);
      ptx::unpack_codes(a, q % 2 == 0 ? words.y : words.w, masks_);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) ptx::mma_m16n8k16(chain[n], a, b[n].z, b[n].w);
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[n][i] += (i < 2 ? record.scale : record.scale_8) * chain[n][i];
      }
    }
  }

  // ---- segments together ------------------------------------------------------------------------

  // [strip of the round][part][row][token]
  __device__ float* partial(int strip, int part) const {
    return reinterpret_cast<float*>(shared_ + layout_.partial) +
           (strip * parts() + part) * 16 * args_.num_tokens;
  }
  // What the blocks of the cluster send: [own strip of the round][block][row][token]
  __device__ float* incoming(int strip, int block) const {
    return reinterpret_cast<float*>(shared_ + layout_.incoming) +
           (strip * cluster_ + block) * 16 * args_.num_tokens;
  }

  // Calls fn(element of [row][token], sum) for what this lane holds of a strip.
  template <class Fn>
  __device__ void for_each_sum(const float (&sums)[kTiles][4], const Fn& fn) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = 8 * n + lane % 4 * 2 + i % 2;
        const int row = lane / 4 + i / 2 * 8;
        if (token < args_.num_tokens) fn(row * args_.num_tokens + token, sums[n][i]);
      }
    }
  }

  __device__ void store_sums(int strip, const float (&sums)[kTiles][4]) {
    float* rows = partial(strip, part_);
    for_each_sum(sums, [&](int element, float sum) { rows[element] = sum; });
  }

  // To the block that finishes the strip.
  __device__ void send_sums(int strip, const float (&sums)[kTiles][4]) {
    const std::uint32_t rows = ptx::address_in_block(
        ptx::shared_address(incoming(strip / cluster_, rank_)), strip % cluster_);
    for_each_sum(sums,
                 [&](int element, float sum) { ptx::store_in_cluster(rows + 4 * element, sum); });
  }

  // Adds up this block's segments and gives each strip to the block that finishes it.
  __device__ void send_partials(int strips) {
    const int elements = 16 * args_.num_tokens;
    for (int i = threadIdx.x; i < strips * elements; i += blockDim.x) {
      const int strip = i / elements;
      const int element = i % elements;
      const float sum = tree_sum(partial(strip, 0) + element, parts(), elements);
      float* place = incoming(strip / cluster_, rank_) + element;
      ptx::store_in_cluster(ptx::address_in_block(ptx::shared_address(place), strip % cluster_),
                            sum);
    }
  }

  __device__ void finish_round(int first) {
    const int strips = min(round_size(), end_strip_ - first);
    if constexpr (Config::kClusters) {
      if (parts() > 1) {
        __syncthreads();
        send_partials(strips);
      }
      __syncwarp();  // lanes may have left the loop apart, and arriving takes whole warps
      ptx::cluster_arrive();
      ptx::cluster_wait();
    } else {
      __syncthreads();
    }
    if constexpr (Epilogue::kFetches) ptx::wait_for_copies();
    const int tokens = args_.num_tokens;
    for (int i = threadIdx.x; i < num_outputs(first); i += blockDim.x) {
      const Int4Output out = output(first, i);
      const int strip = (out.strip - first) / cluster_;
      const float* rows = Config::kClusters ? incoming(strip, 0) : partial(strip, 0);
      const int parts = Config::kClusters ? cluster_ : layout::kNumKSegments;
      const float lower = tree_sum(rows + out.g * tokens + out.token, parts, 16 * tokens);
      const float upper = tree_sum(rows + (out.g + 8) * tokens + out.token, parts, 16 * tokens);
      noticed_ |= epilogue_.store(out, lower, upper, row_scale(out.token), inputs(i));
    }
    // Nobody writes the next round's sums where others still read.
    if (first + round_size() >= end_strip_) return;
    if constexpr (Config::kClusters) {
      __syncwarp();
      ptx::cluster_arrive();
      ptx::cluster_wait();
    } else {
      __syncthreads();
    }
  }

  // ---- outputs ----------------------------------------------------------------------------------

  // The pairs of outputs that this block finishes in the round that begins with strip `first`.
  __device__ int num_outputs(int first) const {
    const int strips = min(round_size(), end_strip_ - first);
    const int own = (strips - rank_ + cluster_ - 1) / cluster_;
    return max(own, 0) * 8 * args_.num_tokens;
  }
  __device__ Int4Output output(int first, int i) const {
    const int tokens = args_.num_tokens;
    return {first + i / (8 * tokens) * cluster_ + rank_, i / tokens % 8, i % tokens};
  }
  __device__ const float* inputs(int i) const {
    return reinterpret_cast<const float*>(shared_ + layout_.inputs) + 4 * i;
  }

  // What the epilogue needs besides the sums is on its way while they are made; this is of the thread's
  // first output.
  __device__ int look_ahead(int first) const {
    if constexpr (Epilogue::kFetches) {
      const int i = static_cast<int>(threadIdx.x);
      return i < num_outputs(first) ? epilogue_.look_ahead(output(first, i)) : 0;
    } else {
      return 0;
    }
  }
  __device__ void fetch_inputs(int first, int ahead) const {
    if constexpr (Epilogue::kFetches) {
      for (int i = threadIdx.x; i < num_outputs(first); i += blockDim.x) {
        const Int4Output out = output(first, i);
        if (i >= static_cast<int>(blockDim.x)) ahead = epilogue_.look_ahead(out);
        epilogue_.fetch(out, ahead, ptx::shared_address(inputs(i)));
      }
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
  int cluster_, rank_, lanes_, first_strip_, end_strip_;
  int strip_lane_, part_, first_segment_;
  int block_column_;  // of the block's first segment
  std::uint32_t operand_address_[kTiles];
  ptx::Int4Masks masks_;
  bool noticed_ = false;  // by the epilogue's store()
};

template <class Config, class Operand, class Epilogue>
__global__ void __launch_bounds__(kInt4GemmThreads, Config::kLeastBlocks)
    int4_gemm_kernel(const __grid_constant__ Int4GemmArgs args,
                     const __grid_constant__ Operand operand,
                     const __grid_constant__ Epilogue epilogue) {
  extern __shared__ __align__(128) std::uint8_t int4_gemm_shared[];
  Int4Gemm<Config, Operand, Epilogue>(args, operand, epilogue, int4_gemm_shared).run();
}

}  // namespace fut::cuda
