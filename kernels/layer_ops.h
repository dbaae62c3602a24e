// The ops of some layers as one thing to do: a device may have one kernel for all of them.
#pragma once

#include <span>

#include "kernels/ops.h"

namespace fut {

class Backend;

// layers: qkv_rope_append, attention, linear_residual (o_proj), gate_up_swiglu and linear_residual
// (down_proj) of each layer, in this order, layer after layer.
// limits    those of the ops. Each op's arguments may be what ops before it wrote
// rounding  the bits of the residual and of the cache are those of the ops called one by one. What else the
//           ops write (q_out, k_out, v_out, both operands and exponents) may hold anything afterwards
struct LayerArgs {
  QkvRopeAppendArgs qkv;
  AttentionArgs attention;
  LinearResidualArgs o_proj;
  GateUpSwigluArgs gate_up;
  LinearResidualArgs down_proj;
};

// The same, op by op.
void run_op_by_op(Backend& backend, std::span<const LayerArgs> layers);

}  // namespace fut
