// How an INT4 projection of few tokens is cut up for its number of tokens and its shape: which instance of
// the main loop, how many blocks, and what lies where in shared memory; what a device runs of INT4
// projections at a time. Includes no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/layout/int4_tile.h"
#include "kernels/layout/k_segments.h"
#include "kernels/tensor.h"

namespace fut::cuda {

inline constexpr int kInt4GemmThreads = 512;  // a warp for each segment of K
inline constexpr int kMaxInt4Tokens = 32;     // of a launch
inline constexpr int kMaxInt4Blocks = 256;    // of a launch
// Up to here, a tile of mma, every block takes all of K; with more the main loop of batches is faster.
inline constexpr int kFewTokens = 8;
// More than half of a multiprocessor's: without clusters two blocks never share one. Where a kernel ends
// unevenly (attention does, and the many strips of gate and up), its successor's blocks would else pair up
// on what is free first and leave the rest idle.
inline constexpr int kLeastInt4SharedBytes = 115 * 1024;
inline constexpr int kFewTokenStages = 2;       // pieces of a warp's ring
inline constexpr int kInt4SwizzleBytes = 1024;  // wgmma wants tokens at a multiple of it
// Dynamic, of a block on compute capability 9.0: 227 KB less what kernels declare themselves, of which the
// alignment of the rest makes a whole kilobyte.
inline constexpr int kMaxSharedBytes = 226 * 1024;

// An instance of the main loop; kPieceGroups: groups of a piece of the ring.
template <int kPieceGroups_, int kGroup_>
struct Int4GemmConfig {
  static constexpr int kPieceGroups = kPieceGroups_;
  static constexpr int kGroup = kGroup_;
  // For __launch_bounds__: 0 leaves it to the compiler, which then finds room for two blocks a
  // multiprocessor where it can; where it cannot it is not to try.
  static constexpr int kLeastBlocks = kPieceGroups == 2 && kGroup == 128 ? 0 : 1;
  static constexpr int kRecordBytes = layout::Int4Tile{16, kGroup_, kGroup_}.record_bytes();
  static constexpr int kPieceBytes = kPieceGroups * kRecordBytes;
};

// Of a warp's ring: its pieces and behind them its barriers.
[[nodiscard]] constexpr int int4_ring_bytes(int piece_bytes) {
  static_assert(kFewTokenStages % 2 == 0, "rings begin at multiples of 16 bytes");
  return kFewTokenStages * (piece_bytes + 8);
}

// Byte offsets in a block's shared memory.
struct Int4GemmLayout {
  int inputs = 0;        // float [output pair][4], of the epilogue, of all columns
  int squares = 0;       // float [segment][kFewTokens]
  int biases = 0;        // float [group][8]
  int ring = 0;          // [warp] pieces [stage], barriers [stage]; see int4_ring_bytes()
  int tokens = 0;        // F16 [token][column], token_stride apart
  int token_stride = 0;  // bytes; 16 past a multiple of 128, so that neighbours use other banks
  int partial = 0;       // float [strip of a round][segment][16][token], see partial_offset()
  int bytes = 0;
};

struct Int4GemmArgs {
  const std::uint8_t* packed = nullptr;
  int num_strips = 0;
  int num_groups = 0;  // of a row
  int num_tokens = 0;
  int log2_columns = 0;  // log2 of num_tokens rounded up to a power of two: no divisions
  int log2_lanes = 0;    // of the lanes that share a pair of outputs: 0 or 2
  int round_strips = 1;  // strips that a warp multiplies before sums meet
  Int4GemmLayout layout;

  // Of a strip and segment, in floats. The upper half of a strip's segments lies half of the banks further, and
  // so does a strip from its neighbours' of one or two tokens: lanes that add them up meet in no bank.
  [[nodiscard]] constexpr int partial_offset(int strip, int segment) const {
    return (strip * layout::kNumKSegments + segment) * 16 * num_tokens +
           (strip + segment / (layout::kNumKSegments / 2)) * 16;
  }
};

// The first of `count` things that share number `index` of `of` has; the next share's is its end;
// count * of is below 2^32.
[[nodiscard]] constexpr int int4_share(int count, int index, int of) {
  return static_cast<int>(static_cast<unsigned>(count) * static_cast<unsigned>(index) /
                          static_cast<unsigned>(of));
}

struct Int4GemmPlan {
  int piece_groups = 2;
  int num_blocks = 0;
  Int4GemmArgs args;
};

// num_multiprocessors: blocks that run at a time; max_clusters(c): clusters of c blocks that do
// (parts of the chip hold fewer than a whole number of them).
struct Int4GemmMachine {
  int num_multiprocessors = 0;
  int max_clusters_of_2 = 0;
  int max_clusters_of_4 = 0;
  int max_clusters_of_8 = 0;
};

// The plan for num_tokens tokens; nullopt: for the main loop of batches, for there are many tokens, or no
// block holds these of so wide a matrix. fetches: the epilogue has inputs.
[[nodiscard]] std::optional<Int4GemmPlan> plan_int4_gemm(const layout::Int4Tile& tile,
                                                         int num_tokens, bool fetches,
                                                         const Int4GemmMachine& machine);

// The same for a given size of pieces and as many as kFewTokens tokens.
[[nodiscard]] std::optional<Int4GemmPlan> make_int4_plan(int piece_groups,
                                                         const layout::Int4Tile& tile,
                                                         int num_tokens, bool fetches,
                                                         const Int4GemmMachine& machine);

// Throws: an op got operands that its kernel cannot read. Here because sources that nvcc compiles do without
// the error builders.
void check_int4_operand(const void* x, std::int64_t row_stride, std::size_t number_bytes);
void check_no_rotation(int rotation_block);

}  // namespace fut::cuda
