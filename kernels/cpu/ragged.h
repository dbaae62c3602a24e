// Reading a RaggedBatch on the host: whose a token is, where its keys lie, and whether the arrays
// keep what the caller promised.
#pragma once

#include <algorithm>

#include "kernels/check.h"
#include "kernels/tensor.h"

namespace fut::cpu {

// The sequence that token t of the step belongs to.
[[nodiscard]] inline int sequence_of_token(const RaggedBatch& batch, std::int64_t token) {
  const std::int32_t* end = batch.q_indptr + batch.num_sequences + 1;
  return static_cast<int>(std::upper_bound(batch.q_indptr, end, token) - batch.q_indptr) - 1;
}

// The page that holds position `position` of a sequence.
[[nodiscard]] inline float* page_of_position(const RaggedBatch& batch, const KvPages& kv,
                                             int sequence, std::int64_t position) {
  const std::int32_t* pages = batch.page_table + batch.kv_indptr[sequence];
  return kv.data + pages[position / layout::kPageTokens] * kv.page.elements();
}

// Checks the promises of RaggedBatch that its arrays themselves must keep. Costs a few comparisons
// a token; a wrong page id found here is a wrong reply that nobody has to explain.
inline void check_ragged(const char* op, const RaggedBatch& batch, const KvPages& kv) {
  FUT_CHECK(batch.q_indptr[0] == 0 && batch.q_indptr[batch.num_sequences] == batch.num_tokens,
            "{}: q_indptr goes from {} to {}, not from 0 to {}", op, batch.q_indptr[0],
            batch.q_indptr[batch.num_sequences], batch.num_tokens);
  FUT_CHECK(batch.kv_indptr[0] >= 0, "{}: kv_indptr begins at {}", op, batch.kv_indptr[0]);
  for (int s = 0; s < batch.num_sequences; ++s) {
    const std::int32_t first = batch.q_indptr[s];
    const std::int32_t end = batch.q_indptr[s + 1];
    const std::int32_t length = batch.kv_lengths[s];
    const std::int32_t num_pages = batch.kv_indptr[s + 1] - batch.kv_indptr[s];
    FUT_CHECK(first <= end, "{}: q_indptr falls from {} to {} at sequence {}", op, first, end, s);
    FUT_CHECK(end - first <= length, "{}: sequence {} has {} new tokens but a length of {}", op, s,
              end - first, length);
    FUT_CHECK(layout::pages_for_tokens(length) <= num_pages,
              "{}: sequence {} has {} pages for {} tokens", op, s, num_pages, length);
    for (std::int32_t t = first; t < end; ++t) {
      FUT_CHECK(batch.positions[t] == length - (end - t), "{}: token {} stands at {}, not at {}",
                op, t, batch.positions[t], length - (end - t));
    }
    for (std::int32_t i = batch.kv_indptr[s]; i < batch.kv_indptr[s + 1]; ++i) {
      FUT_CHECK(batch.page_table[i] >= 0 && batch.page_table[i] < kv.num_pages,
                "{}: page_table[{}] is {}, there are {} pages", op, i, batch.page_table[i],
                kv.num_pages);
    }
  }
}

}  // namespace fut::cpu
