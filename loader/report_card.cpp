// The card as JSON: short keys are not worth their riddles, a card of an 80-layer model has 50 kB.
#include "loader/report_card.h"

#include <nlohmann/json.hpp>

#include "kernels/error.h"

namespace fut {
namespace {

using nlohmann::json;

json matrix_json(const MatrixReport& matrix) {
  json out = {{"name", matrix.name}, {"relative_error", matrix.relative_error}};
  if (matrix.relative_loss >= 0) out["relative_loss"] = matrix.relative_loss;
  if (matrix.rtn_loss >= 0) out["rtn_loss"] = matrix.rtn_loss;
  if (!matrix.note.empty()) out["note"] = matrix.note;
  return out;
}

MatrixReport parse_matrix(const json& in) {
  MatrixReport matrix;
  matrix.name = in.at("name").get<std::string>();
  matrix.relative_error = in.at("relative_error").get<double>();
  matrix.relative_loss = in.value("relative_loss", -1.0);
  matrix.rtn_loss = in.value("rtn_loss", -1.0);
  matrix.note = in.value("note", "");
  return matrix;
}

}  // namespace

std::string report_card_json(const ReportCard& card) {
  json out = {{"calibration_tokens", card.calibration_tokens},
              {"matrices", json::array()},
              {"notices", card.notices}};
  for (const MatrixReport& matrix : card.matrices) out["matrices"].push_back(matrix_json(matrix));
  return out.dump();
}

ReportCard parse_report_card(std::string_view text) {
  try {
    const json in = json::parse(text);
    ReportCard card;
    card.calibration_tokens = in.at("calibration_tokens").get<std::int64_t>();
    for (const json& matrix : in.at("matrices")) card.matrices.push_back(parse_matrix(matrix));
    card.notices = in.at("notices").get<std::vector<std::string>>();
    return card;
  } catch (const json::exception& e) {
    throw data_error(
        "the report card of the quantised folder ({} bytes) is not one: {}; quantise the "
        "checkpoint "
        "again",
        text.size(), e.what());
  }
}

}  // namespace fut
