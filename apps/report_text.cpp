// See the header.
#include "apps/report_text.h"

#include <algorithm>
#include <fmt/format.h>
#include <vector>

#include "apps/words.h"

namespace fut::app {
namespace {

// Whether GPTQ made the matrices: what it makes small is the loss, and the error grows for it.
bool has_losses(const ReportCard& card) {
  return std::any_of(card.matrices.begin(), card.matrices.end(),
                     [](const MatrixReport& m) { return m.relative_loss >= 0; });
}

// By loss where there are losses; matrices without one come last. Equal ones keep the order of the
// model.
std::vector<MatrixReport> worst_first(const ReportCard& card) {
  std::vector<MatrixReport> matrices = card.matrices;
  const bool by_loss = has_losses(card);
  std::stable_sort(
      matrices.begin(), matrices.end(), [&](const MatrixReport& a, const MatrixReport& b) {
        return by_loss ? a.relative_loss > b.relative_loss : a.relative_error > b.relative_error;
      });
  return matrices;
}

constexpr const char* kErrorHeading = "relative error of each matrix, worst first:\n";
constexpr const char* kLossHeading =
    "loss: error of each matrix's outputs on the calibration text, relative, worst first; of rtn: "
    "had it been rounded to nearest; error: of its weights, which gptq lets grow\n"
    "  loss     of rtn   error    matrix\n";

std::string loss_text(double loss) {
  return loss < 0 ? fmt::format("{:<7}", "-") : fmt::format("{:.5f}", loss);
}

}  // namespace

std::string options_text(const PackedOptions& options) {
  std::string text =
      fmt::format("{}, groups of {}", method_name(options.method), options.group_size);
  if (options.scale_rule == ScaleRule::MinMax) text += ", scales minmax";
  if (options.rotate) text += ", hidden channels rotated";
  if (options.balance_qk) text += ", q and k balanced";
  if (options.balance_ffn) text += ", up and down balanced";
  if (options.kv_rotation) text += ", values rotated";
  return text;
}

std::string report_lines(const ReportCard& card, std::size_t most_lines) {
  const std::vector<MatrixReport> matrices = worst_first(card);
  const std::size_t shown = std::min(most_lines, matrices.size());
  const bool losses = has_losses(card);
  std::string text = losses ? kLossHeading : kErrorHeading;
  for (std::size_t i = 0; i < shown; ++i) {
    const MatrixReport& m = matrices[i];
    if (losses) {
      text += fmt::format("  {}  {}", loss_text(m.relative_loss), loss_text(m.rtn_loss));
    }
    text += fmt::format("  {:.5f}  {}{}\n", m.relative_error, m.name,
                        m.note.empty() ? "" : "  " + m.note);
  }
  if (shown < matrices.size()) {
    text += fmt::format("  ... and {} more; -v or --json shows all\n", matrices.size() - shown);
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
