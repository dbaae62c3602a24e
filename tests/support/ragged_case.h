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
  std::vector<std::int32_t> token_ids, positions, q_indptr, kv_indptr, page_table, kv_lengths,
      raw_slots;
  std::vector<int> sequence_of_token;
  int num_pages = 0;
  int num_raw_slots = 0;

  explicit RaggedArrays(const std::vector<SequenceShape>& sequences);
  // First element of the page that holds a sequence's position.
  [[nodiscard]] std::int64_t page_offset(const layout::KvPageDense& page, int sequence,
                                         int position) const;
};

// The arrays in a backend's memory, each between guard zones.
class GuardedBatch {
 public:
  GuardedBatch(Backend& backend, const RaggedArrays& arrays);
  [[nodiscard]] RaggedBatch view() const;

 private:
  Guarded<std::int32_t> token_ids_, positions_, q_indptr_, kv_indptr_, page_table_, kv_lengths_,
      raw_slots_;
  int num_sequences_;
  int num_tokens_;
};

// What the cache of a test holds: element d of the key (or value) of a position, the same on every
// backend. Multiples of 1/64 between -1 and 1, without a pattern: BF16 holds them.
[[nodiscard]] float cached_value(bool is_value, int sequence, int head, int position, int d);

class RaggedCase {
 public:
  // Fills the cache of each sequence with cached_value up to num_cached[s] tokens, poison
  // elsewhere. dtype: F32 or BF16.
  RaggedCase(Backend& backend, const std::vector<SequenceShape>& sequences,
             layout::KvPageDense page, const std::vector<int>& num_cached,
             DType dtype = DType::F32);

  [[nodiscard]] const RaggedArrays& arrays() const { return arrays_; }
  [[nodiscard]] RaggedBatch batch() const { return batch_.view(); }
  [[nodiscard]] KvPages kv() const { return {pages_.data(), arrays_.num_pages, page_, dtype_}; }
  // All pages now, as floats, guard zones checked.
  [[nodiscard]] std::vector<float> pages() const;

 private:
  RaggedArrays arrays_;
  layout::KvPageDense page_;
  DType dtype_;
  GuardedBatch batch_;
  Guarded<std::byte> pages_;
};

}  // namespace fut::test
