// How an INT4 projection is cut up for its number of tokens and its shape: which instance of the main
// loop, how many blocks, and what lies where in shared memory. One table, read by launchers and by
// the kernel. Includes no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/layout/int4_tile.h"
#include "kernels/layout/k_segments.h"
#include "kernels/tensor.h"

namespace fut::cuda {

inline constexpr int kInt4GemmThreads = 512;  // a warp for each segment of K
inline constexpr int kMaxInt4Tokens = 32;
inline constexpr int kMaxInt4Blocks = 256;  // of a launch
inline constexpr int kMaxInt4Stages = 4;    // pieces of a warp's ring
inline constexpr int kWarpBarriers =
    kMaxInt4Stages + 2;  // of the ring and of what comes from others
// More than half of a multiprocessor's: without clusters two blocks never share one. Where a kernel ends
// unevenly (attention does, and the many strips of gate and up), its successor's blocks would else pair up
// on what is free first and leave the rest idle.
inline constexpr int kLeastInt4SharedBytes = 115 * 1024;
inline constexpr int kFewTokenStages = 2;       // without clusters
inline constexpr int kInt4SwizzleBytes = 1024;  // wgmma wants tokens at a multiple of it
// Dynamic, of a block on compute capability 9.0: 227 KB less what kernels declare themselves, of which the
// alignment of the rest makes a whole kilobyte.
inline constexpr int kMaxSharedBytes = 226 * 1024;

// An instance of the main loop.
struct Int4GemmConfigValues {
  int tiles = 1;          // of 8 tokens
  int segments = 1;       // of K, of a warp
  int piece_groups = 2;   // of a piece of the ring
  bool clusters = false;  // strips' sums are exchanged, in a block or in a cluster
  bool operator==(const Int4GemmConfigValues&) const = default;

  // Those who share a strip's segments; pairs of outputs that each of them finishes for a lane; groups of
  // lanes that a pair is divided among where there are fewer pairs; bytes that one sends another, and that
  // a warp has for all it gets (twice) and sends.
  [[nodiscard]] constexpr int shares() const { return layout::kNumKSegments / segments; }
  [[nodiscard]] constexpr int owned_pairs() const {
    return 2 * tiles > shares() ? 2 * tiles / shares() : 1;
  }
  [[nodiscard]] constexpr int lane_groups() const {
    return shares() > 2 * tiles ? shares() / (2 * tiles) : 1;
  }
  [[nodiscard]] constexpr int message_bytes() const {
    return owned_pairs() * (32 / lane_groups()) * 8;
  }
  [[nodiscard]] constexpr int exchange_bytes() const {
    return 3 * (shares() - 1) * message_bytes();
  }
};

template <int kTiles_, int kSegments_, int kPieceGroups_, bool kClusters_, int kGroup_>
struct Int4GemmConfig {
  static constexpr Int4GemmConfigValues kValues{kTiles_, kSegments_, kPieceGroups_, kClusters_};
  static constexpr int kTiles = kTiles_;
  static constexpr int kSegments = kSegments_;
  static constexpr int kPieceGroups = kPieceGroups_;
  static constexpr bool kClusters = kClusters_;
  static constexpr int kGroup = kGroup_;
  static constexpr bool kWarpgroups = kTiles > 1;  // multiply together
  static_assert(kSegments == 1 || kPieceGroups == 1, "a piece lies in one segment");
  static_assert(!kWarpgroups || (kClusters && kPieceGroups == 1),
                "one record of each warp at a time");
  static_assert((kSegments == 1) != kClusters, "a warp for each segment, or an exchange");
  // For __launch_bounds__: 0 leaves it to the compiler, which then finds room for two blocks a
  // multiprocessor where it can; where it cannot it is not to try.
  static constexpr int kLeastBlocks = kTiles == 1 && kPieceGroups == 2 && kGroup == 128 ? 0 : 1;
  static constexpr int kRecordBytes = layout::Int4Tile{16, kGroup_, kGroup_}.record_bytes();
  static constexpr int kPieceBytes = kPieceGroups * kRecordBytes;
};

// Byte offsets in a block's shared memory.
struct Int4GemmLayout {
  int barriers = 0;  // [warp][kWarpBarriers], 8 bytes each
  int inputs = 0;    // float [output pair][4], of the epilogue
  int squares = 0;   // float [segment][kMaxInt4Tokens]
  int biases = 0;    // float [group of the block][token]
  int ring = 0;      // [warp][stage][piece]
  int tokens = 0;    // F16 [token][columns of the block], token_stride apart, or as wgmma has it
  int token_stride = 0;  // bytes; 16 past a multiple of 128, so that neighbours use other banks
  int partial = 0;       // without clusters: float [strip of a round][segment][16][token]
  int exchange = 0;      // with clusters: [warp], see int4_exchange.cuh
  int bytes = 0;
};

struct Int4GemmArgs {
  const std::uint8_t* packed = nullptr;
  int num_strips = 0;
  int num_groups = 0;  // of a row
  int num_tokens = 0;
  int cluster = 1;       // blocks that share K
  int lanes = 1;         // strips of a block at a time
  int round_strips = 1;  // without clusters: strips that a warp multiplies before sums meet
  int stages = 2;        // pieces of a warp's ring
  Int4GemmLayout layout;
};

// The first of `count` things that share number `index` of `of` has; the next share's is its end.
[[nodiscard]] constexpr int int4_share(int count, int index, int of) {
  return static_cast<int>(static_cast<std::int64_t>(count) * index / of);
}

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

// What an op does with the main loop.
struct Int4GemmUse {
  int input_bytes = 2;   // of a token's number as it comes, 2 or 4
  bool fetches = false;  // the epilogue has inputs
};

// The plan for 1 .. kMaxInt4Tokens tokens; nullopt where so many tokens of so wide a matrix fit into
// no block: they have to go in parts.
[[nodiscard]] std::optional<Int4GemmPlan> plan_int4_gemm(const layout::Int4Tile& tile,
                                                         int num_tokens, const Int4GemmUse& use,
                                                         const Int4GemmMachine& machine);

// One way to do it, of those that plan_int4_gemm chooses from; nullopt where it does not fit.
[[nodiscard]] std::optional<Int4GemmPlan> make_int4_plan(const Int4GemmConfigValues& config,
                                                         int cluster, const layout::Int4Tile& tile,
                                                         int num_tokens, const Int4GemmUse& use,
                                                         const Int4GemmMachine& machine);

// Throws: a plan names what was not built, or an op got operands that its kernel cannot read. Here
// because sources that nvcc compiles do without the error builders.
[[noreturn]] void no_such_instance(const Int4GemmConfigValues& config);
void check_int4_operand(const void* x, std::int64_t row_stride, std::size_t number_bytes);
void check_no_rotation(int rotation_block);

}  // namespace fut::cuda
