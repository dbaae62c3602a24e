// See the header.
#include "apps/report_text.h"

#include <algorithm>
#include <fmt/format.h>
#include <vector>

#include "apps/words.h"

namespace fut::app {
namespace {

// Equal errors keep the order of the model.
std::vector<MatrixReport> worst_first(const ReportCard& card) {
  std::vector<MatrixReport> matrices = card.matrices;
  std::stable_sort(matrices.begin(), matrices.end(),
                   [](const MatrixReport& a, const MatrixReport& b) {
                     return a.relative_error > b.relative_error;
                   });
  return matrices;
}

// GPTQ's losses, where they are known.
std::string loss_text(const MatrixReport& matrix) {
  if (matrix.relative_loss < 0) return {};
  std::string text = fmt::format("  loss {:.5f}", matrix.relative_loss);
  if (matrix.rtn_loss >= 0) text += fmt::format(" (rounded to nearest {:.5f})", matrix.rtn_loss);
  return text;
}

}  // namespace

std::string options_text(const PackedOptions& options) {
  std::string text =
      fmt::format("{}, groups of {}", method_name(options.method), options.group_size);
  if (options.rotate) text += ", hidden channels rotated";
  if (options.balance_qk) text += ", q and k balanced";
  if (options.balance_ffn) text += ", up and down balanced";
  if (options.kv_rotation) text += ", values rotated";
  return text;
}

std::string report_lines(const ReportCard& card, std::size_t most_lines) {
  const std::vector<MatrixReport> matrices = worst_first(card);
  const std::size_t shown = std::min(most_lines, matrices.size());
  std::string text;
  for (std::size_t i = 0; i < shown; ++i) {
    const MatrixReport& m = matrices[i];
    text += fmt::format("  {:.5f}  {}{}{}\n", m.relative_error, m.name, loss_text(m),
                        m.note.empty() ? "" : "  " + m.note);
  }
  if (shown < matrices.size()) {
    text += fmt::format("  ... and {} more\n", matrices.size() - shown);
  }
  return text;
}

Json report_document(const ReportCard& card) {
  Json matrices = Json::array();
  double sum = 0;
  for (const MatrixReport& m : worst_first(card)) {
    Json entry = {{"name", m.name}, {"relative_error", m.relative_error}};
    if (m.relative_loss >= 0) entry["relative_loss"] = m.relative_loss;
    if (m.rtn_loss >= 0) entry["rtn_loss"] = m.rtn_loss;
    if (!m.note.empty()) entry["note"] = m.note;
    matrices.push_back(std::move(entry));
    sum += m.relative_error;
  }
  const double mean = card.matrices.empty() ? 0 : sum / static_cast<double>(card.matrices.size());
  return {{"calibration_tokens", card.calibration_tokens},
          {"mean_relative_error", mean},
          {"matrices", std::move(matrices)},
          {"notices", card.notices}};
}

}  // namespace fut::app
