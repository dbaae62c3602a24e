// How an INT4 projection is cut up for its number of tokens and its shape: which instance of the main
// loop, how many blocks, and what lies where in shared memory. One table, read by launchers and by
// the kernel. Includes no CUDA header.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/layout/int4_tile.h"
#include "kernels/layout/k_segments.h"

namespace fut::cuda {

inline constexpr int kInt4GemmThreads = 512;  // a warp for each segment of K
inline constexpr int kMaxInt4Tokens = 32;
inline constexpr int kMaxSharedBytes = 227 * 1024;  // of a block on compute capability 9.0

// An instance of the main loop.
struct Int4GemmConfigValues {
  int tiles = 1;         // of 8 tokens
  int cluster = 1;       // blocks that share K
  int piece_groups = 2;  // of a piece of the ring
  int stages = 3;        // pieces of a warp's ring
  int held_groups = 0;   // of tokens that a warp holds in registers; 0: none
  bool operator==(const Int4GemmConfigValues&) const = default;
};

template <int kTiles_, int kCluster_, int kPieceGroups_, int kStages_, int kHeldGroups_,
          int kGroup_>
struct Int4GemmConfig {
  static constexpr int kTiles = kTiles_;
  static constexpr int kCluster = kCluster_;
  static constexpr int kPieceGroups = kPieceGroups_;
  static constexpr int kStages = kStages_;
  static constexpr int kHeldGroups = kHeldGroups_;
  static constexpr int kGroup = kGroup_;
  static constexpr int kRecordBytes = layout::Int4Tile{16, kGroup_, kGroup_}.record_bytes();
  static constexpr int kPieceBytes = kPieceGroups * kRecordBytes;
};

// Byte offsets in a block's shared memory.
struct Int4GemmLayout {
  int barriers = 0;      // [warp][stage], 8 bytes each
  int squares = 0;       // float [segment][kMaxInt4Tokens]
  int ring = 0;          // [warp][stage][piece]
  int tokens = 0;        // F16 [token][columns of the block], token_stride apart
  int token_stride = 0;  // bytes; 16 past a multiple of 128, so that neighbours use other banks
  int partial = 0;       // float [strip of a round][segment of the block][16][token]
  int incoming = 0;      // float [2][own strip of a round][block][16][token]
  int bytes = 0;
};

struct Int4GemmArgs {
  const std::uint8_t* packed = nullptr;
  int num_strips = 0;
  int num_groups = 0;  // of a row
  int num_tokens = 0;
  int round_strips = 1;  // strips that a warp multiplies before sums meet
  Int4GemmLayout layout;
};

struct Int4GemmPlan {
  Int4GemmConfigValues config;
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

// The plan for 1 .. kMaxInt4Tokens tokens; nullopt where so many tokens of so wide a matrix fit into
// no block: they have to go in parts.
[[nodiscard]] std::optional<Int4GemmPlan> plan_int4_gemm(const layout::Int4Tile& tile,
                                                         int num_tokens,
                                                         const Int4GemmMachine& machine);

// Throws: a plan names what was not built, or an op got operands that its kernel cannot read. Here
// because sources that nvcc compiles do without the error builders.
[[noreturn]] void no_such_instance(const Int4GemmConfigValues& config);
void check_int4_operand(const void* x, std::int64_t row_stride, bool int4_weights);

}  // namespace fut::cuda
