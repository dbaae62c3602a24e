// Reading of tokenizer_config.json; see tokenizer_config.h.
#include "tokenizer/tokenizer_config.h"

#include <algorithm>
#include <charconv>

#include "kernels/error.h"
#include "tokenizer/data_file.h"

namespace fut {
namespace {

using nlohmann::json;

const json* field(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

Error wrong_type(const std::string& where, const char* key, const char* wanted, const json& got) {
  return data_error("{}: '{}' must be {}, not {}", where, key, wanted, got.type_name());
}

// bos_token and its like: a string, or an object with the string inside.
std::optional<std::string> token_field(const json& object, const char* key,
                                       const std::string& where) {
  const json* value = field(object, key);
  if (value != nullptr && value->is_object()) return string_field(*value, "content", where);
  return string_field(object, key, where);
}

std::vector<AddedToken> added_tokens(const json& config, const std::string& where) {
  std::vector<AddedToken> tokens;
  const json* decoder = field(config, "added_tokens_decoder");
  if (decoder == nullptr) return tokens;
  if (!decoder->is_object()) throw wrong_type(where, "added_tokens_decoder", "an object", *decoder);
  for (const auto& [key, entry] : decoder->items()) {
    std::int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc{} || end != key.data() + key.size()) {
      throw data_error("{}: 'added_tokens_decoder' has '{}' where a token id must be", where,
                       excerpt(key));
    }
    tokens.push_back(parse_added_token(entry, id, where));
  }
  std::sort(tokens.begin(), tokens.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  return tokens;
}

// The content of a file of the folder; nullopt where it is not there.
std::optional<json> read_object(const std::filesystem::path& path) {
  if (!is_there(path)) return std::nullopt;
  json content = parse_json(read_data_file(path), path);
  if (!content.is_object()) throw wrong_type(path.string(), "the whole file", "an object", content);
  return content;
}

}  // namespace

std::optional<std::string> string_field(const json& object, const char* key,
                                        const std::string& where) {
  const json* value = field(object, key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) throw wrong_type(where, key, "a string", *value);
  return value->get<std::string>();
}

std::optional<bool> bool_field(const json& object, const char* key, const std::string& where) {
  const json* value = field(object, key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) throw wrong_type(where, key, "true or false", *value);
  return value->get<bool>();
}

std::optional<std::int64_t> int_field(const json& object, const char* key,
                                      const std::string& where) {
  const json* value = field(object, key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_integer()) throw wrong_type(where, key, "a whole number", *value);
  return value->get<std::int64_t>();
}

AddedToken parse_added_token(const json& entry, std::int64_t id, const std::string& where) {
  if (!entry.is_object()) throw wrong_type(where, "added token", "an object", entry);
  if (id < 0 || id > INT32_MAX) {
    throw data_error("{}: an added token has id {}, outside 0 to {}", where, id, INT32_MAX);
  }
  AddedToken token;
  token.id = static_cast<TokenId>(id);
  token.text = string_field(entry, "content", where).value_or("");
  if (token.text.empty() || token.text.size() > kLongestAddedToken) {
    throw data_error("{}: the spelling of added token {} has {} bytes; it must have 1 to {}", where,
                     id, token.text.size(), kLongestAddedToken);
  }
  token.special = bool_field(entry, "special", where).value_or(false);
  token.takes_left = bool_field(entry, "lstrip", where).value_or(false);
  token.takes_right = bool_field(entry, "rstrip", where).value_or(false);
  if (bool_field(entry, "single_word", where).value_or(false)) {
    throw data_error("{}: added token '{}' is 'single_word', which is not supported", where,
                     excerpt(token.text));
  }
  return token;
}

TokenizerConfig read_tokenizer_config(const std::filesystem::path& folder) {
  TokenizerConfig config;
  config.path = folder / "tokenizer_config.json";
  if (const auto content = read_object(config.path)) {
    const std::string where = config.path.string();
    config.add_bos = bool_field(*content, "add_bos_token", where);
    config.bos_token = token_field(*content, "bos_token", where);
    config.eos_token = token_field(*content, "eos_token", where);
    config.added_tokens = added_tokens(*content, where);
  }
  if (config.bos_token && config.eos_token) return config;
  const std::filesystem::path map_path = folder / "special_tokens_map.json";
  if (const auto content = read_object(map_path)) {
    const std::string where = map_path.string();
    if (!config.bos_token) config.bos_token = token_field(*content, "bos_token", where);
    if (!config.eos_token) config.eos_token = token_field(*content, "eos_token", where);
  }
  return config;
}

std::optional<std::string> read_config_chat_template(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "tokenizer_config.json";
  const std::string where = path.string();
  const auto content = read_object(path);
  const json* value = content ? field(*content, "chat_template") : nullptr;
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  if (!value->is_array()) throw wrong_type(where, "chat_template", "a string or a list", *value);
  for (const json& entry : *value) {
    if (!entry.is_object()) throw wrong_type(where, "chat_template", "a list of objects", entry);
    if (string_field(entry, "name", where) == "default") {
      return string_field(entry, "template", where);
    }
  }
  throw data_error("{}: 'chat_template' lists {} templates, none of them named 'default'", where,
                   value->size());
}

}  // namespace fut
