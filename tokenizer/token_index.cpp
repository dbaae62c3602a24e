// Hashing for token_index.h: eight bytes at a time, since most tokens have no more.
#include "tokenizer/token_index.h"

#include <bit>
#include <cstring>
#include <utility>

#include "kernels/error.h"

namespace fut {

TokenIndex::TokenIndex(std::size_t capacity, std::filesystem::path file)
    : file_(std::move(file)), slots_(std::bit_ceil(2 * capacity + 2)) {}

void throw_crowded(const std::filesystem::path& file) {
  throw data_error(
      "{}: more than {} tokens or merges share one place of their table, which happens only where "
      "they "
      "are chosen so; get the file from its maker",
      file.string(), kMostProbes);
}

std::uint64_t TokenIndex::hash_of(std::string_view bytes) {
  constexpr std::uint64_t kMultiplier = 0x9E3779B97F4A7C15u;
  std::uint64_t hash = bytes.size() * kMultiplier;
  while (bytes.size() >= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), 8);
    hash = std::rotl(hash ^ word, 29) * kMultiplier;
    bytes.remove_prefix(8);
  }
  std::uint64_t word = 0;
  if (!bytes.empty()) std::memcpy(&word, bytes.data(), bytes.size());
  hash = std::rotl(hash ^ word, 29) * kMultiplier;
  return hash ^ (hash >> 29);
}

}  // namespace fut
