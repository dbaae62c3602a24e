// See the header.
#include "apps/probability_colors.h"

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

}  // namespace

std::string_view probability_color(float logprob) {
  const double p = std::exp(static_cast<double>(logprob));
  for (const Step& step : kSteps) {
    if (p >= step.least) return step.color;
  }
  return kSteps[std::size(kSteps) - 1].color;
}

std::string probability_legend() {
  std::string text = "how likely a token was:";
  for (const Step& step : kSteps) text += fmt::format("  {}{}{}", step.color, step.name, kEnd);
  return text + "\n";
}

void ProbabilityColors::watch(TextRequest& request) {
  if (!on_) return;
  request.request.num_logprobs = std::max(request.request.num_logprobs, 1);
  request.on_token = [this](const TokenEvent& event) { logprob_ = event.logprob; };
}

std::string ProbabilityColors::colored(std::string_view piece) const {
  const std::string_view color = on_ ? probability_color(logprob_) : std::string_view();
  return color.empty() ? std::string(piece) : fmt::format("{}{}{}", color, piece, kEnd);
}

}  // namespace fut::app
