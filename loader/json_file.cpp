// Bounded JSON parsing on top of nlohmann's parser, which neither recurses nor limits what it is
// given.
#include "loader/json_file.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/error.h"
#include "loader/describe.h"
#include "loader/file_reader.h"
#include "loader/json_guard.h"

namespace fut {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxFileBytes = 16U << 20;  // a tree takes up to 40 times as much
// Real lists have three ids; each is compared with all, here and at every step of a reply.
constexpr std::size_t kMaxTokenIds = 1024;

void check_size(const std::filesystem::path& name, std::uint64_t bytes) {
  if (bytes <= kMaxFileBytes) return;
  throw data_error("{}: has {} bytes of JSON, at most {} are expected", name.string(), bytes,
                   kMaxFileBytes);
}

std::string read_text(const std::filesystem::path& path) {
  const FileReader file = FileReader::open(path);
  check_size(path, file.size());
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

[[noreturn]] void throw_not_json(const std::filesystem::path& path, const std::string& text,
                                 std::size_t byte) {
  const std::string_view known = looks_like(text);
  if (text.empty()) {
    throw data_error("{}: is empty; download it again", path.string());
  }
  if (!known.empty()) throw data_error("{}: looks like {}", path.string(), known);
  const auto position = static_cast<std::ptrdiff_t>(std::min(byte, text.size()));
  const auto line = 1 + std::count(text.begin(), text.begin() + position, '\n');
  throw data_error("{}: is not valid JSON at byte {} (line {}) of {} bytes; {}", path.string(),
                   byte, line, text.size(),
                   byte > text.size() ? "it seems to be cut short, download it again"
                                      : "repair it or download it again");
}

}  // namespace

json read_json_file(const std::filesystem::path& path) {
  return parse_json_object(path, read_text(path));
}

json parse_json_object(const std::filesystem::path& name, const std::string& text) {
  check_size(name, text.size());
  // The JSON parser takes a NUL for the end of the text and would not look at what follows it.
  if (const std::size_t nul = text.find('\0'); nul != text.npos) {
    throw_not_json(name, text, nul + 1);
  }
  JsonGuard guard(name.string() + ":");
  json document;
  try {
    document = json::parse(text, std::ref(guard));
  } catch (const json::parse_error& error) {
    throw_not_json(name, text, error.byte);
  } catch (const json::out_of_range&) {
    throw data_error("{}: holds a number that is too large for a float64", name.string());
  }
  if (!document.is_object()) {
    throw data_error("{}: holds {}, a JSON object is expected", name.string(),
                     document.type_name());
  }
  return document;
}

const json* JsonObject::find(const std::string& key) const {
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void JsonObject::fail(const std::string& key, std::string_view wanted) const {
  throw data_error("{}: {} is {}, it must be {}", file_.string(), name_of(key),
                   quote(object_.at(key).dump()), wanted);
}

void JsonObject::fail_missing(const std::string& key) const {
  throw data_error("{}: the key {} is missing", file_.string(), name_of(key));
}

std::optional<std::int64_t> JsonObject::integer(const std::string& key, std::int64_t low,
                                                std::int64_t high) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  // As float64 first: exact for every value in question, and 4096.0 is an integer to the programs
  // that write these files.
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (!(number >= static_cast<double>(low) && number <= static_cast<double>(high)) ||
      number != std::floor(number)) {
    fail(key, fmt::format("an integer from {} to {}", low, high));
  }
  return static_cast<std::int64_t>(number);
}

std::optional<double> JsonObject::number(const std::string& key, double low, double high) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (!(number >= low && number <= high)) {
    fail(key, fmt::format("a number from {} to {}", low, high));
  }
  return number;
}

std::optional<bool> JsonObject::boolean(const std::string& key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) fail(key, "true or false");
  return value->get<bool>();
}

std::optional<std::string> JsonObject::string(const std::string& key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) fail(key, "a string");
  return value->get<std::string>();
}

std::optional<JsonObject> JsonObject::object(const std::string& key) const {
  const json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) fail(key, "an object");
  return JsonObject(file_, *value, name_of(key) + ".");
}

std::vector<std::int32_t> JsonObject::token_ids(const std::string& key) const {
  std::vector<std::int32_t> ids;
  const json* value = find(key);
  if (value == nullptr) return ids;
  const auto add = [&](const json& item) {
    constexpr std::int32_t kLargest = std::numeric_limits<std::int32_t>::max();
    if (!item.is_number_unsigned() || item.get<std::uint64_t>() > kLargest ||
        ids.size() == kMaxTokenIds) {
      fail(key, fmt::format("a token id from 0 to {} or a list of at most {} of them", kLargest,
                            kMaxTokenIds));
    }
    const auto id = item.get<std::int32_t>();
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  };
  if (value->is_array()) {
    for (const json& item : *value) add(item);
  } else {
    add(*value);
  }
  return ids;
}

int JsonObject::required_integer(const std::string& key, int low, int high) const {
  const std::optional<std::int64_t> value = integer(key, low, high);
  if (!value) fail_missing(key);
  return static_cast<int>(*value);
}

double JsonObject::required_number(const std::string& key, double low, double high) const {
  const std::optional<double> value = number(key, low, high);
  if (!value) fail_missing(key);
  return *value;
}

}  // namespace fut
