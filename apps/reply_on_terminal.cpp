// See the header.
#include "apps/reply_on_terminal.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace fut::app {
namespace {

struct Step {
  double least;  // probability
  const char* color;
  const char* name;
};
constexpr Step kSteps[] = {{0.9, "", "90 % and more"},
                           {0.5, "\033[32m", "50 %"},
                           {0.2, "\033[33m", "20 %"},
                           {0.05, "\033[35m", "5 %"},
                           {0.0, "\033[31m", "less"}};
constexpr const char* kEnd = "\033[0m";

// The escape sequence of a token's colour; empty for one that was as good as certain.
std::string_view probability_color(float logprob) {
  const double p = std::exp(static_cast<double>(logprob));
  for (const Step& step : kSteps) {
    if (p >= step.least) return step.color;
  }
  return kSteps[std::size(kSteps) - 1].color;
}

}  // namespace

std::string probability_legend() {
  std::string text = "how likely a token was:";
  for (const Step& step : kSteps) text += fmt::format("  {}{}{}", step.color, step.name, kEnd);
  return text + "\n";
}

void ReplyOnTerminal::watch(TextRequest& request) {
  if (!colors_) return;
  request.request.num_logprobs = std::max(request.request.num_logprobs, 1);
  request.on_token = [this](const TokenEvent& event) { logprob_ = event.logprob; };
}

std::string ReplyOnTerminal::form(std::string_view piece) const {
  if (!is_terminal_) return std::string(piece);
  std::string text;
  for (std::size_t i = 0; i < piece.size(); ++i) {
    const auto c = static_cast<unsigned char>(piece[i]);
    const auto next = i + 1 < piece.size() ? static_cast<unsigned char>(piece[i + 1]) : 0U;
    const bool second_set = c == 0xC2 && next >= 0x80 && next < 0xA0;  // U+0080 to U+009F
    if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7F || second_set) {
      text += fmt::format("\\x{:02X}", second_set ? next : c);
      if (second_set) ++i;
    } else {
      text += piece[i];
    }
  }
  const std::string_view color = colors_ ? probability_color(logprob_) : std::string_view();
  return color.empty() ? text : fmt::format("{}{}{}", color, text, kEnd);
}

}  // namespace fut::app
