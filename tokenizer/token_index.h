// A hash table from the bytes of tokens to their ids. It keeps ids only, not bytes: whoever owns
// the bytes tells them by id (`bytes_of(id)` gives a string_view). Open addressing, no removal.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace fut {

// Tables of tokens are half full at most: a search of this length would be chance once in 2^80 files.
// Without a bound, tokens that are chosen to share a hash make reading them quadratic.
inline constexpr std::size_t kMostProbes = 1024;
// Throws Data.
[[noreturn]] void throw_crowded(const std::filesystem::path& file);

class TokenIndex {
 public:
  TokenIndex() = default;
  // For at most `capacity` tokens. `file` is named where they crowd one place.
  explicit TokenIndex(std::size_t capacity, std::filesystem::path file);

  // The id of `bytes`, or -1.
  template <class BytesOf>
  [[nodiscard]] TokenId find(std::string_view bytes, BytesOf bytes_of) const {
    return slots_.empty() ? kFree : slots_[slot_of(bytes, hash_of(bytes), bytes_of)].id;
  }

  // Enters `id` under its bytes and returns it; returns the id that has the bytes already, if any.
  // Throws Data where the search takes more steps than tokens that were not chosen for it need.
  template <class BytesOf>
  TokenId insert(TokenId id, BytesOf bytes_of) {
    const std::string_view bytes = bytes_of(id);
    const std::uint64_t hash = hash_of(bytes);
    Slot& slot = slots_[slot_of(bytes, hash, bytes_of)];
    if (slot.id == kFree) slot = {static_cast<std::uint32_t>(hash >> 32), id};
    return slot.id;
  }

 private:
  static constexpr TokenId kFree = -1;
  struct Slot {
    std::uint32_t tag = 0;  // part of the hash: spares most comparisons of unequal bytes
    TokenId id = kFree;
  };

  static std::uint64_t hash_of(std::string_view bytes);

  // The slot that holds `bytes`, else the free one where they would go.
  template <class BytesOf>
  [[nodiscard]] std::size_t slot_of(std::string_view bytes, std::uint64_t hash,
                                    BytesOf bytes_of) const {
    const auto tag = static_cast<std::uint32_t>(hash >> 32);
    const std::size_t mask = slots_.size() - 1;
    std::size_t at = hash & mask;
    std::size_t steps = 0;
    while (slots_[at].id != kFree && (slots_[at].tag != tag || bytes_of(slots_[at].id) != bytes)) {
      if (++steps > kMostProbes) throw_crowded(file_);
      at = (at + 1) & mask;
    }
    return at;
  }

  std::filesystem::path file_;
  std::vector<Slot> slots_;  // a power of two, at most half of them taken
};

}  // namespace fut
