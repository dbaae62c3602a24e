// Reading a RaggedBatch on the host: whose a token is, where its keys lie, and whether the arrays
// keep what the caller promised.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/check.h"
#include "kernels/tensor.h"

namespace fut::cpu {

// The sequence that token t of the step belongs to.
[[nodiscard]] inline int sequence_of_token(const RaggedBatch& batch, std::int64_t token) {
  const std::int32_t* end = batch.q_indptr + batch.num_sequences + 1;
  return static_cast<int>(std::upper_bound(batch.q_indptr, end, token) - batch.q_indptr) - 1;
}

// The first position of a sequence in this step: how many tokens it had before.
[[nodiscard]] inline std::int64_t first_position(const RaggedBatch& batch, int sequence) {
  return std::int64_t{batch.kv_lengths[sequence]} -
         (batch.q_indptr[sequence + 1] - batch.q_indptr[sequence]);
}

// The number of the page that holds position `position` of a sequence.
[[nodiscard]] inline std::int64_t page_index(const RaggedBatch& batch, int sequence,
                                             std::int64_t position) {
  const std::int32_t* pages = batch.page_table + batch.kv_indptr[sequence];
  return pages[position / layout::kPageTokens];
}

// The page itself; T is float or, for BF16, std::uint16_t.
template <class T>
[[nodiscard]] T* page_of_position(const RaggedBatch& batch, const KvPages& kv, int sequence,
                                  std::int64_t position) {
  return kv.page_data<T>(page_index(batch, sequence, position));
}
[[nodiscard]] inline std::uint8_t* page_of_position(const RaggedBatch& batch, const KvPagesInt4& kv,
                                                    int sequence, std::int64_t position) {
  return kv.page_data(page_index(batch, sequence, position));
}

// Checks the promises of RaggedBatch that its arrays themselves must keep, pages and raw slots
// aside. Costs a few comparisons a token, and so do the functions below: a wrong page id found here
// is a wrong reply that nobody has to explain.
inline void check_tokens(const char* op, const RaggedBatch& batch) {
  FUT_CHECK(batch.q_indptr[0] == 0 && batch.q_indptr[batch.num_sequences] == batch.num_tokens,
            "{}: q_indptr goes from {} to {}, not from 0 to {}", op, batch.q_indptr[0],
            batch.q_indptr[batch.num_sequences], batch.num_tokens);
  for (int s = 0; s < batch.num_sequences; ++s) {
    const std::int32_t first = batch.q_indptr[s];
    const std::int32_t end = batch.q_indptr[s + 1];
    const std::int32_t length = batch.kv_lengths[s];
    FUT_CHECK(first <= end, "{}: q_indptr falls from {} to {} at sequence {}", op, first, end, s);
    FUT_CHECK(end <= batch.num_tokens, "{}: q_indptr reaches {} at sequence {} of {} tokens", op,
              end, s, batch.num_tokens);
    FUT_CHECK(end - first <= length, "{}: sequence {} has {} new tokens but a length of {}", op, s,
              end - first, length);
    FUT_CHECK(batch.longest_context == 0 || length <= batch.longest_context,
              "{}: sequence {} has a length of {}, longest_context is {}", op, s, length,
              batch.longest_context);
    for (std::int32_t t = first; t < end; ++t) {
      FUT_CHECK(batch.positions[t] == length - (end - t), "{}: token {} stands at {}, not at {}",
                op, t, batch.positions[t], length - (end - t));
    }
  }
}

inline void check_pages(const char* op, const RaggedBatch& batch, int num_pages) {
  FUT_CHECK(batch.kv_indptr[0] >= 0, "{}: kv_indptr begins at {}", op, batch.kv_indptr[0]);
  for (int s = 0; s < batch.num_sequences; ++s) {
    const std::int32_t length = batch.kv_lengths[s];
    const std::int32_t own_pages = batch.kv_indptr[s + 1] - batch.kv_indptr[s];
    FUT_CHECK(layout::pages_for_tokens(length) <= own_pages,
              "{}: sequence {} has {} pages for {} tokens", op, s, own_pages, length);
    for (std::int32_t i = batch.kv_indptr[s]; i < batch.kv_indptr[s + 1]; ++i) {
      FUT_CHECK(batch.page_table[i] >= 0 && batch.page_table[i] < num_pages,
                "{}: page_table[{}] is {}, there are {} pages", op, i, batch.page_table[i],
                num_pages);
    }
  }
}

// Two sequences in one slot would overwrite each other's rows, and which reads which would depend
// on threads.
inline void check_raw_slots(const char* op, const RaggedBatch& batch, int num_raw_slots) {
  std::vector<bool> taken(static_cast<std::size_t>(num_raw_slots), false);
  for (int s = 0; s < batch.num_sequences; ++s) {
    const std::int32_t slot = batch.raw_slots[s];
    FUT_CHECK(slot >= 0 && slot < num_raw_slots, "{}: raw_slots[{}] is {}, there are {} slots", op,
              s, slot, num_raw_slots);
    FUT_CHECK(!taken[static_cast<std::size_t>(slot)],
              "{}: raw_slots[{}] is {}, which a sequence before it has", op, s, slot);
    taken[static_cast<std::size_t>(slot)] = true;
  }
}

inline void check_ragged(const char* op, const RaggedBatch& batch, const KvPages& kv) {
  check_tokens(op, batch);
  check_pages(op, batch, kv.num_pages);
}
inline void check_ragged(const char* op, const RaggedBatch& batch, const KvPagesInt4& kv) {
  check_tokens(op, batch);
  check_pages(op, batch, kv.num_pages);
  check_raw_slots(op, batch, kv.num_raw_slots);
}

}  // namespace fut::cpu
