// A reply on a terminal whose tokens are coloured by how sure the model was of them.
#pragma once

#include <string>
#include <string_view>

#include "engine/text_generation.h"

namespace fut::app {

// The escape sequence of a token's colour; empty for one that was as good as certain.
[[nodiscard]] std::string_view probability_color(float logprob);

// What the colours mean, in them.
[[nodiscard]] std::string probability_legend();

// Asks for log probabilities and keeps the colour of the last token.
class ProbabilityColors {
 public:
  explicit ProbabilityColors(bool on) : on_(on) {}
  void watch(TextRequest& request);
  // A piece of the reply as it goes to the terminal.
  [[nodiscard]] std::string colored(std::string_view piece) const;

 private:
  bool on_;
  float logprob_ = 0;
};

}  // namespace fut::app
