// A reply as it goes to a terminal: control characters are spelt out, so that no model moves the cursor
// or names the window, and on request tokens are coloured by how sure the model was of them.
#pragma once

#include <string>
#include <string_view>

#include "engine/text_generation.h"

namespace fut::app {

// What the colours mean, in them.
[[nodiscard]] std::string probability_legend();

class ReplyOnTerminal {
 public:
  // Not a terminal: bytes as they are.
  ReplyOnTerminal(bool is_terminal, bool colors) : is_terminal_(is_terminal), colors_(colors) {}
  // Asks for log probabilities where there are colours. Must outlive the request.
  void watch(TextRequest& request);
  // A piece of the reply.
  [[nodiscard]] std::string form(std::string_view piece) const;

 private:
  bool is_terminal_;
  bool colors_;
  float logprob_ = 0;
};

}  // namespace fut::app
