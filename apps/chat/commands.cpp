// See the header. What each command does is one function here; what it works on is elsewhere.
#include "apps/chat/commands.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <span>

#include "apps/chat/editor_program.h"
#include "apps/chat/home_folder.h"
#include "apps/chat/settings.h"
#include "apps/conversation_file.h"
#include "apps/escape.h"
#include "apps/logging.h"
#include "apps/prompt.h"
#include "apps/prompt_xray.h"
#include "apps/suggest.h"
#include "apps/words.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

void tell(std::string_view text) {
  write_to_standard_error(text);
}

void tell_transcript(const Session& session) {
  const std::size_t turns = session.transcript().turns().size();
  tell(fmt::format("{}, {} of {} tokens\n", counted(turns, "turn"), session.used_tokens(),
                   session.context_tokens()));
}

std::optional<std::size_t> whole_number(const std::string& text) {
  std::size_t value = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return value;
}

CommandResult help(Talk&, const std::string&);

CommandResult leave(Talk&, const std::string&) {
  return {.leave = true};
}

CommandResult system(Talk& talk, const std::string& text) {
  Transcript& transcript = talk.session.transcript();
  if (text.empty()) {
    tell(transcript.system() ? escape_controls_in_lines(*transcript.system()) + "\n"
                             : "there is no system prompt\n");
    return {};
  }
  const std::optional<std::string> before = transcript.system();
  transcript.set_system(text == "off" ? std::nullopt : std::optional(text));
  if (const Room room = talk.session.room_for(""); !room.fits()) {
    transcript.set_system(before);
    throw capacity_error(
        "with that system prompt the conversation has {} tokens, the context holds "
        "{}",
        room.wanted, room.context);
  }
  talk.session.transcript_changed();
  tell(text == "off" ? "no system prompt from now on\n" : "the system prompt is changed\n");
  return {};
}

CommandResult set(Talk& talk, const std::string& argument) {
  const std::size_t blank = argument.find(' ');
  const std::string name = argument.substr(0, blank);
  const std::string value = blank == argument.npos ? "" : argument.substr(blank + 1);
  if (name == kHistorySetting) {
    if (value != "on" && value != "off") throw usage_error("/set history on|off");
    talk.input.store_history(value == "on");
    tell(talk.input.stores_history()
             ? fmt::format("lines are stored in {}\n", talk.input.history_file().string())
             : "lines are not stored\n");
    return {};
  }
  if (!name.empty()) {
    change_setting(talk.session.options(), name, value);
    talk.session.settings_changed();
  }
  std::string text;
  for (const SamplingSetting& s : talk.session.sampling().settings) {
    text += fmt::format("{:<20} {} ({})\n", s.name, s.value, s.origin);
  }
  const ReplyOptions& reply = talk.session.options().reply;
  text += fmt::format(
      "{:<20} {}\n", "max_tokens",
      reply.max_new_tokens < 0 ? "up to the context" : std::to_string(reply.max_new_tokens));
  for (const std::string& stop : reply.stop) {
    text += fmt::format("{:<20} '{}'\n", "stop", escape_controls(stop));
  }
  tell(text);
  return {};
}

std::string gauge_bar(std::size_t used, std::size_t all) {
  constexpr std::size_t kCells = 40;
  const std::size_t full = std::min(kCells, (used * kCells + all / 2) / all);
  return "[" + std::string(full, '#') + std::string(kCells - full, '.') + "]";
}

CommandResult status(Talk& talk, const std::string&) {
  const Session& session = talk.session;
  const OpenedModel& model = session.model();
  const auto context = static_cast<std::size_t>(session.context_tokens());
  std::string settings;
  for (const SamplingSetting& s : session.sampling().settings) {
    settings +=
        fmt::format("{}{} {} ({})", settings.empty() ? "" : ", ", s.name, s.value, s.origin);
  }
  tell(fmt::format(
      "model     {}\ndevice    {}\nprecision {}, cache in {}\ntemplate  {}\ncontext   {} {} of {} "
      "tokens ({} %), {}\nsystem    {}\nsampling  {}\nhistory   {}\n",
      model.folder.path.string(), model.backend->description(), precision_name(model.precision),
      kv_cache_dtype_name(model.kv_cache.dtype),
      chat_template_name(session.transcript().chat_template()),
      gauge_bar(session.used_tokens(), context), session.used_tokens(), context,
      session.used_tokens() * 100 / context, counted(session.transcript().turns().size(), "turn"),
      session.transcript().system() ? escape_controls(*session.transcript().system()) : "none",
      settings, talk.input.stores_history() ? talk.input.history_file().string() : "not stored"));
  return {};
}

std::string rate_text(std::size_t tokens, double ms) {
  constexpr double kMsPerSecond = 1000;
  return ms > 0 ? fmt::format("{:.1f} tokens/s", static_cast<double>(tokens) * kMsPerSecond / ms)
                : "no rate";
}

