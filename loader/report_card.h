// What quantisation did to each matrix: plain data, and the JSON text that a quantised folder
// keeps.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fut {

// One matrix of the report card.
struct MatrixReport {
  std::string name;           // "layers.3.gate_up_proj"
  double relative_error = 0;  // sum of importance * (w - q)^2 over sum of importance * w^2
  // GPTQ: tr((W-Q) H (W-Q)^T) / tr(W H W^T), W as corrected for its inputs; -1: not known
  double relative_loss = -1;
  double rtn_loss = -1;  // GPTQ: the same of round to nearest on the same grid
  std::string note;      // "12 dead inputs", "rounded to nearest: ..."; usually empty
};
struct ReportCard {
  std::vector<MatrixReport> matrices;  // in the order of the model
  std::int64_t calibration_tokens = 0;
  std::vector<std::string> notices;  // what a user should be told
};

// The card as the JSON text that goes into the file. It always fits into the file's room for it:
// long texts are cut short, and of many notices the first are kept and the rest counted (each
// matrix has its own note all the same).
[[nodiscard]] std::string report_card_json(const ReportCard& card);
// And back; a number that was not finite comes back as NaN. Throws Data for other text.
[[nodiscard]] ReportCard parse_report_card(std::string_view json);

}  // namespace fut
