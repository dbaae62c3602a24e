// The choices behind plan_int4_gemm (README.md of this folder, "The INT4 main loop").
#include "kernels/cuda/int4_gemm_plan.h"

#include <algorithm>
#include <bit>

#include "kernels/check.h"

namespace fut::cuda {
namespace {

constexpr int kWarps = kInt4GemmThreads / 32;

// From this size on a launch wants larger pieces where rows are long as well.
constexpr std::int64_t kLargeMatrixBytes = 32LL << 20;
constexpr int kLongRow = 4096;
// Of rows longer than this few tokens are fewer.
constexpr int kLongestRow = 8192;
constexpr int kFewTokensOfLongRows = 4;
// Up to here a token's outputs leave most threads of a block idle, and four of them share a pair. Gate and up
// have more, and with four came to 18.5 us for 17.7: supposed to be why, not measured apart.
constexpr int kFewStrips = 4;

int aligned(int bytes) {
  return (bytes + 127) / 128 * 128;
}

int divided_up(int a, int b) {
  return (a + b - 1) / b;
}

Int4GemmLayout lay_out(int piece_groups, const layout::Int4Tile& tile, const Int4GemmArgs& args,
                       bool fetches) {
  const int groups = tile.num_groups();
  Int4GemmLayout l;
  l.squares = l.inputs + (fetches ? aligned((8 << args.log2_columns) * args.round_strips * 16) : 0);
  l.biases = l.squares + aligned(layout::kNumKSegments * kFewTokens * 4);
  l.ring = l.biases + aligned(groups * 8 * 4);
  l.tokens = l.ring + aligned(kWarps * int4_ring_bytes(piece_groups * tile.record_bytes()));
  l.token_stride = groups * tile.group * 2 + 16;
  l.partial = l.tokens + aligned(args.num_tokens * l.token_stride);
  l.bytes = l.partial + args.partial_offset(args.round_strips, 0) * 4;
  return l;
}

}  // namespace

std::optional<Int4GemmPlan> make_int4_plan(int piece_groups, const layout::Int4Tile& tile,
                                           int num_tokens, bool fetches,
                                           const Int4GemmMachine& machine) {
  Int4GemmPlan plan;
  plan.piece_groups = piece_groups;
  plan.num_blocks = std::min(machine.num_multiprocessors, kMaxInt4Blocks);
  plan.args.num_strips = tile.num_strips();
  plan.args.num_groups = tile.num_groups();
  plan.args.num_tokens = num_tokens;
  plan.args.log2_columns = std::bit_width(static_cast<unsigned>(num_tokens - 1));
  plan.args.round_strips = divided_up(tile.num_strips(), plan.num_blocks);
  for (; plan.args.round_strips >= 1; --plan.args.round_strips) {
    plan.args.layout = lay_out(piece_groups, tile, plan.args, fetches);
    if (plan.args.layout.bytes > kMaxSharedBytes) continue;
    if (num_tokens == 1 && plan.args.round_strips <= kFewStrips) plan.args.log2_lanes = 2;
    return plan;
  }
  return std::nullopt;
}

std::optional<Int4GemmPlan> plan_int4_gemm(const layout::Int4Tile& tile, int num_tokens,
                                           bool fetches, const Int4GemmMachine& machine) {
  FUT_CHECK(num_tokens >= 1 && num_tokens <= kMaxInt4Tokens, "{} tokens in one launch, {} at most",
            num_tokens, kMaxInt4Tokens);
  const int cols = tile.num_groups() * tile.group;
  if (num_tokens > (cols > kLongestRow ? kFewTokensOfLongRows : kFewTokens)) return std::nullopt;
  const bool is_long = cols > kLongRow;
  if (is_long && tile.bytes() >= kLargeMatrixBytes) {
    if (const auto plan = make_int4_plan(4, tile, num_tokens, fetches, machine)) return plan;
  }
  return make_int4_plan(2, tile, num_tokens, fetches, machine);
}

void check_int4_operand(const void* x, std::int64_t row_stride, std::size_t number_bytes) {
  constexpr std::size_t kAlignment = 16;
  const auto stride = static_cast<std::size_t>(row_stride) * number_bytes;
  FUT_CHECK(reinterpret_cast<std::uintptr_t>(x) % kAlignment == 0 && stride % kAlignment == 0,
            "x lies at {} with rows {} bytes apart: the GPU reads {} bytes at a time", x, stride,
            kAlignment);
}

void check_no_rotation(int rotation_block) {
  FUT_CHECK(rotation_block == 0,
            "rotation_block is {}: with INT4 weights the GPU leaves rotation to attention",
            rotation_block);
}

}  // namespace fut::cuda