CommandResult stats(Talk& talk, const std::string&) {
  const std::optional<TextReply>& last = talk.session.last_reply();
  if (!last) throw usage_error("nothing was said yet");
  const std::size_t prompt = talk.session.last_prompt().size();
  const auto cached = static_cast<std::size_t>(last->reused_tokens);
  const SessionStats& all = talk.session.total();
  tell(fmt::format(
      "last reply  {} prompt tokens, {} of them cached, {} new; first token after {:.1f} ms ({})\n"
      "            {} in {:.1f} ms ({}); ended by {}\n"
      "all {:<8}{} prompt tokens, {} of them cached; {} said; {:.1f} s reading, {:.1f} s "
      "speaking\n",
      prompt, cached, prompt - cached, last->timings.prefill_ms,
      rate_text(prompt - cached, last->timings.prefill_ms), counted(last->ids.size(), "token"),
      last->timings.decode_ms,
      rate_text(last->ids.empty() ? 0 : last->ids.size() - 1, last->timings.decode_ms),
      finish_reason_name(last->finish), all.replies, all.prompt_tokens, all.cached_tokens,
      counted(all.reply_tokens, "token"), all.prefill_ms / 1000, all.decode_ms / 1000));
  return {};
}

CommandResult regenerate(Talk& talk, const std::string&) {
  return {.signal = talk.session.regenerate()};
}

CommandResult undo(Talk& talk, const std::string& argument) {
  (void)talk.session.last_turn();
  Transcript& transcript = talk.session.transcript();
  const std::size_t turns = transcript.turns().size();
  const std::optional<std::size_t> wanted = whole_number(argument.empty() ? "1" : argument);
  if (!wanted || *wanted < 1)
    throw usage_error("/undo wants a number of turns, not '{}'", argument);
  if (*wanted > turns) {
    throw usage_error("/undo {}: there {} to take back", *wanted,
                      turns == 1 ? "is 1 turn" : fmt::format("are {} turns", turns));
  }
  for (std::size_t i = 0; i < *wanted; ++i) {
    tell(fmt::format("taken back: {}\n", escape_controls(transcript.take_last()->user)));
  }
  talk.session.last_turn_changed();
  tell_transcript(talk.session);
  return {};
}

CommandResult edit(Talk& talk, const std::string& text) {
  const std::string before = talk.session.last_turn().user;
  const std::string after = text.empty() ? edit_text(before) : text;
  if (after.find_first_not_of(" \t\n") == after.npos) throw usage_error("nothing is left to say");
  return {.signal = talk.session.say_instead(after)};
}

CommandResult clear(Talk& talk, const std::string&) {
  talk.session.transcript().clear();
  talk.session.last_turn_changed();
  if (talk.input.is_terminal()) tell("the conversation starts again\n");
  return {};
}

CommandResult save(Talk& talk, const std::string& argument) {
  const std::string file = argument.empty() ? talk.saved_as : in_home_folder(argument);
  if (file.empty()) throw usage_error("/save wants a file name");
  write_conversation(file, talk.session.transcript().messages(), file == talk.saved_as);
  talk.saved_as = file;
  tell(fmt::format("saved as {}: ", file));
  tell_transcript(talk.session);
  return {};
}

CommandResult load(Talk& talk, const std::string& argument) {
  if (argument.empty()) throw usage_error("/load wants a file name");
  const std::string file = in_home_folder(argument);
  const std::vector<ChatMessage> before = talk.session.transcript().messages();
  try {
    talk.session.transcript().set_messages(read_conversation(file));
  } catch (const Error& e) {
    throw Error(e.kind(), std::string_view(e.what()).starts_with(file)
                              ? e.what()
                              : fmt::format("{}: {}", file, e.what()));
  }
  if (const Room room = talk.session.room_for(""); !room.fits()) {
    talk.session.transcript().set_messages(before);
    throw capacity_error("{}: that conversation has {} tokens and the context holds {}", file,
                         room.wanted, room.context);
  }
  talk.saved_as = file;
  talk.session.last_turn_changed();
  tell(fmt::format("loaded {}: ", file));
  tell_transcript(talk.session);
  return {};
}

CommandResult tokens(Talk& talk, const std::string& text) {
  const Tokenizer& tokenizer = talk.session.transcript().tokenizer();
  if (!text.empty()) {
    EncodeOptions options;
    options.add_bos = false;
    tell(prompt_xray(tokenizer, tokenizer.encode(text, options),
                     {0, use_color(talk.session.options().log.color)}));
    return {};
  }
  const TextReply& reply = talk.session.standing_reply();
  const auto cached = static_cast<std::size_t>(reply.reused_tokens);
  tell(prompt_xray(tokenizer, talk.session.last_prompt(),
                   {cached, use_color(talk.session.options().log.color)}));
  tell(fmt::format("reply: {}\n", counted(reply.ids.size(), "token")));
  return {};
}

