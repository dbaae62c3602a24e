// One reply as text: drives an Engine, turns ids into whole UTF-8 characters, finds stop strings.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "engine/stop_matcher.h"
#include "tokenizer/text_stream.h"
#include "tokenizer/tokenizer.h"

namespace fut {

struct TextRequest {
  Request request;                // prompt ids, limits, sampling, end ids (none: --ignore-eos)
  std::vector<std::string> stop;  // none of them empty
  bool show_special = false;      // special tokens of the reply are text too
  bool strip_dummy_prefix =
      false;  // drop one space at the very start (SentencePiece, chat replies)
  const std::atomic<bool>* interrupt = nullptr;  // looked at between steps
  // Called with each token before the text that it releases.
  std::function<void(const TokenEvent&)> on_token;
};

struct TextTimings {
  double prefill_ms = 0;  // submit to first token
  double decode_ms = 0;   // first to last token
};

struct TextReply {
  std::vector<std::int32_t> ids;  // end token included
  std::string text;               // without it
  FinishReason finish = FinishReason::Error;
  int reused_tokens = 0;            // of the prompt, see TokenEvent
  std::optional<std::string> stop;  // the string that matched
  std::string error;                // what went wrong, where finish is Error
  std::vector<TokenEvent> events;   // one for each id, where logprobs were asked for
  TextTimings timings;
};

// Tokens of one reply to the text that may be shown: end tokens and (unless asked for) special
// tokens give none, characters come whole, stop strings never show.
class ReplyText {
 public:
  ReplyText(const Tokenizer& tokenizer, const TextRequest& request);

  // The text that this token releases; may be empty.
  [[nodiscard]] std::string push(TokenId id);
  // What is left when nothing follows.
  [[nodiscard]] std::string flush();
  [[nodiscard]] const std::optional<std::string>& stop() const { return stops_.matched(); }

 private:
  [[nodiscard]] bool is_shown(TokenId id) const;

  const Tokenizer& tokenizer_;
  std::vector<TokenId> end_ids_;
  bool show_special_;
  bool strip_next_space_;
  StopMatcher stops_;
  TextStream stream_;
};

// A reply while its tokens come.
class ReplyInProgress {
 public:
  // The clock starts. `tokenizer` must outlive it.
  ReplyInProgress(const Tokenizer& tokenizer, const TextRequest& request);

  // The text that a token of this reply's sequence releases; it is part of the reply already.
  [[nodiscard]] std::string take(const TokenEvent& event);
  // Set by the token that ended it, or by the stop string that it completed.
  [[nodiscard]] std::optional<FinishReason> finish() const { return finish_; }
  // The text that was held back, where nothing follows; part of the reply as well.
  [[nodiscard]] std::string flush();
  // The whole reply; what was not flushed is.
  [[nodiscard]] TextReply end(FinishReason finish) &&;

 private:
  using Clock = std::chrono::steady_clock;
  ReplyText text_;
  bool keeps_events_;
  TextReply reply_;
  std::optional<FinishReason> finish_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point first_ = start_;
};

// Runs one reply to its end. `on_text` gets pieces of valid UTF-8 (or bytes that can never be) in
// the step that completes them. Throws what Engine::submit, Engine::step and `on_text` throw, with
// the sequence cancelled; logits that are not finite are a TextReply.
[[nodiscard]] TextReply generate_text(Engine& engine, const Tokenizer& tokenizer,
                                      const TextRequest& request,
                                      const std::function<void(std::string_view)>& on_text);

[[nodiscard]] std::string_view finish_reason_name(FinishReason reason);  // "eos", "stop", ...

}  // namespace fut
