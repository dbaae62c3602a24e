// One conversation with a model: the transcript, the settings that act, the last reply and what all of
// it cost. Asks nobody anything.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/chat/transcript.h"
#include "apps/model_session.h"
#include "apps/options.h"
#include "apps/prompt.h"
#include "apps/reporter.h"
#include "apps/sampling_settings.h"
#include "engine/text_generation.h"

namespace fut::app {

// What a turn needs and what there is, in tokens.
struct Room {
  std::size_t wanted = 0;   // the conversation with this turn
  std::size_t context = 0;  // reply included
  std::size_t alone = 0;    // this turn after the system prompt
  // The oldest turns whose going leaves room for this one and a reply, and what is wanted then; 0
  // turns where no number of them helps.
  std::size_t turns_to_drop = 0;
  std::size_t wanted_after = 0;
  std::vector<TokenId> ids;  // the conversation with this turn, where it fits
  [[nodiscard]] bool fits() const { return wanted < context; }
  [[nodiscard]] bool fits_alone() const { return alone < context; }
};

// Of the last reply, and of all.
struct SessionStats {
  int replies = 0;
  std::size_t prompt_tokens = 0, cached_tokens = 0, reply_tokens = 0;
  double prefill_ms = 0, decode_ms = 0;
  void add(const TextReply& reply, std::size_t prompt);
};

class Session {
 public:
  // Throws Capacity where the system prompt leaves no room for a turn: before weights are read.
  Session(const GenerateOptions& options, Reporter& reporter, OpenedModel& model,
          ChatTemplate chat_template);
  void start(Engine& engine) { engine_ = &engine; }

  // The text of the first turn, which -p or -f gives.
  [[nodiscard]] std::string read_first_turn() const;

  [[nodiscard]] Room room_for(const std::string& text) const;
  // One turn that fits, with the ids that room_for() has: streams the reply and keeps both. Returns the signal that stopped it, or 0;
  // a turn that was stopped before a word was said is forgotten. Throws Runtime.
  int say(const std::string& text, const std::vector<TokenId>& ids);
  // Counts a turn that found no room and reports it. Throws Capacity where the talk is one turn.
  void refuse_turn(const Room& room);
  [[nodiscard]] bool refused_a_turn() const { return refused_a_turn_; }
  // Whether replies, or lines about turns that have none, were begun.
  [[nodiscard]] bool has_output() const { return has_output_; }

  // Another reply to the last turn; the old one comes back where none was made. Throw Usage where
  // there is no turn.
  int regenerate();
  // `text` in the place of the last turn.
  int say_instead(const std::string& text);
  [[nodiscard]] const Turn& last_turn() const;

  // Ids and log probabilities that stood to choice `back` tokens before the end of the last reply
  // (1: the last one). Throws Usage where there is no such token.
  struct Choice {
    TokenId chosen = 0;
    std::vector<TokenLogprob> best;
  };
  [[nodiscard]] Choice choice(std::size_t back);

  [[nodiscard]] Transcript& transcript() { return transcript_; }
  [[nodiscard]] const Transcript& transcript() const { return transcript_; }
  // After the transcript was changed by others: what it holds beside the last turn, or which turn is last.
  void transcript_changed();
  void last_turn_changed();
  [[nodiscard]] std::size_t used_tokens() const { return used_tokens_; }
  [[nodiscard]] int context_tokens() const { return limits_.tokens; }
  [[nodiscard]] const OpenedModel& model() const { return model_; }
  [[nodiscard]] const SamplingSettings& sampling() const { return sampling_; }
  [[nodiscard]] GenerateOptions& options() { return options_; }
  void settings_changed();
  [[nodiscard]] const std::vector<TokenId>& last_prompt() const { return last_prompt_; }
  [[nodiscard]] const std::optional<TextReply>& last_reply() const { return last_reply_; }
  // The same while its turn is the last one. Throws Usage where there is none, or it is gone.
  [[nodiscard]] const TextReply& standing_reply() const;
  [[nodiscard]] const SessionStats& total() const { return total_; }

 private:
  int answer(const std::string& text, const std::vector<TokenId>& ids, std::uint64_t attempt);
  // `reply` in the place of the last turn, which comes back where it adds none, by throwing or by being
  // stopped. Returns what it returns.
  int in_place_of_last_turn(const std::function<int(const Turn& old)>& reply);

  GenerateOptions options_;
  Reporter& reporter_;
  OpenedModel& model_;
  Engine* engine_ = nullptr;
  ContextLimits limits_;
  Transcript transcript_;
  SamplingSettings sampling_;
  int turn_ = 0;
  std::uint64_t attempt_ = 0;  // of the last turn
  bool refused_a_turn_ = false;
  bool has_output_ = false;
  std::size_t used_tokens_ = 0;
  std::vector<TokenId> last_prompt_;
  std::optional<TextReply> last_reply_;
  bool reply_stands_ = false;
  SessionStats total_;
};

}  // namespace fut::app