CommandResult why(Talk& talk, const std::string& argument) {
  const std::optional<std::size_t> back = whole_number(argument.empty() ? "1" : argument);
  if (!back) {
    throw usage_error("/why wants a number: 1 is the last token of the reply, 2 the one before");
  }
  const Session::Choice choice = talk.session.choice(*back);
  const Tokenizer& tokenizer = talk.session.transcript().tokenizer();
  const auto piece = [&](TokenId id) { return escape_controls(piece_of(tokenizer, id)); };
  std::string text =
      fmt::format("'{}' was said; before sampling there stood to choice\n", piece(choice.chosen));
  for (const TokenLogprob& top : choice.best) {
    constexpr double kPercent = 100;
    text += fmt::format("  {} {:>8} {:6.2f} %  '{}'\n", top.token == choice.chosen ? '*' : ' ',
                        top.token, std::exp(static_cast<double>(top.logprob)) * kPercent,
                        piece(top.token));
  }
  tell(text);
  return {};
}

struct ChatCommand {
  const char* name;
  const char* argument;  // empty: it takes none
  const char* help;
  CommandResult (*run)(Talk&, const std::string&);
};

constexpr ChatCommand kCommands[] = {
    {"/help", "", "this list", help},
    {"/system", "[TEXT|off]", "show the system prompt, or change it", system},
    {"/set", "[NAME VALUE]", "show the settings, or change one: temp, top-p, seed, n-predict, ...",
     set},
    {"/status", "", "model, device, context, settings", status},
    {"/stats", "", "times and tokens of the last reply and of all", stats},
    {"/regen", "", "another reply to the last turn", regenerate},
    {"/undo", "[N]", "take the last turn back, or the last N", undo},
    {"/edit", "[TEXT]", "say TEXT in the place of the last turn; without TEXT in $EDITOR", edit},
    {"/clear", "", "forget the conversation; the system prompt stays", clear},
    {"/save", "[FILE]", "write the conversation as JSON", save},
    {"/load", "FILE", "go on with a saved conversation", load},
    {"/tokens", "[TEXT]", "tokens of TEXT, or of the last prompt", tokens},
    {"/why", "[N]", "what stood to choice for the last token (the Nth from the end)", why},
    {"/exit", "", "leave (so does Ctrl-D)", leave},
};

constexpr const char* kBlanks = " \t";

std::string_view first_word(std::string_view line) {
  return line.substr(0, line.find_first_of(kBlanks));
}

const ChatCommand* find(std::string_view line) {
  const auto found = std::ranges::find(kCommands, first_word(line), &ChatCommand::name);
  return found == std::end(kCommands) ? nullptr : found;
}

CommandResult help(Talk&, const std::string&) {
  std::string text;
  for (const ChatCommand& c : kCommands) {
    text += fmt::format("{:<20}  {}\n", fmt::format("{} {}", c.name, c.argument), c.help);
  }
  tell(text +
       "\nA line that starts with a blank is never a command. \"\"\" begins a block of lines and "
       "ends "
       "it.\nTab completes commands, settings and files; up and down go through what was typed.\n"
       "Ctrl-C stops a reply, which is kept; at an empty prompt the second one leaves.\n");
  return {};
}

}  // namespace

bool looks_like_chat_command(std::string_view line) {
  constexpr std::string_view kOfNames =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
  const std::string_view word = first_word(line);
  return word.size() > 1 && word[0] == '/' && word.find_first_not_of(kOfNames, 1) == word.npos;
}

CommandResult run_chat_command(Talk& talk, const std::string& line) {
  const ChatCommand* command = find(line);
  if (command == nullptr) {
    const std::string word(first_word(line));
    const auto near = nearest_name(word, chat_completion_words().commands);
    throw usage_error("no command {}{}: /help lists them; put a blank in front to say it",
                      escape_controls(word), near ? fmt::format(", did you mean {}?", *near) : "");
  }
  const std::size_t blank = line.find_first_of(kBlanks);
  std::string argument = blank == line.npos ? "" : line.substr(blank + 1);
  const std::size_t first = argument.find_first_not_of(kBlanks);
  const std::size_t last = argument.find_last_not_of(kBlanks);
  argument = first == argument.npos ? "" : argument.substr(first, last - first + 1);
  if (*command->argument == '\0' && !argument.empty()) {
    throw usage_error("{} stands alone, without '{}'", command->name, escape_controls(argument));
  }
  return command->run(talk, argument);
}

CompletionWords chat_completion_words() {
  std::vector<std::string> commands;
  for (const ChatCommand& command : kCommands) commands.emplace_back(command.name);
  return {std::move(commands), setting_names(), "/set", {"/save", "/load"}};
}

}  // namespace fut::app
