// fut chat: a conversation, a line a turn. Every turn sends the whole history again, of which the engine
// computes what it has not computed yet.
#include <csignal>

#include "apps/commands.h"
#include "apps/generation.h"
#include "apps/line_reader.h"
#include "apps/logging.h"
#include "apps/model_session.h"
#include "apps/prompt.h"
#include "apps/reply_report.h"
#include "apps/signals.h"
#include "apps/text_input.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

constexpr const char* kHelp =
    "/help   this list\n"
    "/clear  forget the conversation; the system prompt stays\n"
    "/exit   leave (so does Ctrl-D)\n"
    "Ctrl-C stops a reply. A line that starts with a blank is never a command.\n";

// One conversation: what was said, and the model that answers.
class Conversation {
 public:
  Conversation(const GenerateOptions& options, Reporter& reporter, OpenedModel& model,
               ChatTemplate chat_template)
      : options_(options),
        reporter_(reporter),
        model_(model),
        chat_template_(chat_template),
        limits_{model.context_tokens, model.folder.config.max_position_embeddings, false},
        sampling_(resolve_sampling(options.sampling, model.folder.generation)) {
    if (options.prompt.system.given()) {
      messages_.push_back(
          {"system", read_system_prompt(options.prompt, model.folder.tokenizer, limits_)});
    }
    num_fixed_messages_ = messages_.size();
    // A system prompt that leaves no room for any turn is refused before the weights are read.
    require_room(encode_with("").size(), limits_);
    Json& document = reporter_.document();
    document["model"] = model.folder.path.string();
    document["device"] = model.backend->description();
    document["context_tokens"] = model.context_tokens;
    add_arithmetic(document, model);
    add_sampling(document, sampling_);
    document["replies"] = Json::array();
  }

  // The text of the first turn, which -p or -f gives.
  [[nodiscard]] std::string read_first_turn() const {
    const Tokenizer& tokenizer = model_.folder.tokenizer;
    const std::string reason = fmt::format(" into a context of {} tokens", limits_.tokens);
    InputText input = read_text(options_.prompt.prompt, options_.prompt.interpret_escapes,
                                most_prompt_bytes(tokenizer, limits_.tokens), reason);
    refuse_hopeless_text(tokenizer, input.text, limits_);
    if (input.from_stream) drop_final_newline(input.text);
    return std::move(input.text);
  }

  // One turn: says what does not fit and forgets it, else streams the reply and keeps both. Returns
  // the signal that stopped the reply, or 0.
  int say(Engine& engine, const std::string& text) {
    ++turn_;
    const std::vector<TokenId> ids = encode_with(text);
    if (ids.size() >= static_cast<std::size_t>(limits_.tokens)) {
      refuse_turn(ids.size());
      return 0;
    }
    if (options_.form.verbose_prompt) print_prompt(model_.folder.tokenizer, ids);
    TextRequest request = make_text_request(options_, model_, chat_template_, sampling_, ids);
    request.request.of_conversation = true;
    const TextReply reply = generate_text(engine, model_.folder.tokenizer, request,
                                          [&](std::string_view piece) { reporter_.text(piece); });
    reporter_.text("\n");
    Json entry = {{"turn", turn_}};
    add_reply(entry, reply, ids.size(), model_.folder.tokenizer);
    reporter_.line(entry);
    reporter_.document()["replies"].push_back(std::move(entry));
    if (reply.finish == FinishReason::Error) throw runtime_failure("{}", reply.error);
    tell_about_reply(reply, ids.size(), limits_.tokens, options_.log.verbosity,
                     request.request.sampling.sample);
    const bool stopped = reply.finish == FinishReason::Interrupt;
    if (stopped && reply.text.empty()) {
      log_warning("stopped before a word was said: the turn is forgotten");
    } else {
      messages_.push_back({"user", text});
      messages_.push_back({"assistant", reply.text});
    }
    return stopped ? take_signal() : 0;
  }

  void clear() { messages_.resize(num_fixed_messages_); }

  [[nodiscard]] bool refused_a_turn() const { return refused_a_turn_; }

 private:
  [[nodiscard]] std::vector<TokenId> encode_with(const std::string& text) const {
    std::vector<ChatMessage> messages = messages_;
    messages.push_back({"user", text});
    return encode_chat(chat_template_, messages, chat_options(options_.form),
                       model_.folder.tokenizer);
  }

  void refuse_turn(std::size_t prompt_tokens) {
    const std::string message = fmt::format(
        "turn {} does not fit: with it the conversation has {} tokens and the context holds {}, "
        "reply included; the earlier turns stay: say less, start again with /clear, or leave and "
        "raise -c",
        turn_, prompt_tokens, limits_.tokens);
    if (options_.reply.single_turn) throw capacity_error("{}", message);
    refused_a_turn_ = true;
    log_error("{}", message);
    const int code = static_cast<int>(ErrorKind::Capacity);
    Json entry = {{"turn", turn_},
                  {"error", {{"code", code}, {"kind", "capacity"}, {"message", message}}}};
    reporter_.line(entry);
    reporter_.document()["replies"].push_back(std::move(entry));
  }

