// What becomes of the sums of INT4 products: the same bits from whichever kernel.
#pragma once

namespace fut::cuda {

// gate and up as they come from the product, r of their token's norm.
__device__ __forceinline__ float swiglu(float gate, float up, float r) {
  gate *= r;
  const float silu = __fdiv_rn(gate, 1.0F + expf(-gate));
  return silu * (up * r);
}

// Turns a RoPE pair. Apart, as the contract has it: no product may be fused with the sum.
__device__ __forceinline__ void turn_pair(float& lower, float& upper, float cos, float sin) {
  const float turned = __fsub_rn(__fmul_rn(lower, cos), __fmul_rn(upper, sin));
  upper = __fadd_rn(__fmul_rn(upper, cos), __fmul_rn(lower, sin));
  lower = turned;
}

}  // namespace fut::cuda
