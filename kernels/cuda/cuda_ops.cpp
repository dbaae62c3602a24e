// Which kernel an op's types ask for.
#include "kernels/cuda/cuda_ops.h"

#include "kernels/cuda/attention_ops.h"
#include "kernels/cuda/int4_ops.h"
#include "kernels/cuda/prompt_ops.h"
#include "kernels/cuda/row_ops.h"
#include "kernels/error.h"

namespace fut::cuda {
namespace {

void refuse_plain(bool plain) {
  if (plain) throw usage_error("--precision f32 is the CPU's alone: use --device cpu or bf16");
}

template <class Stacked>
const Int4Matrix* as_int4(const Stacked& weights) {
  const auto* stacked = std::get_if<Weights>(&weights);
  return stacked == nullptr ? nullptr : std::get_if<Int4Matrix>(stacked);
}

}  // namespace

void qkv_rope_append(const QkvRopeAppendArgs& a, LaunchContext& context) {
  check(a);
  refuse_plain(a.gain != nullptr);
  if (const Int4Matrix* w = as_int4(a.weights)) {
    int4_qkv_rope_append(a, *w, context);
  } else if (a.x.dtype == DType::BF16) {
    prompt_qkv_rope_append(a, context);
  } else {
    row_qkv_rope_append(a, context);
  }
}

void attention(const AttentionArgs& a, LaunchContext& context) {
  check(a);
  refuse_plain(a.out.dtype == DType::F32);
  // BF16 operands over an INT4 cache are prefill, whatever the number of tokens: other arithmetic.
  const bool coded = std::holds_alternative<KvPagesInt4>(a.kv);
  if (!a.of_prompts && a.batch.num_tokens == a.batch.num_sequences &&
      !(coded && a.q.dtype == DType::BF16)) {
    attention_decode(a, context);
  } else {
    prompt_attention(a, context);
  }
}

void linear_residual(const LinearResidualArgs& a, LaunchContext& context) {
  check(a);
  refuse_plain(a.x.dtype == DType::F32);
  if (const auto* w = std::get_if<Int4Matrix>(&a.weight)) {
    int4_linear_residual(a, *w, context);
  } else if (a.residual.dtype == DType::BF16) {
    prompt_linear_residual(a, context);
  } else {
    row_linear_residual(a, context);
  }
}

void gate_up_swiglu(const GateUpSwigluArgs& a, LaunchContext& context) {
  check(a);
  refuse_plain(a.gain != nullptr);
  if (const Int4Matrix* w = as_int4(a.weights)) {
    int4_gate_up_swiglu(a, *w, context);
  } else if (a.x.dtype == DType::BF16) {
    prompt_gate_up_swiglu(a, context);
  } else {
    row_gate_up_swiglu(a, context);
  }
}

void lm_head(const LmHeadArgs& a, LaunchContext& context) {
  check(a);
  refuse_plain(a.gain != nullptr);
  row_lm_head(a, context);
}

}  // namespace fut::cuda
