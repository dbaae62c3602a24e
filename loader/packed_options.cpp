// Options to JSON and back. A key that is missing is an error: what a file was made with is either
// known or not.
#include "loader/packed_options.h"

#include <fmt/format.h>
#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "loader/describe.h"
#include "loader/json_file.h"

namespace fut {
namespace {

using nlohmann::json;

std::string_view rule_name(ScaleRule rule) {
  return rule == ScaleRule::MinMax ? "minmax" : "searched";
}

bool required_boolean(const JsonObject& object, const std::string& key) {
  const std::optional<bool> value = object.boolean(key);
  if (!value) object.fail_missing(key);
  return *value;
}

std::string required_string(const JsonObject& object, const std::string& key) {
  const std::optional<std::string> value = object.string(key);
  if (!value) object.fail_missing(key);
  return *value;
}

// Whole numbers of 64 bits, which float64 cannot hold.
std::uint64_t required_unsigned(const JsonObject& object, const std::string& key) {
  const json* value = object.find(key);
  if (value == nullptr) object.fail_missing(key);
  if (!value->is_number_unsigned()) object.fail(key, "a whole number, not negative");
  return value->get<std::uint64_t>();
}

// Which of two names the key has: the first (false) or the second (true).
bool choice(const JsonObject& object, const std::string& key, std::string_view first,
            std::string_view second) {
  const std::string value = required_string(object, key);
  if (value != first && value != second) {
    object.fail(key, fmt::format("'{}' or '{}'", first, second));
  }
  return value == second;
}

CalibrationText parse_calibration(const JsonObject& object) {
  constexpr std::uint64_t kLargest = std::numeric_limits<std::uint32_t>::max();
  const std::uint64_t checksum = required_unsigned(object, "crc32c");
  if (checksum > kLargest) object.fail("crc32c", fmt::format("at most {}", kLargest));
  return {.name = required_string(object, "name"),
          .bytes = required_unsigned(object, "bytes"),
          .crc32c = static_cast<std::uint32_t>(checksum)};
}

}  // namespace

std::string_view method_name(QuantMethod method) {
  return method == QuantMethod::Gptq ? "gptq" : "rtn";
}

std::string options_json(const PackedOptions& options) {
  const json calibration = {{"name", options.calibration.name},
                            {"bytes", options.calibration.bytes},
                            {"crc32c", options.calibration.crc32c}};
  const json document = {{"method", method_name(options.method)},
                         {"group_size", options.group_size},
                         {"scale_rule", rule_name(options.scale_rule)},
                         {"rotate", options.rotate},
                         {"rotation_seed", options.rotation_seed},
                         {"balance_qk", options.balance_qk},
                         {"balance_ffn", options.balance_ffn},
                         {"kv_rotation", options.kv_rotation},
                         {"calibration", calibration},
                         {"calibration_tokens", options.calibration_tokens}};
  // The name of a file can be any bytes.
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
}

PackedOptions parse_options(const std::filesystem::path& file, std::string_view text) {
  const json document = parse_json_object(file, std::string(text));
  const JsonObject object(file, document, "options.");
  PackedOptions options;
  options.method = choice(object, "method", "rtn", "gptq") ? QuantMethod::Gptq : QuantMethod::Rtn;
  options.group_size = object.required_integer("group_size", 64, 128);
  if (options.group_size != 64 && options.group_size != 128) object.fail("group_size", "64 or 128");
  options.scale_rule =
      choice(object, "scale_rule", "minmax", "searched") ? ScaleRule::Searched : ScaleRule::MinMax;
  options.rotate = required_boolean(object, "rotate");
  options.rotation_seed = required_unsigned(object, "rotation_seed");
  options.balance_qk = required_boolean(object, "balance_qk");
  options.balance_ffn = required_boolean(object, "balance_ffn");
  options.kv_rotation = required_boolean(object, "kv_rotation");
  constexpr std::int64_t kMostTokens = std::numeric_limits<std::int64_t>::max();
  const std::uint64_t tokens = required_unsigned(object, "calibration_tokens");
  if (tokens > kMostTokens)
    object.fail("calibration_tokens", fmt::format("at most {}", kMostTokens));
  options.calibration_tokens = static_cast<std::int64_t>(tokens);
  const std::optional<JsonObject> calibration = object.object("calibration");
  if (!calibration) object.fail_missing("calibration");
  options.calibration = parse_calibration(*calibration);
  return options;
}

}  // namespace fut
