// One step of attention over a cache of numbers, F32 or BF16, that holds cached_value everywhere:
// what a backend gives, what the contract gives, and bounds.
#pragma once

#include <functional>
#include <vector>

#include "tests/support/attention_reference.h"
#include "tests/support/ragged_case.h"

namespace fut::test {

struct DenseAttention {
  std::vector<SequenceShape> sequences;
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  DType cache = DType::F32;
  DType in = DType::F32;
  DType out = DType::F32;
  std::vector<float> out_scales = {};   // E4M3
  SumOrder order = SumOrder::Contract;  // of bounds()

  [[nodiscard]] std::int64_t cols() const { return std::int64_t{num_q_heads} * head_dim; }
  [[nodiscard]] Shape shape() const;  // of q and out

  // q without a pattern, wide enough to tell keys apart.
  [[nodiscard]] std::vector<float> queries() const;

  // out, widened. A cache that was written to fails the test.
  [[nodiscard]] std::vector<float> run(Backend& backend, const std::vector<float>& q) const;
  // The same by `op` on the backend's memory.
  [[nodiscard]] std::vector<float> run(Backend& backend, const std::vector<float>& q,
                                       const std::function<void(const AttentionArgs&)>& op) const;
  [[nodiscard]] std::vector<float> expected(const std::vector<float>& q) const;
  [[nodiscard]] std::vector<Bounded> bounds(const std::vector<float>& q) const;

 private:
  template <class Fn>
  void for_each_head(const std::vector<float>& q, const Fn& fn) const;
};

// Decode, prefill and both in one step; all ratios of heads, head sizes that fill no register too.
[[nodiscard]] std::vector<DenseAttention> dense_attention_cases();

}  // namespace fut::test
