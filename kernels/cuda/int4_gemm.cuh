// The main loop of every INT4 projection for 1 to 32 tokens: Y = X W^T with W as layout/int4_tile.h
// has it. Operands and epilogues are parameters; what they are is in the ops' own files.
//
// work     A cluster of C blocks takes a contiguous run of strips. Of the 16 segments of K each block
//          takes 16 / C, and a warp some neighbouring ones of them, of every so-manieth strip. With few
//          tokens a warp takes one segment, there is no cluster, and all strips of a block are added up
//          at the end (finish_block). With more a warp takes several segments and those who share a strip
//          exchange sums strip by strip (int4_exchange.cuh); no barrier of the block stands in that loop.
// weights  see int4_weight_ring.cuh
// tokens   F16, in shared memory. Up to eight: in the order of operand B of mma, for 64 columns lane t
//          has the 16 halves that it needs of a token side by side. More: as wgmma reads them, for four
//          warps and so four strips at once, which spares loading operand B for each.
// sums     A group's products are added by the tensor core in one chain, which starts from the bias of the
//          stored codes (once for all strips, by a product as well); times scale, groups ascending;
//          segments merged as layout/k_segments.h says, in registers, in a block and in a cluster alike.
//          None of it depends on the number of tokens, of blocks or of pieces: the same bits always.
// bound    bytes of the weights
#pragma once

#include <cstdint>

#include "kernels/cuda/int4_exchange.cuh"
#include "kernels/cuda/int4_gemm_plan.h"
#include "kernels/cuda/int4_output.h"
#include "kernels/cuda/int4_weight_ring.cuh"
#include "kernels/cuda/ptx/async_copy_4.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/int4_mma.cuh"
#include "kernels/cuda/ptx/int4_wgmma.cuh"
#include "kernels/cuda/rms.cuh"
#include "kernels/cuda/tree_sum.cuh"

namespace fut::cuda {

// Where 4 columns of a token go in shared memory, in halves from the token's begin: columns k, k + 1,
// and 16 halves on k + 2, k + 3. k is a multiple of 4.
__device__ __forceinline__ int operand_offset(int k) {
  const int column = k % 16;
  return k / 64 * 64 + column % 8 / 2 * 16 + k % 64 / 16 * 4 + column / 8 * 2;
}

// An epilogue has
//   bool store(output, lower, upper, r, inputs): the two sums, r of the operand's norm; whether
//     something is to be told to finish()
//   kFetches: int look_ahead(output) loads what fetch() needs, and fetch(output, ahead, place) starts
//     copies to `place`, 16 bytes that store() sees as `inputs`
//   kFinishes: begin() of every thread before, finish(told) of every thread after all outputs
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
        warp_(ptx::warp_index()),
        cluster_(Config::kClusters ? args.cluster : 1),
        rank_(Config::kClusters ? blockIdx.x % args.cluster : 0),
        lanes_(Config::kClusters ? args.lanes : 1),
        first_strip_(int4_share(args.num_strips, blockIdx.x / cluster_, gridDim.x / cluster_)),
        end_strip_(int4_share(args.num_strips, blockIdx.x / cluster_ + 1, gridDim.x / cluster_)) {
    if constexpr (kWarpgroups) {
      strip_lane_ = warp_ / 4 / parts() * 4 + warp_ % 4;
      part_ = warp_ / 4 % parts();
    } else {
      strip_lane_ = warp_ / parts();
      part_ = warp_ % parts();
    }
    first_segment_ = rank_ * (layout::kNumKSegments / cluster_) + part_ * kSegments;
    block_column_ = segment_begin(rank_ * (layout::kNumKSegments / cluster_)) * Config::kGroup;
  }

  __device__ void run() {
    const std::uint32_t barriers = ptx::shared_address(shared_ + layout_.barriers);
    WeightRing<Config> ring(
        args_, barriers + warp_ * kWarpBarriers * 8,
        ptx::shared_address(shared_ + layout_.ring) +
            warp_ * (Config::kClusters ? args_.stages : kFewTokenStages) * Config::kPieceBytes,
        {first_strip_ + strip_lane_, end_strip_, lanes_, segment_begin(first_segment_),
         segment_begin(first_segment_ + kSegments)});
    if constexpr (Config::kClusters) {
      exchange_strips(ring, barriers + kMaxInt4Stages * 8);
    } else {
      add_up_block(ring);
    }
    if constexpr (Epilogue::kFinishes) epilogue_.finish(noticed_);
  }

