// fut chat: a conversation, a turn a line.
#include <csignal>

#include "apps/chat/commands.h"
#include "apps/chat/history_file.h"
#include "apps/commands.h"
#include "apps/generation.h"
#include "apps/signals.h"
#include "apps/words.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

bool is_blank(const std::string& line) {
  return line.find_first_not_of(" \t\r\n") == std::string::npos;
}

std::filesystem::path history_file(const HistoryOptions& options) {
  if (!options.store) return {};
  return options.file.empty() ? default_history_file() : std::filesystem::path(options.file);
}

// The loop over turns.
class Loop {
 public:
  Loop(const GenerateOptions& options, Session& session)
      : single_turn_(options.reply.single_turn),
        input_(options.log.color, history_file(options.history),
               [words = chat_completion_words()](std::string_view before) {
                 return complete(before, words);
               }),
        talk_{session, input_, {}} {}

  [[nodiscard]] bool is_terminal() const { return input_.is_terminal(); }

  // Returns the exit code.
  int run() {
    std::string line;
    for (;;) {
      switch (input_.next_turn(gauge(), line)) {
        case LineReader::Outcome::End:
          if (is_terminal()) write_to_standard_error("\n");
          return failed_command_;
        case LineReader::Outcome::Interrupted:
          if (const int code = interrupted_at_prompt(); code != 0) return code;
          continue;
        case LineReader::Outcome::Line:
          break;
      }
      warned_ = false;
      if (is_blank(line)) continue;
      bool leave = false;
      const bool command = is_command(line);
      const int code = command ? run_command(line, leave) : say(line);
      if (code != 0 || leave) return code != 0 ? code : failed_command_;
      if (single_turn_ && !command) return failed_command_;
    }
  }

  // Returns an exit code, 0: goes on.
  int say(const std::string& text) {
    Room room = talk_.session.room_for(text);
    if (!room.fits()) {
      if (!make_room(room)) return 0;
      room = talk_.session.room_for(text);
    }
    return code_after(talk_.session.say(text, room.ids));
  }

 private:
  [[nodiscard]] int code_after(int signal) const {
    const bool goes_on = signal == 0 || (signal == SIGINT && is_terminal() && !single_turn_);
    return goes_on ? 0 : exit_code_of_signal(signal);
  }

  // "812/8192", once something was said on a terminal.
  [[nodiscard]] std::string gauge() const {
    if (!is_terminal() || talk_.session.used_tokens() == 0) return {};
    return fmt::format("{}/{} ", talk_.session.used_tokens(), talk_.session.context_tokens());
  }

  // A block or a paste of several lines is always said. On a terminal a line that begins with a slash is a
  // command or a slip; in a script "/etc/hosts" is more likely something to say.
  [[nodiscard]] bool is_command(const std::string& line) const {
    if (input_.was_block() || line.find('\n') != line.npos || line[0] != '/') return false;
    return is_terminal() || looks_like_chat_command(line);
  }

  int run_command(const std::string& line, bool& leave) {
    try {
      const CommandResult result = run_chat_command(talk_, line);
      leave = result.leave;
      return code_after(result.signal);
    } catch (const Error& e) {
      if (e.kind() == ErrorKind::Device) throw;
      if (is_terminal()) {
        log_error("{}", e.what());
        return 0;
      }
      log_error("line {}: {}", input_.line_number(), e.what());
      // A script has to be able to tell.
      if (failed_command_ == 0) failed_command_ = static_cast<int>(e.kind());
      return 0;
    }
  }

  // The turn does not fit: on a terminal the user says what goes. Whether it fits now.
  bool make_room(const Room& room) {
    Transcript& transcript = talk_.session.transcript();
    if (!is_terminal() || single_turn_ || !room.fits_alone() || transcript.turns().empty()) {
      talk_.session.refuse_turn(room);
      return false;
    }
    std::string question = fmt::format(
        "With this turn the conversation has {} tokens, and the context holds {}, the reply "
        "included.\n",
        room.wanted, room.context);
    if (room.turns_to_drop > 0) {
      question += fmt::format("  d  drop the oldest {}: {} tokens are left\n",
                              counted(room.turns_to_drop, "turn"), room.wanted_after);
    }
    question += fmt::format(
        "  n  new chat with this turn: {} tokens\n  s  stop here: the turn is forgotten, the "
        "conversation stays\n",
        room.alone);
    write_to_standard_error(question);
    for (std::string answer;;) {
      const std::string keys = room.turns_to_drop > 0 ? "d, n or s? " : "n or s? ";
      const LineReader::Outcome outcome = input_.ask(keys, answer);
      if (outcome == LineReader::Outcome::Interrupted) (void)take_signal();
      if (outcome != LineReader::Outcome::Line || answer == "s") return false;
      if (answer == "d" && room.turns_to_drop > 0) {
        transcript.drop_oldest(room.turns_to_drop);
        talk_.session.transcript_changed();
        return true;
      }
      if (answer == "n") {
        transcript.clear();
        talk_.session.last_turn_changed();
        return true;
      }
    }
  }

  // The first Ctrl-C at an empty prompt tells how to leave, the next one leaves.
  int interrupted_at_prompt() {
    const int signal = take_signal();
    if (signal != SIGINT || !is_terminal() || (warned_ && !input_.had_text())) {
      if (is_terminal()) write_to_standard_error("\n");
      return exit_code_of_signal(signal);
    }
    warned_ = !input_.had_text();
    write_to_standard_error(warned_ ? "\n(Ctrl-C again or Ctrl-D to leave)\n" : "\n");
    return 0;
  }

  bool single_turn_;
  bool warned_ = false;
  int failed_command_ = 0;
  ChatInput input_;
  Talk talk_;
};

}  // namespace

int chat(const GenerateOptions& options, Reporter& reporter) {
  check_generate_options(options);
  OpenedModel model = open_model(options.model);
  const ChatTemplate chat_template =
      resolve_chat_template(options.form.chat_template, model.folder.path);
  Session session(options, reporter, model, chat_template);
  std::optional<std::string> first_turn;
  if (options.prompt.prompt.given()) first_turn = session.read_first_turn();
  Engine engine = load_engine(model, options.model);
  session.start(engine);
  add_arithmetic(reporter.document(), model);  // once more: see fut run
  Loop loop(options, session);
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
  if (code == 0 && !loop.is_terminal() && session.refused_a_turn()) {
    code = static_cast<int>(ErrorKind::Capacity);
  }
  // Where nothing was said, an old --output-file stays as it is.
  if (reporter.format() == OutputFormat::Json || session.has_output()) reporter.finish(false);
  return code;
}

}  // namespace fut::app
