// What prefill attention on the GPU asks beyond the contract. Here because sources that nvcc compiles
// do without the error builders.
#include "kernels/check.h"
#include "kernels/cuda/attention_prefill.h"

namespace fut::cuda {
namespace {

void check_aligned(const char* name, const void* data) {
  FUT_CHECK(reinterpret_cast<std::uintptr_t>(data) % 16 == 0,
            "attention: {} lies at {}, must be 16-byte aligned", name, data);
}

}  // namespace

void check_attention_prefill(const AttentionArgs& a) {
  constexpr int kMostHeads = 64;
  FUT_CHECK(a.head_dim == 64 || a.head_dim == 128,
            "attention: head_dim is {}, the GPU takes 64 and 128", a.head_dim);
  FUT_CHECK(a.num_q_heads / a.num_kv_heads <= kMostHeads,
            "attention: {} query heads share {} KV heads, the GPU takes {} for each at most",
            a.num_q_heads, a.num_kv_heads, kMostHeads);
  if (const auto* pages = std::get_if<KvPages>(&a.kv)) {
    check_aligned("kv", pages->data);
    return;
  }
  // F32 operands are decode: a step of one token for each sequence.
  FUT_CHECK(
      a.q.dtype == DType::BF16,
      "attention: q is {} with an INT4 cache and {} tokens of {} sequences; the GPU takes F32 "
      "with one token a sequence alone",
      dtype_name(a.q.dtype), a.batch.num_tokens, a.batch.num_sequences);
  check_aligned("kv.raw", std::get<KvPagesInt4>(a.kv).raw);
}

}  // namespace fut::cuda
