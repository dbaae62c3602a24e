// An INT4 cache over several steps of attention: on a backend between guard zones, and on the host in
// the words of ops.h, place by place through the layout's functions. Both begin as poison: codes of
// 15 under parameters that are NaN, and rows of NaN.
#pragma once

#include <functional>
#include <vector>

#include "tests/support/attention_reference.h"
#include "tests/support/ragged_case.h"

namespace fut::test {

struct AttentionShape {
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int kv_group = 0;
  int rotation_block = 0;  // in the op; F32 operands alone

  [[nodiscard]] std::int64_t q_cols() const { return std::int64_t{num_q_heads} * head_dim; }
  [[nodiscard]] std::int64_t kv_cols() const { return std::int64_t{num_kv_heads} * head_dim; }
};

// Tokens begin .. begin + tokens - 1 of a sequence, one step's worth.
struct Pass {
  int sequence = 0;
  int begin = 0;
  int tokens = 0;
};

struct AttentionStep {
  std::vector<Pass> passes;
  DType in = DType::F32;  // of q, k and v: F32 is decode, BF16 is prefill
  DType out = DType::BF16;
  std::vector<float> out_scales;  // E4M3
};

// What q, k and v of a token hold: functions of the token alone, so that it can come in any step.
enum class Operand { Query, Key, Value };
using Numbers =
    std::function<float(Operand operand, int sequence, int position, int head, int dim)>;

// Normally distributed, `deviation` for queries and 1 for the others; keys of a few dims are larger,
// and shifted.
[[nodiscard]] Numbers random_numbers(float query_deviation = 1.0F);

// A step's arrays over pages and slots that stay those of their sequence. `whole`: every sequence as
// long as it may get.
[[nodiscard]] RaggedArrays arrays_of_step(const RaggedArrays& whole,
                                          const std::vector<Pass>& passes);

// Row-major operands of a step, [tokens, heads * head_dim].
[[nodiscard]] std::vector<float> operand_rows(const AttentionShape& shape,
                                              const std::vector<Pass>& passes, Operand operand,
                                              const Numbers& numbers);

struct Int4CacheBytes {
  std::vector<std::uint8_t> pages;
  std::vector<std::uint16_t> raw;
  bool operator==(const Int4CacheBytes&) const = default;
};

// The raw rows that the next step can read where sequence s has lengths[s] tokens, zeros in all
// others: what is left there of earlier blocks differs with the cut into passes.
[[nodiscard]] std::vector<std::uint16_t> live_rows(const Int4CacheBytes& bytes,
                                                   const AttentionShape& shape,
                                                   const RaggedArrays& whole,
                                                   const std::vector<int>& lengths);

class Int4Cache {
 public:
  // capacities[s]: the most tokens of sequence s.
  Int4Cache(Backend& backend, AttentionShape shape, const std::vector<int>& capacities);

  // One call of attention: out, widened.
  std::vector<float> run(const AttentionStep& step, const Numbers& numbers);
  // The arguments that run() would pass are changed by `change` first.
  std::vector<float> run(const AttentionStep& step, const Numbers& numbers,
                         const std::function<void(AttentionArgs&)>& change);
  // From now on run() hands its arguments to `op` instead of the backend's own.
  void use(std::function<void(const AttentionArgs&)> op) { op_ = std::move(op); }
  [[nodiscard]] Int4CacheBytes bytes() const { return {pages_.values(), raw_.values()}; }
  // Becomes what another cache of the same shape holds.
  void overwrite(const Int4CacheBytes& bytes);
  [[nodiscard]] const RaggedArrays& whole() const { return whole_; }

 private:
  Backend& backend_;
  AttentionShape shape_;
  RaggedArrays whole_;
  Guarded<std::uint8_t> pages_;
  Guarded<std::uint16_t> raw_;
  std::function<void(const AttentionArgs&)> op_;
};

// What the reference can be made to do wrong, to show that a test would notice.
enum class Fault { None, NoMinimum, OtherNibble, KeysNotRotated };

class Int4CacheReference {
 public:
  Int4CacheReference(AttentionShape shape, const std::vector<int>& capacities,
                     Fault fault = Fault::None);

  // What run() of a backend has to give, bit by bit.
  std::vector<float> run(const AttentionStep& step, const Numbers& numbers);
  // The same in bounds. Where `wanted` is given and false for a token of a pass, nothing is computed and
  // any finite number is within.
  std::vector<Bounded> run_bounded(const AttentionStep& step, const Numbers& numbers,
                                   SumOrder order = SumOrder::Contract,
                                   bool (*wanted)(const Pass& pass, int token) = nullptr);
  // What a step stores, without its outputs.
  void store(const AttentionStep& step, const Numbers& numbers);
  [[nodiscard]] const Int4CacheBytes& bytes() const { return bytes_; }

 private:
  [[nodiscard]] std::vector<float> step_row(const AttentionStep& step, const Numbers& numbers,
                                            Operand operand, int sequence, int position,
                                            int head) const;
  [[nodiscard]] CachedRow row(const AttentionStep& step, const Numbers& numbers, const Pass& pass,
                              Operand operand, int head, int position) const;
  [[nodiscard]] std::vector<CachedRow> rows(const AttentionStep& step, const Numbers& numbers,
                                            const Pass& pass, Operand operand, int head) const;
  template <class Fn>
  void for_each_head(const AttentionStep& step, const Numbers& numbers,
                     bool (*wanted)(const Pass& pass, int token), const Fn& fn) const;
  void store_pass(const AttentionStep& step, const Numbers& numbers, const Pass& pass);
  void pack(const std::vector<std::vector<float>>& rows, Operand operand, int sequence, int head,
            int first);
  [[nodiscard]] std::size_t page_at(int sequence, int position) const;
  [[nodiscard]] std::size_t raw_at(Operand operand, int sequence, int head, int position) const;

  AttentionShape shape_;
  Fault fault_;
  RaggedArrays whole_;
  layout::KvPageInt4 page_;
  layout::KvRawStore raw_rows_;
  Int4CacheBytes bytes_;
};

// Outputs of positions 0 .. length - 1 of sequence 0, decoded a token at a time; `cache` is one of the
// two above.
template <class Cache>
[[nodiscard]] std::vector<float> decode_tokens(Cache& cache, int length, const Numbers& numbers,
                                               DType out) {
  std::vector<float> all;
  for (int position = 0; position < length; ++position) {
    const std::vector<float> row = cache.run({{{0, position, 1}}, DType::F32, out, {}}, numbers);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

}  // namespace fut::test
