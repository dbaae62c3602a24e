// Launches an INT4 projection of one to kMaxInt4Tokens tokens by the main loop that is the faster one for so
// many of them. Included by the ops' own files.
#pragma once

#include "kernels/cuda/int4_batch_launch.cuh"
#include "kernels/cuda/int4_gemm_launch.cuh"

namespace fut::cuda {

// operand: as int4_gemm.cuh takes it; epilogue: of either loop; kWarpgroups: the most of a block in the loop
// for batches.
template <int kWarpgroups, class Operand, class Epilogue>
void launch_int4_projection(const char* op, const Int4Matrix& w, int count, const Operand& operand,
                            const Epilogue& epilogue, LaunchContext& context) {
  if (auto plan = plan_int4_gemm(w.tile, count, Epilogue::kFetches, context.machine())) {
    plan->args.packed = w.packed;
    launch_int4_gemm(op, w.tile.group, *plan, operand, epilogue, context.handle());
    return;
  }
  Int4BatchTokens tokens{};
  if constexpr (Operand::kNormalised) {
    tokens =
        prepare_int4_tokens(op, operand.x, operand.stride, count, operand.eps, w.tile, context);
  } else {
    tokens = {operand.x, operand.stride, nullptr};
  }
  launch_int4_batch<kWarpgroups>(op, w, count, tokens, epilogue, context);
}

}  // namespace fut::cuda
