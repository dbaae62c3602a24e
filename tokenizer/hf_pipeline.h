// The parts of tokenizer.json around the model: normalizer, pre-tokenizer, decoder, post-processor.
// Two arrangements are known; anything else is refused by name, never skipped.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tokenizer/tokenizer.h"

namespace fut {

struct HfPipeline {
  enum class Kind {
    ByteLevel,    // a split pattern, then bytes in a printable alphabet (Llama 3)
    ByteFallback  // blanks as U+2581, no splitting, bytes for unknown characters (Llama 2)
  };
  Kind kind = Kind::ByteLevel;
  std::optional<std::string> split_regex;  // ByteLevel only; absent: a text is one piece
  bool dummy_prefix = false;               // ByteFallback only
  std::optional<std::string> bos_token;    // what the post-processor puts in front of a text
  std::optional<TokenId> bos_id;
};

// `file` is the whole of tokenizer.json; its model is not looked at. Throws Data naming the part
// and the type or the setting that is not supported. "truncation" and "padding" are not looked at:
// they serve training, and a prompt is never cut.
[[nodiscard]] HfPipeline read_hf_pipeline(const nlohmann::json& file,
                                          const std::filesystem::path& path);

}  // namespace fut
