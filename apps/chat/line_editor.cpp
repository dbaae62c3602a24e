// See the header.
#include "apps/chat/line_editor.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <histedit.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>
#include <utility>

#include "apps/chat/history_file.h"
#include "apps/escape.h"
#include "apps/logging.h"
#include "apps/signals.h"
#include "apps/text_input.h"
#include "apps/wide_text.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

// Bytes of the character that `first` opens; 1 for one that opens none.
constexpr std::size_t utf8_length(unsigned char first) {
  return first >= 0xF0 && first <= 0xF4  ? 4
         : first >= 0xE0 && first < 0xF0 ? 3
         : first >= 0xC2 && first < 0xE0 ? 2
                                         : 1;
}
constexpr wchar_t kPromptEscape = L'\1';  // stands around what takes no cells
constexpr const char* kPasteOn = "\033[?2004h";
constexpr const char* kPasteOff = "\033[?2004l";
constexpr std::string_view kPasteEnd = "\033[201~";
constexpr int kPasteSilenceMs = 500;  // longer than a paste that is under way ever pauses

// The characters that stand for signals at this terminal, and which these are. While a line is edited the
// terminal hands them on as they are: it would act on pasted ones as well, before anybody has read that a
// paste begins.
class SignalKeys {
 public:
  void learn() {
    if (::tcgetattr(STDIN_FILENO, &modes_) != 0) modes_ = {};
  }
  // 0: none.
  [[nodiscard]] int signal_of(char byte) const {
    if ((modes_.c_lflag & ISIG) == 0) return 0;
    for (const auto& [place, signal] :
         {std::pair{VINTR, SIGINT}, std::pair{VQUIT, SIGQUIT}, std::pair{VSUSP, SIGTSTP}}) {
      const cc_t key = modes_.c_cc[place];
      if (key != _POSIX_VDISABLE && key == static_cast<cc_t>(byte)) return signal;
    }
    return 0;
  }

 private:
  termios modes_ = {};  // as they are outside
};

}  // namespace

struct LineEditor::State {
  EditLine* edit = nullptr;
  HistoryW* history = nullptr;
  Completer completer;
  std::wstring prompt;
  bool had_text = false;
  bool interrupted = false;
  unsigned short columns = 0, rows = 0;
  SignalKeys signal_keys;

  static State& of(EditLine* el) {
    State* state = nullptr;
    ::el_wget(el, EL_CLIENTDATA, &state);
    return *state;
  }

  [[nodiscard]] std::wstring line_before_cursor() const {
    const LineInfoW* line = ::el_wline(edit);
    return {line->buffer, line->cursor};
  }
  [[nodiscard]] bool has_text() const {
    const LineInfoW* line = ::el_wline(edit);
    return line->lastchar != line->buffer;
  }

  // Looked at between keys, so no handler of SIGWINCH is needed.
  void follow_size() {
    winsize size = {};
    if (::ioctl(STDIN_FILENO, TIOCGWINSZ, &size) != 0) return;
    const bool changed = columns != 0 && (size.ws_col != columns || size.ws_row != rows);
    columns = size.ws_col;
    rows = size.ws_row;
    if (!changed) return;
    ::el_resize(edit);
    ::el_wset(edit, EL_REFRESH);
  }

  // The next byte; 0: end of input, -1: a signal is pending.
  int read_byte(char& byte) {
    for (;;) {
      if (pending_signal() != 0) {
        interrupted = true;
        had_text = has_text();
        return -1;
      }
      follow_size();
      if (!wait_for_input(STDIN_FILENO)) continue;
      const ssize_t count = ::read(STDIN_FILENO, &byte, 1);
      if (count >= 0) return static_cast<int>(count);
      if (errno == EINTR || errno == EAGAIN) continue;
      return 0;  // the terminal is gone; nothing may be thrown through libedit
    }
  }

  // As the terminal would have sent it: to all that stand in the foreground with us.
  void send(int signal) {
    const bool stops = signal == SIGTSTP;
    if (stops) leave_terminal();
    ::kill(0, signal);
    if (!stops) return;
    enter_terminal();
    ::el_wset(edit, EL_REFRESH);  // others have written below the line
  }
  void enter_terminal() {
    signal_keys.learn();
    ::el_wset(edit, EL_PREP_TERM, 1);
    write_to_standard_error(kPasteOn);
  }
  void leave_terminal() {
    write_to_standard_error(kPasteOff);
    ::el_wset(edit, EL_PREP_TERM, 0);
  }

  // As read_byte, where a byte may stand for a signal.
  int read_key(char& byte) {
    for (;;) {
      const int got = read_byte(byte);
      const int signal = got == 1 ? signal_keys.signal_of(byte) : 0;
      if (signal == 0) return got;
      send(signal);
    }
  }

  int read_character(wchar_t* c) {
    std::string bytes(1, '\0');
    if (const int got = read_key(bytes[0]); got != 1) return got;
    // What Ctrl-D becomes when it is typed while a reply runs, in the terminal's other mode.
    if (bytes[0] == '\0' && !has_text()) return 0;
    const std::size_t length = utf8_length(static_cast<unsigned char>(bytes[0]));
    while (bytes.size() < length) {
      char next = 0;
      if (const int got = read_byte(next); got != 1) return got;
      bytes += next;
    }
    *c = to_wide(bytes).front();
    return 1;
  }

  static bool is_silent() {
    pollfd input = {STDIN_FILENO, POLLIN, 0};
    return ::poll(&input, 1, kPasteSilenceMs) == 0;
  }

