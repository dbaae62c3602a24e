// Small JSON files (config.json, generation_config.json, the shard index) and typed access to their
// keys with errors that name file, key and value. For use inside loader/ only: it shows nlohmann's
// types.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fut {

// Reads a file whose top is a JSON object. Throws Data: cannot be opened, larger than 16 MiB, not
// JSON (byte and line), what JsonGuard refuses, a number beyond float64.
[[nodiscard]] nlohmann::json read_json_file(const std::filesystem::path& path);

// The same of a text that comes from elsewhere; `name` stands for it in messages. The same limits.
[[nodiscard]] nlohmann::json parse_json_object(const std::filesystem::path& name,
                                               const std::string& text);

// The keys of one object of a file. A key whose value is null counts as absent. References `file`
// and `object`, which must outlive it.
class JsonObject {
 public:
  JsonObject(const std::filesystem::path& file, const nlohmann::json& object,
             std::string prefix = {})
      : file_(file), object_(object), prefix_(std::move(prefix)) {}

  [[nodiscard]] const nlohmann::json* find(const std::string& key) const;  // nullptr: absent

  // Throw Data naming file, key, value and what would be right.
  [[nodiscard]] std::optional<std::int64_t> integer(const std::string& key, std::int64_t low,
                                                    std::int64_t high) const;
  [[nodiscard]] std::optional<double> number(const std::string& key, double low, double high) const;
  [[nodiscard]] std::optional<bool> boolean(const std::string& key) const;
  [[nodiscard]] std::optional<std::string> string(const std::string& key) const;
  [[nodiscard]] std::optional<JsonObject> object(const std::string& key) const;
  // One token id or a list of at most 1024, each once; empty where the key is absent.
  [[nodiscard]] std::vector<std::int32_t> token_ids(const std::string& key) const;

  // The same for a key that has to be there.
  [[nodiscard]] int required_integer(const std::string& key, int low, int high) const;
  [[nodiscard]] double required_number(const std::string& key, double low, double high) const;

  [[nodiscard]] std::string name_of(const std::string& key) const { return prefix_ + key; }
  // `key` has a value that is not what is `wanted` ("an integer from 1 to 8").
  [[noreturn]] void fail(const std::string& key, std::string_view wanted) const;
  [[noreturn]] void fail_missing(const std::string& key) const;

 private:
  const std::filesystem::path& file_;
  const nlohmann::json& object_;
  std::string prefix_;  // "rope_scaling." inside a nested object
};

}  // namespace fut
