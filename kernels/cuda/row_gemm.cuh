// The main loop of every product with weights that lie row after row, for 1 to 32 tokens:
// Y = X W^T. Kinds of weights and tokens are in row_formats.cuh, epilogues in the ops' own files.
//
// work     As in int4_gemm.cuh: a cluster of C blocks takes a contiguous run of strips of 16 rows, each
//          block 16 / C of the 16 segments of K, each warp one segment of every C-th strip. Nothing
//          is shared by warps until a strip's segments are added up.
// weights  Each warp copies pieces, 128 bytes of 16 rows, into a ring of its own: no barrier of the block,
//          and the first pieces come before the predecessor kernel has ended, for nobody writes weights.
//          Which rows a strip has is a layout::RowOrder.
// tokens   16-bit operands in shared memory, in natural order.
// sums     One chain of the tensor core for each segment, segments merged as layout/k_segments.h says.
//          None of it depends on the number of tokens or blocks: the same bits always.
// bound    bytes of the weights
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/async_copy.cuh"
#include "kernels/cuda/ptx/bulk_copy.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/row_formats.cuh"
#include "kernels/cuda/row_gemm_plan.h"
#include "kernels/cuda/tree_sum.cuh"

namespace fut::cuda {

// One warp's pieces of the weights, 128 bytes of each of the 16 rows of a strip, in the order in which
// they are used. Called by whole warps.
class RowRing {
 public:
  __device__ RowRing(const RowGemmArgs& args, std::uint32_t slots, int first_strip, int end_strip,
                     int first_chunk, int end_chunk)
      : args_(args),
        slots_(slots),
        next_strip_(first_chunk < end_chunk ? first_strip : end_strip),
        end_strip_(end_strip),
        first_chunk_(first_chunk),
        next_chunk_(first_chunk),
        end_chunk_(end_chunk) {
    find_rows();
    for (int s = 0; s < args.stages; ++s) request();
  }

  // Returns when the next piece is there.
  __device__ __forceinline__ void wait() const {
    if (args_.stages == 3) {
      ptx::wait_for_copies<2>();
    } else {
      ptx::wait_for_copies<1>();
    }
    __syncwarp();
  }

  // Of the piece: what a lane holds of rows g and g + 8 of a chunk.
  __device__ __forceinline__ void read(int chunk, uint4& lower, uint4& upper) const {
    const int lane = threadIdx.x % 32;
    const std::uint32_t place =
        slots_ + stage_ * kRowPieceBytes + place_of(lane / 4, chunk * 4 + lane % 4);
    lower = ptx::load_shared_16(place);
    upper = ptx::load_shared_16(place + kRowPieceBytes / 2);
  }

  // All lanes have used what they read of the piece: its place is filled again.
  __device__ __forceinline__ void release() {
    __syncwarp();
    request();
  }

 private:
  static constexpr int kUnits = kRowPieceChunks * kRowChunkBytes / 16;  // of a row
  static_assert(kUnits == 8, "place_of");

  // Where 16 bytes of a row lie. Two rows that are read together use different banks.
  __device__ static int place_of(int row, int unit) {
    return 16 * (row * kUnits + (unit ^ row % 2 * 4));
  }

  // Asks for the next piece, where there is one.
  __device__ __forceinline__ void request() {
    if (next_strip_ < end_strip_) {
      const int lane = threadIdx.x % 32;
      const int offset = next_chunk_ * kRowChunkBytes + lane % kUnits * 16;
      const bool is_there = offset < min(args_.matrix.row_bytes(), end_chunk_ * kRowChunkBytes);
      const std::uint32_t place = slots_ + stage_ * kRowPieceBytes;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        ptx::copy_16(place + place_of(lane / kUnits + 4 * i, lane % kUnits),
                     rows_[i] + (is_there ? offset : 0), is_there ? 16 : 0,
                     ptx::evict_first_policy());
      }
      next_chunk_ += kRowPieceChunks;
      if (next_chunk_ >= end_chunk_) {
        next_chunk_ = first_chunk_;
        next_strip_ += args_.cluster;
        find_rows();
      }
    }
    ptx::commit_copies();
    stage_ = stage_ + 1 == args_.stages ? 0 : stage_ + 1;
  }

