// Byte-pair merging, shared by every kind that merges by rank: of all neighbouring pairs that may
// merge, the one of lowest rank, and of those the leftmost, is merged until none is left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace fut {

struct Merge {
  std::uint32_t rank = 0;
  TokenId result = 0;
};

// The pairs that may merge. Open addressing: one probe answers for almost every pair.
class MergeTable {
 public:
  // `file` is named where pairs crowd one place; see kMostProbes.
  explicit MergeTable(std::size_t expected_pairs, std::filesystem::path file = {});

  // A pair given twice has the rank of the last time, as the files' makers have it.
  void insert(TokenId left, TokenId right, Merge merge);

  // nullptr where the pair does not merge.
  [[nodiscard]] const Merge* find(TokenId left, TokenId right) const;

 private:
  struct Slot {
    std::uint64_t pair;
    Merge merge;
  };
  [[nodiscard]] std::size_t slot_of(std::uint64_t pair) const;

  std::filesystem::path file_;
  std::vector<Slot> slots_;
};

// Merges `symbols` in place. O(n log n) for n symbols; more than 2^31 of them throw Capacity.
void merge_symbols(const MergeTable& table, std::vector<TokenId>& symbols);

}  // namespace fut
