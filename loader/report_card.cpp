// The card as JSON: short keys are not worth their riddles, a card of an 80-layer model has 50 kB.
#include "loader/report_card.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "loader/json_file.h"

namespace fut {
namespace {

using nlohmann::json;

constexpr char kWhere[] = "the report card of the quantised folder";

// A packed file has room for 16 KiB and 10 KiB for each layer's four matrices. A byte of a text
// takes 7 there at most (a control character, escaped in a string in a string): 10 notices make
// 14 kB, four notes less than 6 kB.
constexpr std::size_t kMaxTextBytes = 200;
constexpr std::size_t kMaxNotices = 10;

// The beginning of a text that is too long, up to a whole UTF-8 character.
std::string shortened(const std::string& text) {
  constexpr std::string_view kMore = "...";
  if (text.size() <= kMaxTextBytes) return text;
  std::size_t size = kMaxTextBytes - kMore.size();
  while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xC0U) == 0x80U) --size;
  return text.substr(0, size).append(kMore);
}

json notices_json(const std::vector<std::string>& notices) {
  const bool is_all = notices.size() <= kMaxNotices;
  const std::size_t shown = is_all ? notices.size() : kMaxNotices - 1;
  json out = json::array();
  for (std::size_t i = 0; i < shown; ++i) out.push_back(shortened(notices[i]));
  if (!is_all) out.push_back(fmt::format("and {} notices more", notices.size() - shown));
  return out;
}

json matrix_json(const MatrixReport& matrix) {
  // JSON has null for a number that is not finite.
  json out = {{"name", matrix.name}, {"relative_error", matrix.relative_error}};
  if (!(matrix.relative_loss < 0)) out["relative_loss"] = matrix.relative_loss;
  if (!(matrix.rtn_loss < 0)) out["rtn_loss"] = matrix.rtn_loss;
  if (!matrix.note.empty()) out["note"] = shortened(matrix.note);
  return out;
}

double parse_number(const JsonObject& object, const json& value, const std::string& key) {
  if (value.is_null()) return std::numeric_limits<double>::quiet_NaN();
  constexpr double kLargest = std::numeric_limits<double>::max();
  return object.required_number(key, -kLargest, kLargest);
}

MatrixReport parse_matrix(const std::filesystem::path& where, const json& in) {
  if (!in.is_object()) throw data_error("{}: matrices holds {}", where.string(), in.type_name());
  const JsonObject object(where, in, "matrices.");
  const auto number = [&](const char* key) {
    const auto value = in.find(key);
    return value == in.end() ? -1.0 : parse_number(object, *value, key);
  };
  const std::optional<std::string> name = object.string("name");
  if (!name) object.fail_missing("name");
  if (!in.contains("relative_error")) object.fail_missing("relative_error");
  return {.name = *name,
          .relative_error = number("relative_error"),
          .relative_loss = number("relative_loss"),
          .rtn_loss = number("rtn_loss"),
          .note = object.string("note").value_or("")};
}

const json& list_of(const JsonObject& object, const std::string& key) {
  const json* list = object.find(key);
  if (list == nullptr) object.fail_missing(key);
  if (!list->is_array()) object.fail(key, "a list");
  return *list;
}

ReportCard parse_card(const std::filesystem::path& where, std::string_view text) {
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 53;  // a float64 has them all
  const json in = parse_json_object(where, std::string(text));
  const JsonObject object(where, in);
  ReportCard card;
  const auto tokens = object.integer("calibration_tokens", 0, kMostTokens);
  if (!tokens) object.fail_missing("calibration_tokens");
  card.calibration_tokens = *tokens;
  for (const json& matrix : list_of(object, "matrices")) {
    card.matrices.push_back(parse_matrix(where, matrix));
  }
  for (const json& notice : list_of(object, "notices")) {
    if (!notice.is_string()) object.fail("notices", "a list of strings");
    card.notices.push_back(notice.get<std::string>());
  }
  return card;
}

}  // namespace

std::string report_card_json(const ReportCard& card) {
  json out = {{"calibration_tokens", card.calibration_tokens},
              {"matrices", json::array()},
              {"notices", notices_json(card.notices)}};
  for (const MatrixReport& matrix : card.matrices) out["matrices"].push_back(matrix_json(matrix));
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

ReportCard parse_report_card(std::string_view text) {
  try {
    return parse_card(kWhere, text);
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}; this text of {} bytes is damaged or not of this "
                                          "program: quantise the checkpoint again",
                                          error.what(), text.size()));
  }
}

}  // namespace fut