  const GenerateOptions& options_;
  Reporter& reporter_;
  OpenedModel& model_;
  ChatTemplate chat_template_;
  ContextLimits limits_;
  SamplingSettings sampling_;
  std::vector<ChatMessage> messages_;
  std::size_t num_fixed_messages_ = 0;
  int turn_ = 0;
  bool refused_a_turn_ = false;
};

bool is_blank(const std::string& line) {
  return line.find_first_not_of(" \t\r") == std::string::npos;
}

// The loop over lines, and what is shown around it on a terminal.
class LineLoop {
 public:
  LineLoop(const GenerateOptions& options, Conversation& conversation, Engine& engine)
      : single_turn_(options.reply.single_turn),
        color_(use_color(options.log.color)),
        conversation_(conversation),
        engine_(engine) {}

  [[nodiscard]] bool is_terminal() const { return reader_.is_terminal(); }

  // Returns the exit code.
  int run() {
    std::string line;
    for (;;) {
      show_prompt();
      switch (reader_.next(line)) {
        case LineReader::Outcome::End:
          if (is_terminal()) write_to_standard_error("\n");
          return 0;
        case LineReader::Outcome::Interrupted:
          if (const int code = interrupted_at_prompt(); code != 0) return code;
          continue;
        case LineReader::Outcome::Line:
          break;
      }
      warned_ = false;
      if (line.ends_with('\r')) line.pop_back();
      if (line == "/exit") return 0;
      if (is_blank(line) || run_command(line)) continue;
      if (const int code = say(line); code != 0 || single_turn_) return code;
    }
  }

  // Returns an exit code, 0: goes on.
  int say(const std::string& text) {
    const int signal = conversation_.say(engine_, text);
    const bool goes_on = signal == 0 || (signal == SIGINT && is_terminal() && !single_turn_);
    return goes_on ? 0 : exit_code_of_signal(signal);
  }

 private:
  void show_prompt() const {
    if (is_terminal()) write_to_standard_error(color_ ? "\033[1m> \033[0m" : "> ");
  }

  bool run_command(const std::string& line) {
    if (line[0] != '/') return false;
    if (line == "/help") {
      write_to_standard_error(kHelp);
    } else if (line == "/clear") {
      conversation_.clear();
      if (is_terminal()) write_to_standard_error("the conversation starts again\n");
    } else if (!is_terminal()) {
      tell_if_said(line.substr(0, line.find(' ')));
      return false;  // a script's line is said, whatever it starts with
    } else {
      log_error("no command {}: /help lists them; put a blank in front to say it",
                line.substr(0, line.find(' ')));
    }
    return true;
  }

  // "/claer" is more likely a slip than "/etc/hosts".
  static void tell_if_said(const std::string& word) {
    if (word.size() < 2 || word.find_first_not_of("abcdefghijklmnopqrstuvwxyz", 1) != word.npos) {
      return;
    }
    log_warning("no command {}: the line is said to the model; /help lists the commands", word);
  }

  // The first Ctrl-C at a prompt tells how to leave, the next one leaves.
  int interrupted_at_prompt() {
    const int signal = take_signal();
    if (signal != SIGINT || !is_terminal() || warned_) {
      if (is_terminal()) write_to_standard_error("\n");
      return exit_code_of_signal(signal);
    }
    warned_ = true;
    write_to_standard_error("\n(Ctrl-C again or Ctrl-D to leave)\n");
    return 0;
  }

  bool single_turn_;
  bool color_;
  bool warned_ = false;
  LineReader reader_;
  Conversation& conversation_;
  Engine& engine_;
};

}  // namespace

int chat(const GenerateOptions& options, Reporter& reporter) {
  check_generate_options(options);
  OpenedModel model = open_model(options.model);
  const ChatTemplate chat_template =
      resolve_chat_template(options.form.chat_template, model.folder.path);
  Conversation conversation(options, reporter, model, chat_template);
  std::optional<std::string> first_turn;
  if (options.prompt.prompt.given()) first_turn = conversation.read_first_turn();
  Engine engine = load_engine(model, options.model);
  add_arithmetic(reporter.document(), model);  // once more: see fut run
  LineLoop loop(options, conversation, engine);
  if (loop.is_terminal() && !options.reply.single_turn) {
    write_to_standard_error(
        fmt::format("{} ({}, context {} tokens). /help lists commands, Ctrl-D leaves.\n",
                    model.folder.path.filename().string(), chat_template_name(chat_template),
                    model.context_tokens));
  }
  int code = first_turn ? loop.say(*first_turn) : 0;
  const bool done = code != 0 || (first_turn && options.reply.single_turn);
  if (!done) code = loop.run();
  // A script has to be able to tell that a turn went without a reply.
  if (code == 0 && !loop.is_terminal() && conversation.refused_a_turn()) {
    code = static_cast<int>(ErrorKind::Capacity);
  }
  reporter.finish(false);
  return code;
}

}  // namespace fut::app
