// See the header.
#include "apps/prompt_xray.h"

#include <algorithm>
#include <fmt/format.h>

#include "apps/escape.h"
#include "apps/prompt.h"
#include "apps/words.h"

namespace fut::app {
namespace {

constexpr const char* kControlColor = "\033[35m";
constexpr const char* kWarningColor = "\033[33m";
constexpr const char* kCachedColor = "\033[2m";
constexpr const char* kEnd = "\033[0m";

class Xray {
 public:
  Xray(const Tokenizer& tokenizer, std::span<const TokenId> ids, const XrayOptions& options)
      : tokenizer_(tokenizer), ids_(ids), options_(options) {}

  [[nodiscard]] std::string text() {
    std::string table;
    for (std::size_t i = 0; i < ids_.size(); ++i) table += row(i);
    std::string head = "prompt: " + counted(ids_.size(), "token");
    if (options_.cached > 0) head += fmt::format(", {} of them cached", options_.cached);
    if (suspicious_ > 0) head += fmt::format("; look at {}", counted(suspicious_, "mark"));
    return head + "\n" + rendered() + table;
  }

 private:
  [[nodiscard]] std::string colored(std::string text, const char* color) const {
    return options_.color ? color + std::move(text) + kEnd : text;
  }
  [[nodiscard]] bool is_control(TokenId id) const {
    return id < tokenizer_.vocab_size() && tokenizer_.is_special(id);
  }

  // The text as the model sees it, each line begun by a bar.
  [[nodiscard]] std::string rendered() const {
    std::string text = "| ", plain;
    const auto end_plain = [&] {  // a character may lie in several tokens
      for (const char c : escape_controls_in_lines(plain)) {
        text += c;
        if (c == '\n') text += "| ";
      }
      plain.clear();
    };
    for (const TokenId id : ids_) {
      if (!is_control(id)) {
        plain += piece_of(tokenizer_, id);
        continue;
      }
      end_plain();
      text += colored(escape_controls(piece_of(tokenizer_, id)), kControlColor);
    }
    end_plain();
    return text + "\n";
  }

  // What is wrong with a token where it stands; empty: nothing.
  [[nodiscard]] std::string suspicion(std::size_t i) const {
    const auto bos = tokenizer_.bos_id();
    if (bos && ids_[i] == *bos && i > 0) return "a second BOS: no model was trained on that";
    if (is_control(ids_[i])) return {};
    const std::string text = piece_of(tokenizer_, ids_[i]);
    const bool is_last = i + 1 == ids_.size();
    if (is_last && text.ends_with(' ')) {
      return "a blank at the end: words begin with one, so the reply begins oddly";
    }
    // Templates trim what they are given, so a blank before a control token is the user's own.
    if (!is_last && is_control(ids_[i + 1]) && text.ends_with(' '))
      return "a blank before a control token";
    return {};
  }

  [[nodiscard]] std::string row(std::size_t i) {
    std::string line =
        fmt::format("{:>8} '{}'", ids_[i], escape_controls(piece_of(tokenizer_, ids_[i])));
    if (i < options_.cached) {
      line = colored(line, kCachedColor) + "  cached";
    } else if (is_control(ids_[i])) {
      line = colored(line, kControlColor);
    }
    if (const std::string what = suspicion(i); !what.empty()) {
      ++suspicious_;
      line += colored("  <- " + what, kWarningColor);
    }
    return line + "\n";
  }

  const Tokenizer& tokenizer_;
  std::span<const TokenId> ids_;
  const XrayOptions& options_;
  std::size_t suspicious_ = 0;
};

}  // namespace

std::string prompt_xray(const Tokenizer& tokenizer, std::span<const TokenId> ids,
                        const XrayOptions& options) {
  return Xray(tokenizer, ids, options).text();
}

}  // namespace fut::app