  unsigned char paste() {
    std::string bytes;
    while (!bytes.ends_with(kPasteEnd)) {
      char byte = 0;
      if (read_byte(byte) != 1) return CC_ERROR;
      // From a terminal that has lost the end of the paste: a key, as nothing comes behind it.
      if (signal_keys.signal_of(byte) == SIGINT && is_silent()) {
        send(SIGINT);
        return CC_ERROR;
      }
      bytes += byte;
    }
    bytes.resize(bytes.size() - kPasteEnd.size());
    const std::wstring text = pasted_text(bytes);
    if (!text.empty()) ::el_winsertstr(edit, text.c_str());
    return CC_REFRESH;
  }

  unsigned char complete_word() {
    const Completion found = completer(to_utf8(line_before_cursor()));
    if (!found.insert.empty()) {
      ::el_winsertstr(edit, to_wide(found.insert).c_str());
      return CC_REFRESH;
    }
    if (found.choices.empty()) return CC_REFRESH_BEEP;
    std::string list = "\n";
    for (const std::string& choice : found.choices) list += escape_controls(choice) + "  ";
    write_to_standard_error(list + "\n");
    return CC_REDISPLAY;
  }
};

bool LineEditor::works_here() {
  const char* terminal = std::getenv("TERM");
  return standard_input_is_terminal() && standard_error_is_terminal() && terminal != nullptr &&
         *terminal != '\0' && std::strcmp(terminal, "dumb") != 0;
}

LineEditor::LineEditor(Completer completer) : state_(std::make_unique<State>()) {
  use_utf8_locale();
  State& s = *state_;
  s.completer = std::move(completer);
  s.edit = ::el_init("fut", stdin, stderr, stderr);
  s.history = ::history_winit();
  if (s.edit == nullptr || s.history == nullptr) {
    throw runtime_failure("the line editor cannot be started on this terminal");
  }
  EditLine* el = s.edit;
  HistEventW event;
  ::history_w(s.history, &event, H_SETSIZE, static_cast<int>(kHistoryEntries));
  ::history_w(s.history, &event, H_SETUNIQUE, 1);
  ::el_wset(el, EL_CLIENTDATA, &s);
  ::el_wset(el, EL_SIGNAL, 0);
  ::el_wset(el, EL_SETTY, L"-d", L"-isig", L"-ixon", nullptr);
  ::el_wset(el, EL_EDITOR, L"emacs");
  ::el_wset(el, EL_HIST, ::history_w, s.history);
  ::el_wset(
      el, EL_PROMPT_ESC, +[](EditLine* e) { return State::of(e).prompt.data(); },
      static_cast<int>(kPromptEscape));
  ::el_wset(
      el, EL_GETCFN, +[](EditLine* e, wchar_t* c) { return State::of(e).read_character(c); });
  ::el_source(el, nullptr);  // the user's ~/.editrc: bindings, vi mode
  ::el_wset(
      el, EL_ADDFN, L"fut-paste", L"Insert pasted text",
      +[](EditLine* e, wint_t) -> unsigned char { return State::of(e).paste(); });
  ::el_wset(
      el, EL_ADDFN, L"fut-complete", L"Complete a command",
      +[](EditLine* e, wint_t) -> unsigned char { return State::of(e).complete_word(); });
  constexpr const wchar_t* kBindings[][2] = {
      {L"\\e[200~", L"fut-paste"},    {L"\\t", L"fut-complete"},
      {L"^R", L"em-inc-search-prev"}, {L"\\e[1;5C", L"em-next-word"},
      {L"\\e[1;5D", L"ed-prev-word"}, {L"\\e[3~", L"ed-delete-next-char"},
      {L"\\e[H", L"ed-move-to-beg"},  {L"\\e[F", L"ed-move-to-end"},
      {L"\\e[1~", L"ed-move-to-beg"}, {L"\\e[4~", L"ed-move-to-end"},
  };
  for (const auto& [keys, function] : kBindings) {
    ::el_wset(el, EL_BIND, keys, function, nullptr);
  }
}

LineEditor::~LineEditor() {
  ::el_end(state_->edit);
  ::history_wend(state_->history);
}

void LineEditor::remember(const std::string& entry) {
  HistEventW event;
  ::history_w(state_->history, &event, H_ENTER, to_wide(entry).c_str());
}

LineReader::Outcome LineEditor::next(const Prompt& prompt, std::string& entry, bool& had_text) {
  State& s = *state_;
  const std::wstring escape(1, kPromptEscape);
  s.prompt = to_wide(prompt.text);
  if (!prompt.color.empty() && !s.prompt.empty()) {
    // libedit hangs what takes no cells on the character behind it, so the colour ends before the last.
    const wchar_t last = s.prompt.back();
    s.prompt.pop_back();
    s.prompt = escape + to_wide(prompt.color) + escape + s.prompt + escape + L"\033[0m" + escape;
    s.prompt += last;
  }
  s.interrupted = false;
  s.had_text = false;
  // Before the prompt is seen: el_wgets would leave the terminal's own echo on until it first waits for a key.
  s.enter_terminal();
  int count = 0;
  const wchar_t* line = ::el_wgets(s.edit, &count);
  write_to_standard_error(kPasteOff);
  had_text = s.had_text;
  if (s.interrupted) {
    ::el_reset(s.edit);
    return LineReader::Outcome::Interrupted;
  }
  if (line == nullptr || count <= 0) return LineReader::Outcome::End;
  entry = to_utf8({line, static_cast<std::size_t>(count)});
  if (entry.ends_with('\n')) entry.pop_back();
  return LineReader::Outcome::Line;
}

}  // namespace fut::app
