// See the header. Values go through the tables of flags, so that ranges and messages are theirs.
#include "apps/batch_row.h"

#include <algorithm>

#include "apps/flag_groups.h"
#include "apps/json_input.h"
#include "apps/suggest.h"
#include "kernels/error.h"
#include "tokenizer/data_file.h"

namespace fut::app {
namespace {

constexpr std::string_view kPrompt = "prompt";
constexpr std::string_view kMessages = "messages";
constexpr std::string_view kSystem = "system";
constexpr std::string_view kId = "id";

// "top_k" of "--top-k"; empty for a name that is no word with two dashes.
std::string key_of(const std::string& name) {
  if (!name.starts_with("--")) return {};
  std::string key = name.substr(2);
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

bool has_key(const Flag& flag, std::string_view key) {
  return std::any_of(flag.names.begin(), flag.names.end(),
                     [&](const std::string& name) { return key_of(name) == key; });
}

// Whether it holds a number that may come back otherwise than it was written: any but whole ones of 64 bits.
bool changes(const Json& value) {
  if (value.is_structured()) return std::ranges::any_of(value, changes);
  return value.is_number_float();
}

class RowParser {
 public:
  RowParser(const std::string& place, const GenerateOptions& options) : place_(place) {
    row_.form = options.form;
    row_.sampling = options.sampling;
    row_.reply = options.reply;
    append(flags_, sampling_flags(row_.sampling));
    append(flags_, reply_flags(row_.reply));
    append(flags_, raw_flags(row_.form));
  }

  BatchRow parse(std::string_view line) {
    const Json object = parse_json_input(line, place_ + ": the line");
    if (!object.is_object()) {
      throw data_error("{}: the line is {}, an object is wanted", place_, object.type_name());
    }
    for (const auto& [key, value] : object.items()) take(key, value);
    if (row_.prompt.has_value() == !row_.messages.empty()) {
      throw usage_error("{}: one of \"prompt\" and \"messages\" is wanted{}", place_,
                        row_.prompt ? ", not both" : "");
    }
    if (row_.form.raw && (!row_.messages.empty() || row_.system)) {
      throw usage_error("{}: \"messages\" and \"system\" are for the chat form, this row is raw",
                        place_);
    }
    return std::move(row_);
  }

 private:
  void take(const std::string& key, const Json& value) {
    if (value.is_null()) return;
    if (key == kId) return check_id(value);
    if (key == kPrompt) {
      row_.prompt = text_of(key, value);
    } else if (key == kSystem) {
      row_.system = text_of(key, value);
    } else if (key == kMessages) {
      take_messages(value);
    } else {
      const auto flag =
          std::ranges::find_if(flags_, [&](const Flag& f) { return has_key(f, key); });
      if (flag == flags_.end()) refuse(key);
      set(*flag, key, value);
    }
  }

  [[nodiscard]] std::string text_of(std::string_view key, const Json& value) const {
    if (value.is_string()) return value.get<std::string>();
    throw data_error("{}: \"{}\" is {}, a text is wanted", place_, key, value.type_name());
  }

  void take_messages(const Json& list) {
    if (!list.is_array() || list.empty()) {
      throw data_error("{}: \"messages\" has to be a list of {{role, content}}", place_);
    }
    for (const Json& entry : list) {
      const auto role = entry.is_object() ? entry.find("role") : entry.end();
      const auto content = entry.is_object() ? entry.find("content") : entry.end();
      if (!entry.is_object() || role == entry.end() || content == entry.end()) {
        throw data_error("{}: message {} is not an object with role and content", place_,
                         row_.messages.size() + 1);
      }
      row_.messages.push_back({text_of("role", *role), text_of("content", *content)});
    }
  }

  void set(const Flag& flag, const std::string& key, const Json& value) {
    const std::string source = fmt::format("{}: \"{}\"", place_, key);
    if (flag.value.empty()) {
      if (!value.is_boolean()) {
        throw usage_error("{}: '{}' is neither true nor false", source, excerpt(value.dump()));
      }
      if (value.get<bool>()) return flag.set({"", source, true});
      // What the whole run may have switched on.
      if (key == "ignore_eos") row_.reply.ignore_eos = false;
      if (key == "special") row_.reply.show_special = false;
      if (key == "raw" || key == "ignore_chat_template") row_.form.raw = false;
      return;
    }
    if (flag.repeatable) row_.reply.stop.clear();
    if (!flag.repeatable) return flag.set(argument(value, source));
    for (const Json& item : value.is_array() ? value : Json::array({value})) {
      if (!item.is_string()) {
        throw usage_error("{}: {} is not a text", source, excerpt(item.dump()));
      }
      flag.set(argument(item, source));
    }
  }

  // It comes back in the reply's line, and has to be what it was.
  void check_id(const Json& value) const {
    if (changes(value)) {
      throw data_error("{}: \"id\" has a number that may come back changed; give it as a text",
                       place_);
    }
  }

  static Argument argument(const Json& value, const std::string& source) {
    return {value.is_string() ? value.get<std::string>() : value.dump(), source, true};
  }

  [[noreturn]] void refuse(const std::string& key) const {
    std::vector<std::string> known = {std::string(kPrompt), std::string(kMessages),
                                      std::string(kSystem), std::string(kId)};
    for (const Flag& flag : flags_) {
      for (const std::string& name : flag.names) {
        if (std::string k = key_of(name); !k.empty()) known.push_back(std::move(k));
      }
    }
    const auto near = nearest_name(key, known);
    throw usage_error("{}: no setting is called \"{}\"{}; fut run --help lists them", place_,
                      excerpt(key), near ? fmt::format(", \"{}\" is", *near) : "");
  }

  const std::string& place_;
  BatchRow row_;
  Flags flags_;
};

}  // namespace

std::vector<InputRow> split_rows(std::string_view text, const std::string& name) {
  std::vector<InputRow> rows;
  std::size_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    rows.push_back({line, fmt::format("{}:{}", name, number)});
  }
  if (rows.empty()) throw usage_error("-i {}: there is no row in it", name);
  return rows;
}

BatchRow parse_batch_row(std::string_view line, const std::string& place,
                         const GenerateOptions& options) {
  return RowParser(place, options).parse(line);
}

Json batch_row_id(std::string_view line) {
  try {
    const Json object = parse_json_input(line, "");
    if (object.is_object() && object.contains(kId) && !changes(object[kId])) return object[kId];
  } catch (const Error&) {  // the row's own error says so
  }
  return nullptr;
}

}  // namespace fut::app