  // The four rows of which this lane copies: each lane looks one up for all.
  __device__ void find_rows() {
    if (next_strip_ >= end_strip_) return;
    const int lane = threadIdx.x % 32;
    const auto own =
        reinterpret_cast<std::uint64_t>(row(args_.order.source_row(16 * next_strip_ + lane % 16)));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      rows_[i] = reinterpret_cast<const std::uint8_t*>(
          __shfl_sync(0xFFFFFFFFU, own, lane / kUnits + 4 * i));
    }
  }

  // A row that only fills up a strip reads the first one; its sums are dropped.
  __device__ const std::uint8_t* row(int index) const {
    const RowMatrix& m = args_.matrix;
    index = max(index, 0);
    const std::uint8_t* part = m.parts[0];
    if (index >= m.part_begin[2]) {
      part = m.parts[2];
      index -= m.part_begin[2];
    } else if (index >= m.part_begin[1]) {
      part = m.parts[1];
      index -= m.part_begin[1];
    }
    return part + static_cast<std::int64_t>(index) * m.row_bytes();
  }

  const RowGemmArgs& args_;
  std::uint32_t slots_;
  const std::uint8_t* rows_[4] = {};
  int next_strip_, end_strip_, first_chunk_, next_chunk_, end_chunk_;
  int stage_ = 0;
};

template <class Format, RowNorm kNorm, int kTiles, class Epilogue>
class RowGemm {
 public:
  __device__ RowGemm(const RowGemmArgs& args, const RowTokens& tokens, const Epilogue& epilogue,
                     std::uint8_t* shared)
      : args_(args),
        tokens_(tokens),
        epilogue_(epilogue),
        shared_(shared),
        rank_(blockIdx.x % args.cluster),
        first_strip_(share(blockIdx.x / args.cluster)),
        end_strip_(share(blockIdx.x / args.cluster + 1)) {
    const int warp = threadIdx.x / 32;
    const int chunks = args.matrix.num_chunks();
    strip_lane_ = warp / args.segments;
    segment_ = rank_ * args_.segments + warp % args_.segments;
    first_chunk_ = layout::k_segment_begin(segment_, chunks);
    end_chunk_ = layout::k_segment_begin(segment_ + 1, chunks);
    block_chunk_ = layout::k_segment_begin(rank_ * args_.segments, chunks);
  }

  __device__ void run() {
    const std::uint32_t slots = ptx::shared_address(shared_ + args_.layout.ring) +
                                threadIdx.x / 32 * (args_.stages * kRowPieceBytes);
    RowRing ring(args_, slots, first_strip_ + strip_lane_, end_strip_, first_chunk_, end_chunk_);
    if (args_.cluster > 1) ptx::cluster_arrive();
    ptx::take_turn();
    if (args_.cluster > 1) ptx::cluster_wait();  // all blocks are there to be written to
    if (tokens_.is_ready || (kNorm == RowNorm::None && tokens_.in_sixteens)) {
      copy_tokens();
    } else if constexpr (kNorm == RowNorm::None || kTiles == 1) {
      if (args_.num_tokens <= args_.cluster) {
        stage_tokens<1, 4>();
      } else {
        stage_tokens<kTiles == 1 ? 2 : 4, 2>();  // as registers allow
      }
    }
    if (args_.cluster > 1) {
      __syncthreads();
    } else {
      __syncwarp();  // a warp reads what it wrote itself
    }
    find_operands();
    int buffer = 0;
    for (int first = first_strip_; first < end_strip_;
         first += args_.round_strips * args_.cluster) {
      multiply_round(ring, first);
      finish_round(first, buffer);
      buffer ^= 1;
    }
    // A block without strips waits for those that still write their squares into it.
    if (kNorm == RowNorm::OnResult && args_.cluster > 1) meet_cluster();
  }

 private:
  static constexpr int kChunkColumns = kRowChunkBytes / Format::kCodeBytes;

  __device__ int share(int index) const {
    const std::int64_t clusters = gridDim.x / args_.cluster;
    return static_cast<int>(args_.num_strips * static_cast<std::int64_t>(index) / clusters);
  }

  __device__ static void meet_cluster() {
    __syncwarp();  // lanes may have left a loop apart, and arriving takes whole warps
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }

  // ---- tokens -----------------------------------------------------------------------------------

