// Token tables; see vocabulary.h. Guards against files whose ids would make a table of mostly
// holes.
#include "tokenizer/vocabulary.h"

#include <cstdint>
#include <utility>

#include "kernels/error.h"
#include "tokenizer/data_file.h"

namespace fut {
namespace {

// Real files number their tokens without gaps or nearly so; this leaves room for toys.
constexpr std::int64_t kIdsPerToken = 4;
constexpr std::int64_t kSpareIds = 65536;

}  // namespace

void Vocabulary::check_id(std::int64_t id, std::size_t count, std::string_view token,
                          const std::filesystem::path& path) {
  const std::int64_t limit = kIdsPerToken * static_cast<std::int64_t>(count) + kSpareIds;
  if (id >= 0 && id < limit && id < INT32_MAX) return;
  throw data_error(
      "{}: token '{}' has id {}, which cannot be in a vocabulary of {} tokens; the file is damaged",
      path.string(), excerpt(token), id, count);
}

bool Vocabulary::set(TokenId id, std::string bytes) {
  const auto at = static_cast<std::size_t>(id);
  if (at >= pieces_.size()) {
    pieces_.resize(at + 1);
    used_.resize(at + 1);
    special_.resize(at + 1);
  }
  if (used_[at] != 0) return false;
  used_[at] = 1;
  pieces_[at] = std::move(bytes);
  return true;
}

void Vocabulary::reserve_index(std::size_t count, const std::filesystem::path& path) {
  index_ = TokenIndex(count, path);
}

bool Vocabulary::index(TokenId id) {
  const auto bytes_of = [this](TokenId other) -> std::string_view { return bytes(other); };
  return index_.insert(id, bytes_of) == id;
}

bool Vocabulary::has(TokenId id) const {
  return id >= 0 && id < size() && used_[static_cast<std::size_t>(id)] != 0;
}

}  // namespace fut
