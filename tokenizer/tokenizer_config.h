// What tokenizer_config.json, and special_tokens_map.json where that is silent, say about tokens
// and templates: everything optional, since the files themselves are. Internal to tokenizer/.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/special_tokens.h"

namespace fut {

struct TokenizerConfig {
  std::filesystem::path path;  // of tokenizer_config.json, whether it is there or not
  std::optional<bool> add_bos;
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  std::vector<AddedToken> added_tokens;  // by id; empty where the file gives none
};

// Throws Data: damaged (file and byte), a field of the wrong type (named). add_eos_token is not
// looked at: an end token behind a prompt would end every reply.
[[nodiscard]] TokenizerConfig read_tokenizer_config(const std::filesystem::path& folder);

// The chat_template of tokenizer_config.json, of several the one named "default". Throws Data:
// damaged, of the wrong type, several and none of that name.
[[nodiscard]] std::optional<std::string> read_config_chat_template(
    const std::filesystem::path& folder);

// Reads one added token; `where` names file and place for messages. Throws Data for a missing or
// overlong spelling and for single_word, which is not supported. The flag "normalized" is not
// looked at: a token is found where a text spells it as it is.
[[nodiscard]] AddedToken parse_added_token(const nlohmann::json& entry, std::int64_t id,
                                           const std::string& where);

// object[key] as a string, a number, a flag; nullopt where it is absent or null. Throws Data where
// it is something else, naming `where` and the key.
[[nodiscard]] std::optional<std::string> string_field(const nlohmann::json& object, const char* key,
                                                      const std::string& where);
[[nodiscard]] std::optional<bool> bool_field(const nlohmann::json& object, const char* key,
                                             const std::string& where);
[[nodiscard]] std::optional<std::int64_t> int_field(const nlohmann::json& object, const char* key,
                                                    const std::string& where);

}  // namespace fut
