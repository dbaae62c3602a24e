// The tokens of a tokenizer: id to bytes, bytes to id, and which ids are special. Plain data; the
// readers of the file kinds fill it, everything else only looks up.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/token_index.h"
#include "tokenizer/tokenizer.h"

namespace fut {

class Vocabulary {
 public:
  // Throws Data where an id of `count` tokens lies so far out that the table would be mostly holes,
  // which no real file has and a damaged one can. `token` and `path` are for the message.
  static void check_id(std::int64_t id, std::size_t count, std::string_view token,
                       const std::filesystem::path& path);

  // Gives `id` its bytes. False where the id has a token already. Ids may be set in any order and
  // leave holes; a hole has the empty piece.
  [[nodiscard]] bool set(TokenId id, std::string bytes);

  // Makes `id` the answer for its own bytes. False where another id is that already; it stays so.
  [[nodiscard]] bool index(TokenId id);
  // How many tokens index() will be called for, at most; `path` is for messages.
  void reserve_index(std::size_t count, const std::filesystem::path& path);

  void mark_special(TokenId id) { special_[static_cast<std::size_t>(id)] = 1; }

  [[nodiscard]] int size() const { return static_cast<int>(pieces_.size()); }
  [[nodiscard]] bool has(TokenId id) const;  // in range and not a hole
  [[nodiscard]] const std::string& bytes(TokenId id) const {
    return pieces_[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] bool is_special(TokenId id) const {
    return id >= 0 && id < size() && special_[static_cast<std::size_t>(id)] != 0;
  }

  // The id whose bytes these are, or -1.
  [[nodiscard]] TokenId find(std::string_view bytes) const {
    return index_.find(bytes, [this](TokenId id) -> std::string_view { return this->bytes(id); });
  }

 private:
  std::vector<std::string> pieces_;
  std::vector<std::uint8_t> used_;
  std::vector<std::uint8_t> special_;
  TokenIndex index_;
};

}  // namespace fut
