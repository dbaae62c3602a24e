// See the header.
#include "apps/chat/session.h"

#include <algorithm>

#include "apps/generation.h"
#include "apps/logging.h"
#include "apps/prompt_xray.h"
#include "apps/reply_on_terminal.h"
#include "apps/reply_report.h"
#include "apps/signals.h"
#include "apps/text_input.h"
#include "kernels/error.h"

namespace fut::app {

void SessionStats::add(const TextReply& reply, std::size_t prompt) {
  ++replies;
  prompt_tokens += prompt;
  cached_tokens += static_cast<std::size_t>(reply.reused_tokens);
  reply_tokens += reply.ids.size();
  prefill_ms += reply.timings.prefill_ms;
  decode_ms += reply.timings.decode_ms;
}

Session::Session(const GenerateOptions& options, Reporter& reporter, OpenedModel& model,
                 ChatTemplate chat_template)
    : options_(options),
      reporter_(reporter),
      model_(model),
      limits_{model.context_tokens, model.folder.config.max_position_embeddings, false},
      transcript_(chat_template, chat_options(options.form), model.folder.tokenizer),
      sampling_(resolve_sampling(options.sampling, model.folder.generation)) {
  if (options.prompt.system.given()) {
    transcript_.set_system(read_system_prompt(options.prompt, model.folder.tokenizer, limits_));
  }
  require_room(transcript_.encode_with("").size(), limits_);
  transcript_changed();
  Json& document = reporter_.document();
  document["model"] = model.folder.path.string();
  document["device"] = model.backend->description();
  document["context_tokens"] = model.context_tokens;
  add_arithmetic(document, model);
  add_sampling(document, sampling_);
  document["replies"] = Json::array();
}

std::string Session::read_first_turn() const {
  const Tokenizer& tokenizer = model_.folder.tokenizer;
  const std::string reason = fmt::format(" into a context of {} tokens", limits_.tokens);
  InputText input = read_text(options_.prompt.prompt, options_.prompt.interpret_escapes,
                              most_prompt_bytes(tokenizer, limits_.tokens), reason);
  refuse_hopeless_text(tokenizer, input.text, limits_);
  if (input.from_stream) drop_final_newline(input.text);
  return std::move(input.text);
}

Room Session::room_for(const std::string& text) const {
  Room room;
  room.context = static_cast<std::size_t>(limits_.tokens);
  std::vector<TokenId> ids = transcript_.encode_with(text);
  room.wanted = ids.size();
  if (room.fits()) {
    room.ids = std::move(ids);
    return room;
  }
  const std::size_t turns = transcript_.turns().size();
  room.alone = transcript_.encode_with(text, turns).size();
  // Room for a reply as well: what was asked for, at most a quarter of the context.
  const std::size_t quarter = room.context / 4;
  const auto most = static_cast<std::size_t>(options_.reply.max_new_tokens);
  const std::size_t reserve = options_.reply.max_new_tokens < 0 ? quarter : std::min(most, quarter);
  for (std::size_t skip = 1; skip <= turns; ++skip) {
    const std::size_t wanted = transcript_.encode_with(text, skip).size();
    if (wanted + reserve > room.context && skip < turns) continue;
    if (wanted >= room.context) break;
    room.turns_to_drop = skip;
    room.wanted_after = wanted;
    break;
  }
  return room;
}

int Session::say(const std::string& text, const std::vector<TokenId>& ids) {
  attempt_ = 0;
  return answer(text, ids, attempt_);
}

int Session::answer(const std::string& text, const std::vector<TokenId>& ids,
                    std::uint64_t attempt) {
  ++turn_;
  if (options_.form.verbose_prompt) {
    write_to_standard_error(
        prompt_xray(model_.folder.tokenizer, ids, {0, use_color(options_.log.color)}));
  }
  TextRequest request =
      make_text_request(options_, model_, transcript_.chat_template(), sampling_, ids);
  request.request.of_conversation = true;
  request.request.sampling.sample.seed += attempt;
  ReplyOnTerminal shown(reporter_.is_terminal(), shows_probabilities(options_));
  shown.watch(request);
  has_output_ = true;
  TextReply reply =
      generate_text(*engine_, model_.folder.tokenizer, request,
                    [&](std::string_view piece) { reporter_.text(shown.form(piece)); });
  reporter_.text("\n");
  Json entry = {{"turn", turn_}};
  add_reply(entry, reply, ids.size(), model_.folder.tokenizer);
  reporter_.line(entry);
  reporter_.document()["replies"].push_back(std::move(entry));
  if (reply.finish == FinishReason::Error) throw runtime_failure("{}", reply.error);
  tell_about_reply(reply, ids.size(), limits_.tokens, options_.log.verbosity,
                   request.request.sampling.sample);
  total_.add(reply, ids.size());
  const bool stopped = reply.finish == FinishReason::Interrupt;
  if (stopped && reply.text.empty()) {
    log_warning("stopped before a word was said: the turn is forgotten");
  } else {
    transcript_.add({text, reply.text});
    used_tokens_ = ids.size() + reply.ids.size();
    last_prompt_ = ids;
    last_reply_ = std::move(reply);
    reply_stands_ = true;
  }
  return stopped ? take_signal() : 0;
}

void Session::refuse_turn(const Room& room) {
  ++turn_;
  const std::string message = fmt::format(
      "turn {} does not fit: with it the conversation has {} tokens and the context holds {}, "
      "reply included; the earlier turns stay: say less, start again with /clear, or leave and "
      "raise -c",
      turn_, room.wanted, limits_.tokens);
  if (options_.reply.single_turn) throw capacity_error("{}", message);
  refused_a_turn_ = true;
  log_error("{}", message);
  const int code = static_cast<int>(ErrorKind::Capacity);
  Json entry = {{"turn", turn_},
                {"error", {{"code", code}, {"kind", "capacity"}, {"message", message}}}};
  reporter_.line(entry);
  has_output_ = has_output_ || reporter_.format() == OutputFormat::JsonLines;
  reporter_.document()["replies"].push_back(std::move(entry));
}

const Turn& Session::last_turn() const {
  if (transcript_.turns().empty()) throw usage_error("nothing was said yet");
  return transcript_.turns().back();
}

int Session::in_place_of_last_turn(const std::function<int(const Turn& old)>& reply) {
  (void)last_turn();
  const Turn old = *transcript_.take_last();
  const std::size_t others = transcript_.turns().size();
  const auto put_back = [&] {
    if (transcript_.turns().size() == others) transcript_.add(old);
  };
  try {
    const int signal = reply(old);
    put_back();
    return signal;
  } catch (...) {
    put_back();
    throw;
  }
}

int Session::regenerate() {
  return in_place_of_last_turn([&](const Turn& old) {
    const std::size_t others = transcript_.turns().size();
    const int signal = answer(old.user, transcript_.encode_with(old.user), ++attempt_);
    if (transcript_.turns().size() == others) log_warning("the reply before stays");
    return signal;
  });
}

int Session::say_instead(const std::string& text) {
  return in_place_of_last_turn([&](const Turn&) {
    const Room room = room_for(text);
    if (!room.fits()) {
      throw capacity_error(
          "with that the conversation has {} tokens and the context holds {}; the turn stays as it "
          "was",
          room.wanted, room.context);
    }
    return say(text, room.ids);
  });
}

Session::Choice Session::choice(std::size_t back) {
  const std::size_t count = standing_reply().ids.size();
  if (back < 1 || back > count) {
    throw usage_error("the last reply has {} tokens; 1 is the last one, {} the first", count,
                      count);
  }
  Request request;
  request.prompt = last_prompt_;
  const auto end = last_reply_->ids.end() - static_cast<std::ptrdiff_t>(back);
  request.prompt.insert(request.prompt.end(), last_reply_->ids.begin(), end);
  request.max_new_tokens = 1;
  request.sampling.sample.temperature = 0;
  request.of_conversation = true;  // most of it is computed, and stays so for the next turn
  constexpr int kShown = 5;
  request.num_logprobs = kShown;
  Choice result;
  result.chosen = *end;
  const SequenceId id = engine_->submit(std::move(request));
  while (!engine_->idle()) {
    for (const TokenEvent& event : engine_->step()) {
      if (event.sequence == id) result.best = event.top_logprobs;
    }
  }
  return result;
}

const TextReply& Session::standing_reply() const {
  if (!last_reply_) throw usage_error("nothing was said yet");
  if (!reply_stands_)
    throw usage_error("the last reply is gone with its turn: say something first");
  return *last_reply_;
}

void Session::transcript_changed() {
  used_tokens_ = transcript_.num_tokens();
}

void Session::last_turn_changed() {
  transcript_changed();
  reply_stands_ = false;
}

void Session::settings_changed() {
  const std::uint64_t seed = sampling_.params.sample.seed;
  const bool was_drawn = std::ranges::any_of(sampling_.settings, [](const SamplingSetting& s) {
    return s.name == "seed" && s.origin == "random";
  });
  const bool keeps_seed = was_drawn && !options_.sampling.seed;
  if (keeps_seed) options_.sampling.seed = seed;
  sampling_ = resolve_sampling(options_.sampling, model_.folder.generation);
  if (!keeps_seed) return;
  // The one that was drawn goes on, and is still nobody's choice.
  options_.sampling.seed.reset();
  for (SamplingSetting& setting : sampling_.settings) {
    if (setting.name == "seed") setting.origin = "random";
  }
}

}  // namespace fut::app