  // Brings this warp's columns of its share of the tokens into shared memory: numbers that need no
  // rounding any more, 16 bytes at a time.
  __device__ void copy_tokens() {
    if (!tokens_.is_ready && tokens_.dtype == DType::E4M3) {
      widen_tokens();
      return;
    }
    const int begin = first_chunk_ * kChunkColumns;
    const int units = (end_chunk_ - first_chunk_) * kChunkColumns / 8;
    const auto* x = static_cast<const std::uint16_t*>(tokens_.x);
    const int cols = tokens_.is_ready ? INT_MAX : args_.matrix.cols;
    for (int i = threadIdx.x % 32 + 32 * strip_lane_; i < units * args_.num_tokens;
         i += 32 * args_.cluster) {
      const int token = i / units;
      const int column = begin + i % units * 8;
      const bool is_there = column < cols;
      ptx::copy_16(ptx::shared_address(place_of(token, column)),
                   x + token * tokens_.row_stride + (is_there ? column : 0), is_there ? 16 : 0);
    }
    ptx::commit_copies();
    ptx::wait_for_copies<0>();
  }

  // The same for E4M3 codes, which become FP16 numbers.
  __device__ void widen_tokens() {
    constexpr int kLoads = 4;  // under way together
    const int begin = first_chunk_ * kChunkColumns;
    const int units = (end_chunk_ - first_chunk_) * kChunkColumns / 16;
    const int stride = 32 * args_.cluster;
    const auto* x = static_cast<const std::uint8_t*>(tokens_.x);
    for (int first = threadIdx.x % 32 + 32 * strip_lane_; first < units * args_.num_tokens;
         first += kLoads * stride) {
      uint4 codes[kLoads];
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        const int i = first + j * stride;
        codes[j] = make_uint4(0, 0, 0, 0);
        if (i >= units * args_.num_tokens) continue;
        const int column = begin + i % units * 16;
        if (column >= args_.matrix.cols) continue;
        codes[j] = *reinterpret_cast<const uint4*>(x + i / units * tokens_.row_stride + column);
      }
#pragma unroll
      for (int j = 0; j < kLoads; ++j) {
        const int i = first + j * stride;
        if (i >= units * args_.num_tokens) continue;
        auto* place = reinterpret_cast<uint4*>(place_of(i / units, begin + i % units * 16));
        uint4 halves;
        ptx::widen_e4m3(halves.x, halves.y, codes[j].x);
        ptx::widen_e4m3(halves.z, halves.w, codes[j].y);
        place[0] = halves;
        ptx::widen_e4m3(halves.x, halves.y, codes[j].z);
        ptx::widen_e4m3(halves.z, halves.w, codes[j].w);
        place[1] = halves;
      }
    }
  }

  // Of a column that this block holds.
  __device__ std::uint8_t* place_of(int token, int column) const {
    return shared_ + args_.layout.tokens + token * args_.layout.token_stride +
           2 * (column - block_chunk_ * kChunkColumns);
  }

  // As copy_tokens, of numbers that are still to be rounded, for a norm with the sums of their squares
  // first, in the order of prepare_rows_kernel. kCount tokens, kSteps times 128 columns at a time, so
  // that their loads are under way together.
  template <int kCount, int kSteps>
  __device__ void stage_tokens() {
    const int stride = args_.cluster;
    const int begin = first_chunk_ * kChunkColumns;
    const int end = end_chunk_ * kChunkColumns;
    float4 v[kCount][kSteps];
    float factors[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) factors[j] = 1;
#pragma unroll 1
    for (int first = strip_lane_; first < args_.num_tokens; first += kCount * stride) {
      float squares[kCount] = {};
#pragma unroll 1
      for (int k = begin; k < end; k += 128 * kSteps) {
        load(v, first, k);
        if constexpr (kNorm != RowNorm::None) {
#pragma unroll
          for (int j = 0; j < kCount; ++j) {
#pragma unroll
            for (int s = 0; s < kSteps; ++s) squares[j] = add_squares(v[j][s], squares[j]);
          }
        }
        if constexpr (kNorm != RowNorm::BeforeRounding) store(v, factors, first, k);
      }
      if constexpr (kNorm != RowNorm::None) {
#pragma unroll
        for (int j = 0; j < kCount; ++j) publish_squares(first + j * stride, squares[j]);
      }
    }
    if constexpr (kNorm != RowNorm::BeforeRounding) return;
    if (args_.cluster > 1) {
      meet_cluster();
    } else {
      __syncthreads();
    }
#pragma unroll 1
    for (int first = strip_lane_; first < args_.num_tokens; first += kCount * stride) {
      // r times the operand's scale, a power of two: the same bits as one after the other.
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        factors[j] = warp_row_scale(min(first + j * stride, args_.num_tokens - 1)) * tokens_.scale;
      }
#pragma unroll 1
      for (int k = begin; k < end; k += 128 * kSteps) {
        load(v, first, k);  // once more: registers are too few to keep it
        store(v, factors, first, k);
      }
    }
  }

  template <int kCount, int kSteps>
  __device__ __forceinline__ void load(float4 (&v)[kCount][kSteps], int first, int k) const {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const int token = first + j * args_.cluster;
      const std::int64_t row = token < args_.num_tokens ? tokens_.begin(token) : 0;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const int column = k + 128 * s + threadIdx.x % 32 * 4;
        v[j][s] = make_float4(0, 0, 0, 0);
        if (token < args_.num_tokens && is_own(column) && column < args_.matrix.cols) {
          v[j][s] = tokens_.load<kNorm == RowNorm::None>(row + column);
        }
      }
    }
  }

  __device__ bool is_own(int column) const {
    return column < end_chunk_ * kChunkColumns;
  }

  template <int kCount, int kSteps>
  __device__ __forceinline__ void store(const float4 (&v)[kCount][kSteps],
                                        const float (&factors)[kCount], int first, int k) const {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const int token = first + j * args_.cluster;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const int column = k + 128 * s + threadIdx.x % 32 * 4;
        if (token >= args_.num_tokens || !is_own(column)) continue;
        *reinterpret_cast<uint2*>(place_of(token, column)) =
            Format::operand(times(v[j][s], factors[j]));
      }
    }
  }

  __device__ float* squares_of(int segment, int token) const {
    return reinterpret_cast<float*>(shared_ + args_.layout.squares) + segment * kMaxRowTokens +
           token;
  }

  __device__ void publish_squares(int token, float squares) {
    squares = sum_of_lanes(squares);
    if (token >= args_.num_tokens) return;
    const int lane = threadIdx.x % 32;
    float* place = squares_of(segment_, token);
    if (args_.cluster == 1) {
      if (lane == 0) *place = squares;
    } else if (lane < args_.cluster) {
      ptx::store_in_cluster(ptx::address_in_block(ptx::shared_address(place), lane), squares);
    }
  }

  // 1 / rms of a token, once all squares are there.
  __device__ float row_scale(int token) const {
    if constexpr (kNorm == RowNorm::None) return 1.0F;
    if (tokens_.is_ready) return tokens_.factors[token];
    return inverse_rms(tree_sum<layout::kNumKSegments>(squares_of(0, token), kMaxRowTokens),
                       args_.matrix.cols, tokens_.eps);
  }
  // The same for a whole warp.
  __device__ float warp_row_scale(int token) const {
    return warp_inverse_rms(squares_of(0, token), kMaxRowTokens, args_.matrix.cols, tokens_.eps);
  }

  // ---- products ---------------------------------------------------------------------------------

  // Where a lane finds operand B of each tile, counted from the first chunk of the matrix. A token
  // past the last one reads the last one's, and its sums are dropped.
  __device__ void find_operands() {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int token = min(static_cast<int>(8 * n + threadIdx.x % 32 / 4), args_.num_tokens - 1);
      operand_address_[n] = ptx::shared_address(shared_ + args_.layout.tokens) +
                            token * args_.layout.token_stride - 2 * block_chunk_ * kChunkColumns;
    }
  }

  // All strips of this warp in one round: sums of its segment to shared memory.
  __device__ void multiply_round(RowRing& ring, int first) {
    for (int q = 0; q < args_.round_strips; ++q) {
      if (first + strip_lane_ + q * args_.cluster >= end_strip_) return;
      float sums[kTiles][4] = {};
#pragma unroll 1
      for (int chunk = first_chunk_; chunk < end_chunk_; chunk += kRowPieceChunks) {
        ring.wait();
#pragma unroll
        for (int i = 0; i < kRowPieceChunks; ++i) {
          if (i > 0 && chunk + i >= end_chunk_) continue;
          uint4 lower, upper;
          ring.read(i, lower, upper);
          Format::multiply(sums, lower, upper, operand_address_, chunk + i);
        }
        ring.release();
      }
      store_sums(strip_lane_ + q * args_.cluster, sums);
    }
  }

  // ---- segments together ------------------------------------------------------------------------

  // [strip of the round][segment of the block][row][token]
  __device__ float* partial(int strip, int segment) const {
    return reinterpret_cast<float*>(shared_ + args_.layout.partial) +
           (strip * args_.segments + segment) * 16 * args_.num_tokens;
  }
  // What the blocks of the cluster send: [buffer][own strip of the round][block][row][token]
  __device__ float* incoming(int buffer, int strip, int block) const {
    return reinterpret_cast<float*>(shared_ + args_.layout.incoming) +
           ((buffer * args_.round_strips + strip) * args_.cluster + block) * 16 * args_.num_tokens;
  }

  __device__ void store_sums(int strip, const float (&sums)[kTiles][4]) {
    const int lane = threadIdx.x % 32;
    const int tokens = args_.num_tokens;
    float* rows = partial(strip, segment_ % args_.segments) + lane / 4 * tokens;
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
    const int cluster = args_.cluster;
    const int strips = min(args_.round_strips * cluster, end_strip_ - first);
    if (cluster > 1) {
      send_to_owners(strips, buffer);
      meet_cluster();
    }
    const int own = (strips - rank_ + cluster - 1) / cluster;
    const int tokens = args_.num_tokens;
    for (int i = threadIdx.x; i < own * 8 * tokens; i += blockDim.x) {
      const int token = i % tokens;
      const int g = i / tokens % 8;
      const int strip = i / (8 * tokens);
      const float* rows = cluster > 1 ? incoming(buffer, strip, 0) : partial(strip, 0);
      const int parts = cluster > 1 ? cluster : layout::kNumKSegments;
      const float lower = tree_sum(rows + g * tokens + token, parts, 16 * tokens);
      const float upper = tree_sum(rows + (g + 8) * tokens + token, parts, 16 * tokens);
      finish_pair(16 * (first + strip * cluster + rank_) + g, token, lower, upper);
    }
    // With a cluster the next round's sums stay away from `incoming`, which has two buffers, and from
    // `partial`, which all have read before the barrier.
    if (cluster == 1) __syncthreads();
  }

  __device__ void finish_pair(int packed, int token, float lower, float upper) {
    const RowMatrix& m = args_.matrix;
    const int lower_row = args_.order.source_row(packed);
    const int upper_row = args_.order.source_row(packed + 8);
    const float r = kNorm == RowNorm::OnResult ? row_scale(token) : 1.0F;
    if (lower_row >= 0) {
      lower = Format::finish(lower, m.row_scales, lower_row, args_.scale_factor, r);
    }
    if (upper_row >= 0) {
      upper = Format::finish(upper, m.row_scales, upper_row, args_.scale_factor, r);
    }
    epilogue_.store(token, lower_row, upper_row, lower, upper);
  }

  // Adds up this block's segments and gives each strip to the block that finishes it.
  __device__ void send_to_owners(int strips, int buffer) {
    const int tokens = args_.num_tokens;
    for (int i = threadIdx.x; i < strips * 16 * tokens; i += blockDim.x) {
      const int strip = i / (16 * tokens);
      const int element = i % (16 * tokens);
      const float sum = tree_sum(partial(strip, 0) + element, args_.segments, 16 * tokens);
      float* place = incoming(buffer, strip / args_.cluster, rank_) + element;
      ptx::store_in_cluster(
          ptx::address_in_block(ptx::shared_address(place), strip % args_.cluster), sum);
    }
  }

  const RowGemmArgs& args_;
  const RowTokens& tokens_;
  const Epilogue& epilogue_;
  std::uint8_t* shared_;
  int rank_, first_strip_, end_strip_;
  int strip_lane_, segment_, first_chunk_, end_chunk_;
  int block_chunk_;  // of the block's first segment
  std::uint32_t operand_address_[kTiles];
};

// At few tokens a block takes at most half of a multiprocessor, so that the next kernel's blocks can
// begin beside it.
template <class Format, RowNorm kNorm, int kTiles, class Epilogue>
__global__ void __launch_bounds__(kRowGemmThreads, kTiles == 1 ? 2 : 1)
    row_gemm_kernel(const __grid_constant__ RowGemmArgs args,
                    const __grid_constant__ RowTokens tokens,
                    const __grid_constant__ Epilogue epilogue) {
  extern __shared__ __align__(128) std::uint8_t row_gemm_shared[];
  RowGemm<Format, kNorm, kTiles, Epilogue>(args, tokens, epilogue, row_gemm_shared).run();
}

}  // namespace fut::cuda
