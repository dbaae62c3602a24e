// Launches the row product of 9 to 32 tokens, their operands made by a kernel before. Included by the ops'
// own files.
#pragma once

#include "kernels/cuda/row_gemm_launch.cuh"
#include "kernels/cuda/row_tile_gemm.cuh"
#include "kernels/cuda/tensor_map.h"

namespace fut::cuda {

// Where prepared tokens go.
struct RowTileOperands {
  std::uint8_t* operands;
  float* factors;
  int chunk_bytes;

  RowTileOperands(void* memory, int tiles)
      : operands(static_cast<std::uint8_t*>(memory) + kRowTileOperandsOffset),
        factors(static_cast<float*>(memory)),
        chunk_bytes(tiles * layout::kRowTileChunkBytes) {}

  __device__ void store(int token, int k, const uint2& four) const {
    std::uint8_t* chunk = operands + std::int64_t{k / layout::kRowTileChunk} * chunk_bytes;
    const int column = k % layout::kRowTileChunk;
    *reinterpret_cast<std::uint32_t*>(chunk + layout::tile_operand(token, column, 0)) = four.x;
    *reinterpret_cast<std::uint32_t*>(chunk + layout::tile_operand(token, column, 1)) = four.y;
  }
};

// Whether so many tokens of these weights are this product's, on this chip.
[[nodiscard]] inline bool takes_row_tiles(const RowMatrix& matrix, std::int64_t count,
                                          const LaunchContext& context) {
  return matrix.code_bytes == 1 && count >= kFewestTileTokens && count <= kMaxRowTokens &&
         row_tile_blocks(1, context.machine()) > 0;
}

template <class Format, int kTiles, bool kPaired, class Epilogue>
void launch_row_tile_instance(const char* op, const RowMatrix& matrix, const RowTileGemmArgs& args,
                              const Epilogue& epilogue, LaunchContext& context) {
  const auto kernel = row_tile_gemm_kernel<Format, kTiles, kPaired, Epilogue>;
  FUT_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      row_tile_shared_bytes(kTiles)));
  TensorMapShape box;
  box.data = matrix.parts[0];
  box.element_bytes = matrix.code_bytes;
  box.rows = matrix.rows;
  box.cols = matrix.cols;
  box.stride_bytes = matrix.row_bytes();
  box.box_rows = row_tile_box_rows(kPaired);
  LaunchShape shape;
  shape.grid = static_cast<unsigned>(row_tile_blocks(args.num_strips, context.machine()));
  shape.block = kRowTileThreads;
  shape.shared_bytes = static_cast<std::size_t>(row_tile_shared_bytes(kTiles));
  shape.cluster = kRowTileCluster;
  launch_dependent(op, kernel, shape, context.handle(), make_tensor_map(box), args, epilogue);
}

// kPaired: `order` takes a strip's halves from two places, each eight neighbouring rows.
template <class Format, RowNorm kNorm, bool kPaired, class Epilogue>
void launch_row_tiles(const char* op, const RowMatrix& matrix, const layout::RowOrder& order,
                      float scale_factor, const RowTokens& tokens, int count,
                      const Epilogue& epilogue, LaunchContext& context) {
  const int tiles = count <= 16 ? 2 : 4;
  const RowTileOperands out(
      context.scratch(ScratchUse::RowOperand, row_tile_operand_bytes(matrix.num_chunks())), tiles);
  const RowTileGemmArgs args{.order = order,
                             .num_strips = (order.packed_rows() + 15) / layout::kRowTileStripRows,
                             .num_chunks = matrix.num_chunks(),
                             .num_tokens = count,
                             .scale_factor = scale_factor,
                             .row_scales = matrix.row_scales,
                             .factors = kNorm == RowNorm::OnResult ? out.factors : nullptr,
                             .operands = out.operands};
  launch_prepare_rows<Format, kNorm>(op, tokens, count, matrix, out, context.handle());
  if (tiles == 2) {
    launch_row_tile_instance<Format, 2, kPaired>(op, matrix, args, epilogue, context);
  } else {
    launch_row_tile_instance<Format, 4, kPaired>(op, matrix, args, epilogue, context);
  }
}

}  // namespace fut::cuda
