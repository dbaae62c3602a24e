// One reply as text: drives an Engine, turns ids into whole UTF-8 characters, finds stop strings.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "tokenizer/tokenizer.h"

namespace fut {

struct TextRequest {
  Request request;                  // prompt ids, limits, sampling, end ids (empty: --ignore-eos)
  std::vector<std::string> stop;    // none empty
  bool show_special = false;        // special tokens of the reply are text too
  bool strip_dummy_prefix = false;  // drop one space at the very start (SentencePiece, full texts)
  const std::atomic<bool>* interrupt = nullptr;  // looked at between steps
};

struct TextTimings {
  double prefill_ms = 0;  // submit to first token
  double decode_ms = 0;   // first to last token
};

struct TextReply {
  std::vector<std::int32_t> ids;  // end token included
  std::string text;               // without it
  FinishReason finish = FinishReason::Error;
  std::optional<std::string> stop;  // the string that matched
  std::vector<TokenEvent> events;   // with logprobs, when asked for
  TextTimings timings;
};

// `on_text` gets pieces of valid UTF-8 (or bytes that can never be) in the step that completes
// them.
[[nodiscard]] TextReply generate_text(Engine& engine, const Tokenizer& tokenizer,
                                      TextRequest request,
                                      const std::function<void(std::string_view)>& on_text);

[[nodiscard]] std::string_view finish_reason_name(FinishReason reason);  // "eos", "stop", ...

}  // namespace fut
