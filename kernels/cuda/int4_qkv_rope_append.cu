// qkv_rope_append on the GPU, INT4 weights. Contract in ops.h.
// launch  one of the two INT4 main loops (int4_launch.cuh), dependent launch; the members
//         of a RoPE pair are rows g and g + 8 of a strip, so one thread turns them
// bound   memory: bytes of the packed matrix
#include <algorithm>

#include "kernels/cuda/int4_launch.cuh"
#include "kernels/cuda/int4_normed_operand.cuh"
#include "kernels/cuda/int4_ops.h"
#include "kernels/cuda/step_tokens.cuh"
#include "kernels/numeric/formats.h"

namespace fut::cuda {
namespace {

template <class Out>
__device__ __forceinline__ void put(Out* place, float value) {
  if constexpr (sizeof(Out) == sizeof(float)) {
    *place = value;
  } else {
    *place = f32_to_bf16(value);
  }
}

// Out is float, or std::uint16_t for BF16.
template <class Out>
struct RopeEpilogue {
  static constexpr bool kFetches = true;
  static constexpr bool kFinishes = false;
  QkvRopeAppendArgs a;
  int first_token;  // of the step, that this launch begins with

  // The token's position.
  __device__ int look_ahead(const Int4Output& out) const {
    return a.batch.positions[first_token + out.token];
  }
  // Cosine, sine and the position itself.
  __device__ void fetch(const Int4Output& out, int position, std::uint32_t place) const {
    const std::int64_t angle =
        std::int64_t{position} * (a.head_dim / 2) + row_of(out) % a.head_dim / 2 + out.g;
    ptx::copy_4_bytes(place, a.rope_cos + angle);
    ptx::copy_4_bytes(place + 4, a.rope_sin + angle);
    ptx::copy_4_bytes(place + 8, a.batch.positions + first_token + out.token);
  }

  __device__ bool store(const Int4Output& out, float lower, float upper, float r,
                        const float* inputs) const {
    const int row = row_of(out);
    const int rope_rows = (a.num_q_heads + a.num_kv_heads) * a.head_dim;
    const int token = first_token + out.token;
    const int position = __float_as_int(inputs[2]);
    lower *= r;
    upper *= r;
    if (row >= rope_rows) {
      Out* place = value_place(token, position, row - rope_rows + out.g);
      put(place, lower);
      put(place + layout::RowOrder::kHalfStrip, upper);
      return false;
    }
    const int head = row / a.head_dim;
    const int i = row % a.head_dim / 2 + out.g;
    Out* place = head < a.num_q_heads ? static_cast<Out*>(a.q_out.data) +
                                            token * a.q_out.row_stride + head * a.head_dim
                                      : key_place(token, position, head - a.num_q_heads);
    const float cos = inputs[0];
    const float sin = inputs[1];
    // Apart, as the contract has it: no product may be fused with the sum.
    put(place + i, __fsub_rn(__fmul_rn(lower, cos), __fmul_rn(upper, sin)));
    put(place + i + a.head_dim / 2, __fadd_rn(__fmul_rn(upper, cos), __fmul_rn(lower, sin)));
    return false;
  }

 private:
  __device__ static int row_of(const Int4Output& out) {
    return out.strip * layout::Int4Tile::kStripRows;
  }
  __device__ Out* key_place(int token, int position, int head) const {
    if (a.kv.data == nullptr) {
      return static_cast<Out*>(a.k_out.data) + token * a.k_out.row_stride + head * a.head_dim;
    }
    return page(token, position) + a.kv.page.k_offset(head, position % layout::kPageTokens);
  }
  // Column `column` of the token's values.
  __device__ Out* value_place(int token, int position, int column) const {
    if (a.kv.data == nullptr) {
      return static_cast<Out*>(a.v_out.data) + token * a.v_out.row_stride + column;
    }
    const int slot = position % layout::kPageTokens;
    return page(token, position) + a.kv.page.v_offset(column / a.head_dim, slot) +
           column % a.head_dim;
  }
  __device__ Out* page(int token, int position) const {
    const int sequence = sequence_of_token(a.batch, token);
    return static_cast<Out*>(a.kv.data) +
           page_of_position(a.batch, sequence, position) * a.kv.page.elements();
  }
};

template <class Out>
void launch_tokens(const QkvRopeAppendArgs& a, const Int4Matrix& w, std::int64_t first, int count,
                   LaunchContext& context) {
  const RopeEpilogue<Out> epilogue{a, static_cast<int>(first)};
  const NormedOperand operand{a.x.row<float>(first), a.x.row_stride, a.eps};
  launch_int4_projection<kFewBatchWarpgroups>("qkv_rope_append", w, count, operand, epilogue,
                                              context);
}

}  // namespace

void int4_qkv_rope_append(const QkvRopeAppendArgs& a, const Int4Matrix& w, LaunchContext& context) {
  check_int4_operand(a.x.data, a.x.row_stride, sizeof(float));
  check_no_rotation(a.rotation_block);
  for (std::int64_t first = 0; first < a.x.rows; first += kMaxInt4Tokens) {
    const auto count = static_cast<int>(std::min<std::int64_t>(kMaxInt4Tokens, a.x.rows - first));
    if (a.q_out.dtype == DType::F32) {
      launch_tokens<float>(a, w, first, count, context);
    } else {
      launch_tokens<std::uint16_t>(a, w, first, count, context);
    }
  }
}

}  // namespace fut::cuda