 private:
  static constexpr int kTiles = Config::kTiles;
  static constexpr bool kWarpgroups = Config::kWarpgroups;
  static constexpr int kSegments = Config::kSegments;   // of a warp
  static constexpr int kBlocks = Config::kGroup / 64;   // of 64 columns, in a group
  static constexpr int kBlockBytes = 8 * kTiles * 128;  // of the tokens of such a block, for wgmma
  using Exchange = Int4Exchange<Config>;

  // Warps that share a strip of this block.
  __device__ int parts() const { return layout::kNumKSegments / cluster_ / kSegments; }
  __device__ int segment_begin(int segment) const {
    return layout::k_segment_begin(segment, args_.num_groups);
  }

  // ---- the two ways of adding segments up ---------------------------------------------------------

  // A warp for each segment, sums of all strips side by side in shared memory.
  __device__ void add_up_block(WeightRing<Config>& ring) {
    ptx::take_turn();
    if constexpr (Epilogue::kFinishes) epilogue_.begin();
    const int ahead = look_ahead(first_strip_);
    stage_tokens();
    fetch_inputs(first_strip_, ahead);
    __syncwarp();  // a warp reads what it wrote itself
    find_operands();
    make_biases();
    __syncwarp();
    for (int first = first_strip_; first < end_strip_; first += args_.round_strips) {
      const int end = min(first + args_.round_strips, end_strip_);
      for (int strip = first; strip < end; ++strip) {
        float sums[kTiles][4];
        add_segments<kSegments>(ring, first_segment_, sums);
        store_sums(strip - first, sums[0]);
      }
      finish_block(first);
      if (end < end_strip_) fetch_inputs(end, look_ahead(end));
    }
  }

  // Several segments a warp, sums of a strip to the warps that finish it.
  __device__ void exchange_strips(WeightRing<Config>& ring, std::uint32_t barriers) {
    Exchange exchange(barriers, ptx::shared_address(shared_ + layout_.exchange), warp_,
                      rank_ * parts() + part_);
    ptx::cluster_arrive();
    ptx::take_turn();
    ptx::cluster_wait();  // all blocks are there to be written to
    if constexpr (Epilogue::kFinishes) epilogue_.begin();
    stage_tokens();
    if constexpr (kWarpgroups) ptx::fence_async_proxy();
    __syncwarp();  // lanes may come from loops apart, and arriving takes whole warps
    ptx::cluster_arrive();
    ptx::cluster_wait();
    find_operands();
    make_biases();
    __syncthreads();
    float scales[Exchange::kOwned] = {};  // of the tokens of this lane's pairs
    for (int i = 0; i < Exchange::kOwned; ++i) scales[i] = row_scale(exchange.token(i));
    // A warpgroup goes on while one of its warps has a strip.
    const int ahead = kWarpgroups ? strip_lane_ % 4 : 0;
    int unfinished = -1;  // the strip whose sums are under way
    for (int strip = first_strip_ + strip_lane_; strip - ahead < end_strip_; strip += lanes_) {
      if constexpr (kWarpgroups) has_strip_ = strip < end_strip_;
      if (has_strip()) {
        exchange.expect();
        fetch_pairs(exchange, strip);
      }
      float sums[kTiles][4];
      add_segments<kSegments>(ring, first_segment_, sums);
      if (!has_strip()) break;
      if (unfinished >= 0) finish_pairs(exchange, unfinished, scales);
      exchange.send(sums, parts(), [&](int part) { return warp_of(part); });
      unfinished = strip;
    }
    if (unfinished >= 0) finish_pairs(exchange, unfinished, scales);
    exchange.finish();
  }

  // The warp of a block that has this warp's strips and that part of the block's segments.
  __device__ int warp_of(int part) const {
    if constexpr (kWarpgroups) {
      return (strip_lane_ / 4 * parts() + part) * 4 + strip_lane_ % 4;
    } else {
      return strip_lane_ * parts() + part;
    }
  }

  __device__ bool has_strip() const { return !kWarpgroups || has_strip_; }

  __device__ Int4Output pair_output(const Exchange& exchange, int strip, int pair) const {
    return {strip, static_cast<int>(threadIdx.x) % 32 / 4, exchange.token(pair)};
  }
  // Of a strip and the one before it.
  __device__ float* pair_inputs(int strip, int pair) const {
    const int odd = (strip - first_strip_) / lanes_ % 2;
    return reinterpret_cast<float*>(shared_ + layout_.inputs) +
           (((odd * kInt4GemmThreads / 32 + warp_) * Exchange::kOwned + pair) * 32 +
            threadIdx.x % 32) *
               4;
  }

