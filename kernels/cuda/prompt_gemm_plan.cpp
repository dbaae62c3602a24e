// The choices behind plan_prompt_gemm, and which weights the kernel can read.
#include "kernels/cuda/prompt_gemm_plan.h"

#include <algorithm>
#include <climits>

#include "kernels/cuda/row_gemm_plan.h"

namespace fut::cuda {
namespace {

// Token groups in a band: with 66 clusters a square of tiles is in flight.
constexpr int kBandGroups = 8;

// Time of a tile of 128 rows, in units of one of 256: shared memory limits narrow tiles.
constexpr double kNarrowTile = 0.62;

int div_up(std::int64_t a, int b) {
  return static_cast<int>((a + b - 1) / b);
}

}  // namespace

PromptGemmPlan make_prompt_plan(const PromptProduct& product, int tile_rows, int cluster,
                                bool spread, const Int4GemmMachine& machine) {
  for (int i = 0; i < product.num_parts; ++i) {
    if (product.parts[i].rows % layout::kSpreadRows != 0) spread = false;
  }
  if (!spread) tile_rows = 128;
  PromptGemmPlan plan;
  plan.tile_rows = tile_rows;
  PromptGemmArgs& a = plan.args;
  a.num_tokens = static_cast<int>(product.tokens);
  a.num_stages_of_k =
      div_up(std::int64_t{product.cols} * product.code_bytes, layout::kPromptRowBytes);
  a.lag = std::min(kPromptLag, a.num_stages_of_k);
  a.cluster = cluster;
  a.token_groups = div_up(product.tokens, layout::kPromptTileTokens * cluster);
  a.group = std::min(kBandGroups * 2 / cluster, a.token_groups);
  a.paired = product.paired;
  a.rows_of_tile = product.paired ? tile_rows / 2 : tile_rows;
  a.spread = spread;
  for (int i = 0; i < PromptProduct::kMaxParts; ++i) {
    const bool is_there = i < product.num_parts;
    a.part_begin[i] = product.parts[i].begin;
    a.part_rows[i] = product.parts[i].rows;
    a.part_tiles[i] = is_there && (i == 0 || !product.paired) ? a.row_tiles : INT_MAX;
    if (a.part_tiles[i] != INT_MAX) a.row_tiles += div_up(product.parts[i].rows, a.rows_of_tile);
  }
  a.num_tiles = a.token_groups * a.row_tiles;
  a.row_scales = product.row_scales;
  const int clusters = cluster == 2 ? machine.max_clusters_of_2 : machine.num_multiprocessors;
  plan.num_blocks = std::min(clusters, a.num_tiles) * cluster;
  return plan;
}

PromptGemmPlan plan_prompt_gemm(const PromptProduct& product, bool in_eights,
                                const Int4GemmMachine& machine) {
  // A pair of blocks shares weights where there are tokens for both.
  const int cluster =
      product.tokens > layout::kPromptTileTokens && machine.max_clusters_of_2 > 0 ? 2 : 1;
  PromptGemmPlan best;
  double best_time = 0;
  for (const int tile_rows : {256, 128}) {
    const PromptGemmPlan plan = make_prompt_plan(product, tile_rows, cluster, in_eights, machine);
    const int waves = div_up(std::int64_t{plan.args.num_tiles} * cluster, plan.num_blocks);
    const double time = waves * (plan.tile_rows == 256 ? 1.0 : kNarrowTile);
    if (best.tile_rows == 0 || time < best_time) {
      best = plan;
      best_time = time;
    }
  }
  return best;
}

namespace {

PromptProduct from_rows(const RowMatrix& matrix, int num_parts) {
  PromptProduct product;
  product.num_parts = num_parts;
  for (int i = 0; i < num_parts; ++i) {
    const int begin = i == 0 ? 0 : matrix.part_begin[i];
    const int end = i + 1 < num_parts ? matrix.part_begin[i + 1] : matrix.rows;
    product.parts[i] = {matrix.parts[i], begin, end - begin};
  }
  product.row_scales = matrix.row_scales;
  product.cols = matrix.cols;
  product.code_bytes = matrix.code_bytes;
  return product;
}

}  // namespace

PromptProduct prompt_product(const char* op, std::initializer_list<DenseMatrix> parts) {
  return from_rows(row_matrix(op, parts), static_cast<int>(parts.size()));
}

PromptProduct prompt_product(const char* op, const Weights& weights) {
  return from_rows(row_matrix(op, weights), 1);
}

void split_product(PromptProduct& product, int rows) {
  const PromptPart all = product.parts[0];
  product.num_parts = 2;
  product.parts[0].rows = rows;
  product.parts[1] = {static_cast<const std::uint8_t*>(all.data) +
                          std::int64_t{rows} * product.cols * product.code_bytes,
                      all.begin + rows, all.rows - rows};
}

bool prompt_rows_readable(const ConstActivationView& x) {
  return reinterpret_cast<std::uintptr_t>(x.data) % 16 == 0 &&
         x.row_stride * dtype_bytes(x.dtype) % 16 == 0;
}

}  // namespace fut::cuda
