// One step of attention over a cache of numbers.
#include "tests/support/dense_attention.h"

namespace fut::test {

Shape DenseAttention::shape() const {
  return {static_cast<std::int64_t>(RaggedArrays(sequences).positions.size()), cols()};
}

std::vector<float> DenseAttention::queries() const {
  return normal_values(shape().rows * cols(), 7, 2.0F);
}

std::vector<float> DenseAttention::run(Backend& backend, const std::vector<float>& q) const {
  return run(backend, q, [&](const AttentionArgs& args) { backend.attention(args); });
}

std::vector<float> DenseAttention::run(Backend& backend, const std::vector<float>& q,
                                       const std::function<void(const AttentionArgs&)>& op) const {
  std::vector<int> lengths;
  for (const SequenceShape& s : sequences) lengths.push_back(s.kv_length);
  const RaggedCase step(backend, sequences, {num_kv_heads, head_dim}, lengths, cache);
  const GuardedActivation query(backend, in, shape(), q);
  const GuardedActivation result(backend, out, shape());
  const Guarded<float> scales(backend, out_scales);
  const std::vector<float> pages = step.pages();
  AttentionArgs args;
  args.q = query.const_view();
  args.num_q_heads = num_q_heads;
  args.num_kv_heads = num_kv_heads;
  args.head_dim = head_dim;
  args.batch = step.batch();
  args.kv = step.kv();
  args.out_scales = out_scales.empty() ? nullptr : scales.data();
  args.out = result.view();
  op(args);
  EXPECT_TRUE(same_bits(pages, step.pages(), {1, static_cast<std::int64_t>(pages.size())}));
  return result.values();
}

// Calls fn(case, factor of the output) for each query head of each token, in order.
template <class Fn>
void DenseAttention::for_each_head(const std::vector<float>& q, const Fn& fn) const {
  const RaggedArrays arrays(sequences);
  AttentionCase c;
  c.order = order;
  c.kind = cache == DType::F32 ? AttentionNumbers::Plain : AttentionNumbers::Rounded;
  for (std::size_t i = 0; i < q.size() / static_cast<std::size_t>(head_dim); ++i) {
    const std::size_t token = i / static_cast<std::size_t>(num_q_heads);
    const int kv_head = static_cast<int>(i) % num_q_heads / (num_q_heads / num_kv_heads);
    std::vector<float> query(q.begin() + static_cast<std::int64_t>(i) * head_dim,
                             q.begin() + static_cast<std::int64_t>(i + 1) * head_dim);
    if (cache != DType::F32) query = rotated_and_rounded(query, 0);
    std::vector<CachedRow> keys, values;
    for (int position = 0; position <= arrays.positions[token]; ++position) {
      for (const bool is_value : {false, true}) {
        CachedRow row;
        for (int d = 0; d < head_dim; ++d) {
          row.numbers.push_back(
              cached_value(is_value, arrays.sequence_of_token[token], kv_head, position, d));
        }
        (is_value ? values : keys).push_back(row);
      }
    }
    c.query = query;
    c.keys = keys;
    c.values = values;
    fn(c, out_scales.empty() ? 1.0F : out_scales[static_cast<std::size_t>(kv_head)]);
  }
}

std::vector<float> DenseAttention::expected(const std::vector<float>& q) const {
  std::vector<float> result;
  for_each_head(q, [&](const AttentionCase& c, float scale) {
    for (const float v : contract_attention(c)) result.push_back(rounded_to(out, v * scale));
  });
  return result;
}

std::vector<Bounded> DenseAttention::bounds(const std::vector<float>& q) const {
  std::vector<Bounded> result;
  for_each_head(q, [&](const AttentionCase& c, float) {
    const std::vector<Bounded> head = bounded_attention(c, out);
    result.insert(result.end(), head.begin(), head.end());
  });
  return result;
}

std::vector<DenseAttention> dense_attention_cases() {
  const std::vector<SequenceShape> decode = {{1, 1}, {1, 63}, {1, 64}, {1, 65}, {1, 129}, {1, 200}};
  const std::vector<SequenceShape> prefill = {{1, 1}, {63, 63}, {64, 64}, {65, 65}};
  const std::vector<SequenceShape> mixed = {{3, 66}, {1, 130}, {65, 128}, {2, 2}};
  return {{decode, 4, 1, 16}, {decode, 8, 2, 64},      {prefill, 2, 1, 128},
          {prefill, 4, 4, 8}, {mixed, 6, 2, 6},        {mixed, 3, 1, 24},
          {mixed, 4, 2, 40},  {{{1, 300}}, 4, 1, 128}, {{{1, 300}}, 1, 1, 2},
          {mixed, 8, 1, 64},  {{{70, 90}}, 32, 1, 16}};
}

}  // namespace fut::test