  __device__ void fetch_pairs(const Exchange& exchange, int strip) const {
    if constexpr (Epilogue::kFetches) {
      if (!exchange.finishes()) return;
      for (int i = 0; i < Exchange::kOwned; ++i) {
        const Int4Output out = pair_output(exchange, strip, i);
        if (out.token >= args_.num_tokens) continue;
        epilogue_.fetch(out, epilogue_.look_ahead(out), ptx::shared_address(pair_inputs(strip, i)));
      }
    }
  }

  __device__ __forceinline__ void finish_pairs(const Exchange& exchange, int strip,
                                               const float (&scales)[Exchange::kOwned]) {
    float2 owned[Exchange::kOwned] = {};
    exchange.receive(owned);
    if constexpr (Epilogue::kFetches) ptx::wait_for_copies();
    if (!exchange.finishes()) return;
#pragma unroll
    for (int i = 0; i < Exchange::kOwned; ++i) {
      const Int4Output out = pair_output(exchange, strip, i);
      if (out.token >= args_.num_tokens) continue;
      noticed_ |= epilogue_.store(out, owned[i].x * (1 / layout::kInt4LowUnit),
                                  owned[i].y * (1 / layout::kInt4HighUnit), scales[i],
                                  pair_inputs(strip, i));
    }
  }

  // ---- tokens -----------------------------------------------------------------------------------

