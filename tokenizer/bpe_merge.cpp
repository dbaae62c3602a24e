// Byte-pair merging; see bpe_merge.h. Words are short, so they go through a plain scan over an
// array; long runs (a megabyte of one letter is one piece) go through a heap over a linked list.
// Both follow the same rule and give the same result.
#include "tokenizer/bpe_merge.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <utility>

#include "kernels/error.h"
#include "tokenizer/token_index.h"

namespace fut {
namespace {

constexpr std::uint64_t kNoPair = ~std::uint64_t{0};
constexpr std::size_t kShort = 32;  // up to here the scan is the faster one

std::uint64_t pair_key(TokenId left, TokenId right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
         static_cast<std::uint32_t>(right);
}

// Every step scans for the best pair: quadratic, and quick for a word.
void merge_by_scan(const MergeTable& table, std::vector<TokenId>& symbols) {
  std::array<const Merge*, kShort> merges{};  // merges[i]: of symbols i and i + 1
  std::size_t n = symbols.size();
  for (std::size_t i = 0; i + 1 < n; ++i) merges[i] = table.find(symbols[i], symbols[i + 1]);
  while (n > 1) {
    std::size_t best = n;
    for (std::size_t i = 0; i + 1 < n; ++i) {
      if (merges[i] != nullptr && (best == n || merges[i]->rank < merges[best]->rank)) best = i;
    }
    if (best == n) break;
    symbols[best] = merges[best]->result;
    for (std::size_t i = best + 1; i + 1 < n; ++i) {
      symbols[i] = symbols[i + 1];
      merges[i] = merges[i + 1];
    }
    --n;
    if (best > 0) merges[best - 1] = table.find(symbols[best - 1], symbols[best]);
    if (best + 1 < n) merges[best] = table.find(symbols[best], symbols[best + 1]);
  }
  symbols.resize(n);
}

// Symbols as a doubly linked list inside arrays; a symbol merged into its left neighbour is gone.
// The heap holds rank and place in one number, which orders as the rule asks. Entries are never
// taken out early: one whose rank is no longer that of its place is out of date.
class LinkedSymbols {
 public:
  LinkedSymbols(const MergeTable& table, std::vector<TokenId>& symbols)
      : table_(table),
        symbols_(symbols),
        next_(symbols.size()),
        previous_(symbols.size()),
        merges_(symbols.size(), kNoMerge) {
    for (std::uint32_t i = 0; i < next_.size(); ++i) {
      next_[i] = i + 1;
      previous_[i] = i - 1;  // of the first: kEnd
    }
    next_.back() = kEnd;
    for (std::uint32_t i = 0; next_[i] != kEnd; ++i) {
      if (look_up(i)) heap_.push_back(heap_entry(i));
    }
    std::make_heap(heap_.begin(), heap_.end(), std::greater{});
  }

  void merge_all() {
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), std::greater{});
      const std::uint64_t entry = heap_.back();
      heap_.pop_back();
      const auto at = static_cast<std::uint32_t>(entry);
      if (merges_[at].rank == entry >> 32) merge(at);
    }
    symbols_.erase(std::remove(symbols_.begin(), symbols_.end(), kGone), symbols_.end());
  }

 private:
  static constexpr std::uint32_t kEnd = ~std::uint32_t{0};
  static constexpr TokenId kGone = -1;
  static constexpr Merge kNoMerge = {~std::uint32_t{0}, kGone};

  [[nodiscard]] std::uint64_t heap_entry(std::uint32_t at) const {
    return (static_cast<std::uint64_t>(merges_[at].rank) << 32) | at;
  }

  // How the symbol at `at` merges with its right neighbour, which it must have.
  bool look_up(std::uint32_t at) {
    const Merge* merge = table_.find(symbols_[at], symbols_[next_[at]]);
    merges_[at] = merge != nullptr ? *merge : kNoMerge;
    return merge != nullptr;
  }

  void look_up_and_push(std::uint32_t at) {
    if (!look_up(at)) return;
    heap_.push_back(heap_entry(at));
    std::push_heap(heap_.begin(), heap_.end(), std::greater{});
  }

  void merge(std::uint32_t at) {
    const std::uint32_t gone = next_[at];
    symbols_[at] = merges_[at].result;
    merges_[at] = kNoMerge;
    symbols_[gone] = kGone;
    merges_[gone] = kNoMerge;
    next_[at] = next_[gone];
    if (next_[at] != kEnd) {
      previous_[next_[at]] = at;
      look_up_and_push(at);
    }
    if (previous_[at] != kEnd) look_up_and_push(previous_[at]);
  }

  const MergeTable& table_;
  std::vector<TokenId>& symbols_;
  std::vector<std::uint32_t> next_;
  std::vector<std::uint32_t> previous_;
  std::vector<Merge> merges_;  // by place: with the right neighbour, as things stand now
  std::vector<std::uint64_t> heap_;
};

}  // namespace

MergeTable::MergeTable(std::size_t expected_pairs, std::filesystem::path file)
    : file_(std::move(file)), slots_(std::bit_ceil(2 * expected_pairs + 2), Slot{kNoPair, {}}) {}

std::size_t MergeTable::slot_of(std::uint64_t pair) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t slot = ((pair * 0x9E3779B97F4A7C15u) >> 32) & mask;  // high bits: both ids are in
  for (std::size_t steps = 0; slots_[slot].pair != kNoPair && slots_[slot].pair != pair;) {
    if (++steps > kMostProbes) throw_crowded(file_);
    slot = (slot + 1) & mask;
  }
  return slot;
}

void MergeTable::insert(TokenId left, TokenId right, Merge merge) {
  const std::uint64_t pair = pair_key(left, right);
  slots_[slot_of(pair)] = {pair, merge};
}

const Merge* MergeTable::find(TokenId left, TokenId right) const {
  const std::uint64_t pair = pair_key(left, right);
  const Slot& slot = slots_[slot_of(pair)];
  return slot.pair == pair ? &slot.merge : nullptr;
}

void merge_symbols(const MergeTable& table, std::vector<TokenId>& symbols) {
  if (symbols.size() < 2) return;
  if (symbols.size() <= kShort) {
    merge_by_scan(table, symbols);
    return;
  }
  constexpr std::size_t kMost = std::size_t{1} << 31;
  if (symbols.size() > kMost) {
    throw capacity_error(
        "a text of {} symbols without a place to split it cannot be tokenized; the most is {}: "
        "give it in parts",
        symbols.size(), kMost);
  }
  LinkedSymbols(table, symbols).merge_all();
}

}  // namespace fut
