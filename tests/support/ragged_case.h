// A step of several sequences for tests of the ops that use the cache: pages in disorder, poison in
// every slot that no token has been given.
#pragma once

#include <vector>

#include "tests/support/backends.h"

namespace fut::test {

struct SequenceShape {
  int new_tokens = 0;  // of this step
  int kv_length = 0;   // cache once they are in
};

// The host's view of a step: plain arrays and who is where.
struct RaggedArrays {
  std::vector<std::int32_t> token_ids, positions, q_indptr, kv_indptr, page_table, kv_lengths;
  std::vector<int> sequence_of_token;
  int num_pages = 0;

  explicit RaggedArrays(const std::vector<SequenceShape>& sequences);
  // First element of the page that holds a sequence's position.
  [[nodiscard]] std::int64_t page_offset(const layout::KvPageF32& page, int sequence,
                                         int position) const;
};

// What the cache of a test holds: element d of the key (or value) of a position, the same on every
// backend. Multiples of 1/64 between -1 and 1, without a pattern.
[[nodiscard]] float cached_value(bool is_value, int sequence, int head, int position, int d);

class RaggedCase {
 public:
  // Fills the cache of each sequence with cached_value up to num_cached[s] tokens, poison
  // elsewhere.
  RaggedCase(Backend& backend, const std::vector<SequenceShape>& sequences, layout::KvPageF32 page,
             const std::vector<int>& num_cached);

  [[nodiscard]] const RaggedArrays& arrays() const { return arrays_; }
  [[nodiscard]] RaggedBatch batch() const;
  [[nodiscard]] KvPages kv() const;
  // All pages now, guard zones checked.
  [[nodiscard]] std::vector<float> pages() const { return pages_.values(); }

 private:
  RaggedArrays arrays_;
  layout::KvPageF32 page_;
  Guarded<std::int32_t> token_ids_, positions_, q_indptr_, kv_indptr_, page_table_, kv_lengths_;
  Guarded<float> pages_;
};

}  // namespace fut::test