  // Brings this warp's columns of its share of the tokens into shared memory, and for a norm the sums
  // of their squares, one a segment. Some loads at a time are under way together: of one token's
  // columns where there is one token, else of several tokens.
  __device__ void stage_tokens() {
    constexpr int kNormedLoads = kTiles == 4 || !Config::kClusters ? 2 : 4;  // as registers allow
    constexpr int kLoads = Operand::kNormalised ? kNormedLoads : 8;
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
#pragma unroll 1
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
        put_columns(token, column - block_column_, halves[j][h]);
      }
    }
  }

  __device__ __forceinline__ void put_columns(int token, int column, uint2 halves) const {
    std::uint8_t* tokens = shared_ + layout_.tokens;
    if constexpr (kWarpgroups) {
      const int block = column / ptx::kSwizzledColumns * kBlockBytes;
      const int offset = ptx::swizzled_offset(token, column % ptx::kSwizzledColumns);
      *reinterpret_cast<uint2*>(tokens + block + offset) = halves;
    } else {
      auto* row = reinterpret_cast<std::uint32_t*>(tokens + token * layout_.token_stride);
      const int word = operand_offset(column) / 2;
      row[word] = halves.x;
      row[word + 8] = halves.y;
    }
  }

  __device__ float* squares_of(int segment, int token) const {
    return reinterpret_cast<float*>(shared_ + layout_.squares) + segment * kMaxInt4Tokens + token;
  }

  __device__ void publish_squares(int segment, int token, float squares) {
    squares = sum_of_lanes(squares);
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

  // Where this lane finds operand B. For mma a token past the last one reads the last one's, and its sums
  // are dropped; for wgmma it reads what is there, and they are dropped as well.
  __device__ void find_operands() {
    const std::uint32_t tokens = ptx::shared_address(shared_ + layout_.tokens);
    if constexpr (kWarpgroups) {
      descriptor_ = ptx::wgmma_descriptor(tokens);
    } else {
      const int lane = threadIdx.x % 32;
      const int token = min(lane / 4, args_.num_tokens - 1);
      operand_address_ = tokens + token * layout_.token_stride + lane % 4 * 32 - 2 * block_column_;
    }
  }

  // Two tiles of 16 columns of a group: number q of them.
  __device__ uint4 load_operand(int group, int q) const {
    return ptx::load_shared_16(operand_address_ + group * (2 * Config::kGroup) + q / 2 * 128 +
                               q % 2 * 16);
  }

  // chain[i] += a times the tokens' columns of kBlocks times 64 columns of group + i, from block `first` on.
  // make(i, k, a) gives operand A of 16 columns.
  template <int kCount, int kTogether, class Make>
  __device__ __forceinline__ void multiply_blocks(float (&chain)[kCount][kTiles][4], int group,
                                                  int first, const Make& make) const {
    if constexpr (kWarpgroups) {
      std::uint32_t a[4 * kTogether][4];
#pragma unroll
      for (int k = 0; k < 4 * kTogether; ++k) make(0, k, a[k]);
      const int block = (group * Config::kGroup - block_column_) / ptx::kSwizzledColumns + first;
      ptx::multiply_warpgroup<kTiles, kTogether>(chain[0], a,
                                                 descriptor_ + block * (kBlockBytes >> 4));
    } else {
#pragma unroll
      for (int q = 0; q < 2 * kTogether; ++q) {  // two tiles of 16 columns at a time
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          const uint4 b = load_operand(group + i, 2 * first + q);
          std::uint32_t a[4];
          make(i, 2 * q, a);
          ptx::mma_m16n8k16(chain[i][0], a, b.x, b.y);
          make(i, 2 * q + 1, a);
          ptx::mma_m16n8k16(chain[i][0], a, b.z, b.w);
        }
      }
    }
  }

  // Of rows g of a strip, for a group of this block and two tokens: this lane's of a tile.
  __device__ float2* bias(int group, int tile) const {
    const int row = group - block_column_ / Config::kGroup;
    return reinterpret_cast<float2*>(shared_ + layout_.biases) + (row * kTiles + tile) * 4 +
           threadIdx.x % 4;
  }

  // What the sums of each group of this warp's segments start from.
  __device__ void make_biases() const {
    constexpr int kTogether = kWarpgroups ? 4 : 1;  // warps
    const int end = segment_begin(first_segment_ + kSegments);
    for (int group = segment_begin(first_segment_) + strip_lane_ / kTogether; group < end;
         group += lanes_ / kTogether) {
      float chain[1][kTiles][4] = {};
      multiply_blocks<1, kBlocks>(chain, group, 0,
                                  [](int, int, std::uint32_t(&a)[4]) { ptx::bias_operand(a); });
      if (threadIdx.x % (32 * kTogether) < 4) {
        for (int n = 0; n < kTiles; ++n)
          *bias(group, n) = make_float2(chain[0][n][0], chain[0][n][1]);
      }
    }
  }

  // Of a record: this lane's codes of 64 columns; the scales of rows g and g + 8.
  __device__ __forceinline__ uint4 load_words(std::uint32_t record, int block) const {
    if (!has_strip()) return {};
    return ptx::load_shared_16(record + block * layout::Int4Tile::kBlockBytes +
                               threadIdx.x % 32 * 16);
  }
  __device__ __forceinline__ float2 load_scales(std::uint32_t record) const {
    if (!has_strip()) return {};
    const std::uint32_t scales =
        record + Config::kRecordBytes - layout::Int4Tile::kScaleBytes + threadIdx.x % 32 / 4 * 2;
    return make_float2(ptx::load_shared_bf16(scales), ptx::load_shared_bf16(scales + 16));
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

  // sums += the products of a piece's groups; sums are in units of kInt4LowUnit and kInt4HighUnit.
  __device__ __forceinline__ void multiply_piece(WeightRing<Config>& ring, int group, int end,
                                                 float (&sums)[kTiles][4]) {
    constexpr int kGroups = Config::kPieceGroups;
    std::uint32_t piece = 0;
    if (has_strip()) piece = ring.wait();
    if (kGroups > 1 && group + kGroups <= end) {
#pragma unroll
      for (int i = 0; i < kGroups; i += 2) {
        multiply_groups<kGroups == 1 ? 1 : 2>(piece + i * Config::kRecordBytes, group + i, sums);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        if (i > 0 && group + i >= end) break;
        multiply_groups<1>(piece + i * Config::kRecordBytes, group + i, sums);
      }
    }
    // Loads of all lanes come before the copy that takes their place: release() has the barrier of the
    // warp and the fence between the two proxies that say so. Without the fence results were wrong now
    // and then.
    if (has_strip()) ring.release();
  }

  // Of kCount groups side by side, so that the tensor core has as many chains to work at.
  template <int kCount>
  __device__ __forceinline__ void multiply_groups(std::uint32_t records, int group,
                                                  float (&sums)[kTiles][4]) {
    static_assert(kCount == 1 || !kWarpgroups);
    float chain[kCount][kTiles][4];
#pragma unroll
    for (int i = 0; i < kCount; ++i) start_chain(group + i, chain[i]);
    // With sums of many tokens there are registers for half of operand A.
    constexpr int kTogether = kWarpgroups && kTiles <= 2 ? kBlocks : 1;
#pragma unroll
    for (int b = 0; b < kBlocks; b += kTogether) {
      uint4 words[kCount][kTogether];
#pragma unroll
      for (int i = 0; i < kCount * kTogether; ++i) {
        words[i / kTogether][i % kTogether] =
            load_words(records + i / kTogether * Config::kRecordBytes, b + i % kTogether);
      }
      multiply_blocks<kCount, kTogether>(chain, group, b, [&](int i, int k, std::uint32_t(&a)[4]) {
        const uint4& w = words[i][k / 4];
        ptx::unpack_codes(a, k % 4 == 0 ? w.x : k % 4 == 1 ? w.y : k % 4 == 2 ? w.z : w.w);
      });
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float2 scales = load_scales(records + i * Config::kRecordBytes);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[n][j] += (j < 2 ? scales.x : scales.y) * chain[i][n][j];
      }
    }
  }

  __device__ __forceinline__ void start_chain(int group, float (&chain)[kTiles][4]) const {
    constexpr float kUpper = layout::kInt4HighUnit / layout::kInt4LowUnit;  // rows g + 8
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float2 start = *bias(group, n);
      chain[n][0] = start.x;
      chain[n][1] = start.y;
      chain[n][2] = start.x * kUpper;
      chain[n][3] = start.y * kUpper;
    }
  }

  // ---- sums of a block, without a cluster ---------------------------------------------------------

  // [strip of the round][segment][row][token]
  __device__ float* partial(int strip, int segment) const {
    return reinterpret_cast<float*>(shared_ + layout_.partial) +
           (strip * layout::kNumKSegments + segment) * 16 * args_.num_tokens;
  }

  __device__ __forceinline__ void store_sums(int strip, const float (&sums)[4]) const {
    const int tokens = args_.num_tokens;
    const int token = threadIdx.x % 4 * 2;
    float* row = partial(strip, warp_) + threadIdx.x % 32 / 4 * tokens + token;
    if (token < tokens) {
      row[0] = sums[0];
      row[8 * tokens] = sums[2];
    }
    if (token + 1 < tokens) {
      row[1] = sums[1];
      row[8 * tokens + 1] = sums[3];
    }
  }

  __device__ void finish_block(int first) {
    __syncthreads();
    if constexpr (Epilogue::kFetches) ptx::wait_for_copies();
    const int tokens = args_.num_tokens;
#pragma unroll 1
    for (int i = threadIdx.x; i < num_outputs(first); i += blockDim.x) {
      const Int4Output out = output(first, i);
      const float* rows = partial(out.strip - first, 0) + out.g * tokens + out.token;
      const float lower = tree_sum<layout::kNumKSegments>(rows, 16 * tokens);
      const float upper = tree_sum<layout::kNumKSegments>(rows + 8 * tokens, 16 * tokens);
      noticed_ |=
          epilogue_.store(out, lower * (1 / layout::kInt4LowUnit),
                          upper * (1 / layout::kInt4HighUnit), row_scale(out.token), inputs(i));
    }
    // Nobody writes the next round's sums where others still read.
    if (first + args_.round_strips < end_strip_) __syncthreads();
  }

  // The pairs of outputs of the round that begins with strip `first`.
  __device__ int num_outputs(int first) const {
    return min(args_.round_strips, end_strip_ - first) * 8 * args_.num_tokens;
  }
  __device__ Int4Output output(int first, int i) const {
    return {first + i / (8 * args_.num_tokens), i % 8, i / 8 % args_.num_tokens};
  }
  __device__ float* inputs(int i) const {
    return reinterpret_cast<float*>(shared_ + layout_.inputs) + 4 * i;
  }

  // Called early, as what it loads is waited for: what fetch_inputs() needs for a thread's first output.
  __device__ int look_ahead(int first) const {
    if constexpr (Epilogue::kFetches) {
      const int i = threadIdx.x;
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
      return inverse_rms(squares, args_.num_groups * Config::kGroup, operand_.eps);
    } else {
      return 1.0F;
    }
  }

  const Int4GemmArgs& args_;
  const Operand& operand_;
  const Epilogue& epilogue_;
  const Int4GemmLayout& layout_;
  std::uint8_t* shared_;
  int warp_;
  int cluster_, rank_, lanes_, first_strip_, end_strip_;
  int strip_lane_, part_, first_segment_;
  int block_column_;                   // of the block's first segment
  std::uint32_t operand_address_ = 0;  // for mma
  std::uint64_t descriptor_ = 0;       // for wgmma
  bool has_strip_ = true;
  bool noticed_ = false;  // by the epilogue's store()
};

template <class Config, class Operand, class Epilogue>
__global__ void __launch_bounds__(kInt4GemmThreads, Config::kLeastBlocks)
    int4_gemm_kernel(const __grid_constant__ Int4GemmArgs args,
                     const __grid_constant__ Operand operand,
                     const __grid_constant__ Epilogue epilogue) {
  extern __shared__ __align__(1024) std::uint8_t int4_gemm_shared[];
  Int4Gemm<Config, Operand, Epilogue>(args, operand, epilogue, int4_gemm_shared).run();
}

}  // namespace fut::cuda
