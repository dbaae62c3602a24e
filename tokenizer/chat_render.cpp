// What each chat template makes of a conversation: a row of control tokens and texts, which is then
// spelt out or encoded. Follows the published Jinja texts where they go; where those would drop a
// message in silence or put a role of the caller's making between control tokens, it refuses.
#include <array>
#include <ctime>
#include <utility>

#include "kernels/error.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/data_file.h"
#include "tokenizer/utf8.h"

namespace fut {
namespace {

constexpr std::string_view kStartHeader = "<|start_header_id|>";
constexpr std::string_view kEndHeader = "<|end_header_id|>";
constexpr std::string_view kEndOfTurn = "<|eot_id|>";
constexpr std::string_view kImStart = "<|im_start|>";
constexpr std::string_view kImEnd = "<|im_end|>";

struct Segment {
  bool control;
  std::string text;  // of a control token: its spelling
};

// Grows a conversation; neighbouring texts become one, since they are tokenized as one.
class Transcript {
 public:
  void control(std::string_view token) { segments_.push_back({true, std::string(token)}); }

  void text(std::string_view text) {
    if (text.empty()) return;
    if (segments_.empty() || segments_.back().control) segments_.push_back({false, ""});
    segments_.back().text.append(text);
  }

  [[nodiscard]] const std::vector<Segment>& segments() const { return segments_; }

 private:
  std::vector<Segment> segments_;
};

struct Request {
  ChatTemplate which;
  std::span<const ChatMessage> messages;
  const ChatOptions& options;
  const Tokenizer& tokenizer;
};

// White space as Python's str.strip has it, which is what Jinja's trim is.
bool is_strippable(char32_t c) {
  return utf8::is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}

std::string_view strip(std::string_view text) {
  std::size_t begin = 0;
  std::size_t end = 0;  // behind the last character that stays
  for (std::size_t pos = 0; pos < text.size();) {
    const std::size_t length = utf8::char_length(text, pos);
    const bool space = length > 0 && is_strippable(utf8::code_point(text, pos, length));
    const std::size_t next = pos + (length == 0 ? 1 : length);
    if (!space) {
      end = next;
    } else if (end == 0) {
      begin = next;
    }
    pos = next;
  }
  return end == 0 ? std::string_view() : text.substr(begin, end - begin);
}

// A string in JSON, characters beyond ASCII as they are; the form that a template's tojson gives.
std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const std::size_t escape = std::string_view("\"\\\b\f\n\r\t").find(c);
    if (escape != std::string_view::npos) {
      out += '\\';
      out += "\"\\bfnrt"[escape];
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string today() {
  constexpr std::array<const char*, 12> kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                   "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return fmt::format("{:02} {} {}", local.tm_mday, kMonths[static_cast<std::size_t>(local.tm_mon)],
                     local.tm_year + 1900);
}

std::string date_line(const Request& request) {
  if (request.options.date) return *request.options.date;
  return request.which == ChatTemplate::Llama32 ? today() : "26 Jul 2024";
}

bool has_tool_role(ChatTemplate which) {
  return which == ChatTemplate::Llama31 || which == ChatTemplate::Llama32 ||
         which == ChatTemplate::Llama33;
}

bool is_tool(const ChatMessage& message) {
  return message.role == "tool" || message.role == "ipython";
}

// A role is text that the caller chose and that stands between control tokens: known ones only.
void check_roles(const Request& request) {
  if (request.messages.empty()) {
    throw data_error("the conversation has no messages; chat template {} needs at least one",
                     chat_template_name(request.which));
  }
  const bool tools = has_tool_role(request.which);
  for (std::size_t i = 0; i < request.messages.size(); ++i) {
    const ChatMessage& message = request.messages[i];
    const std::string& role = message.role;
    if (role == "system" || role == "user" || role == "assistant") continue;
    if (tools && is_tool(message)) continue;
    throw data_error(
        "message {}: role '{}' is not known to chat template {}, which has {}", i + 1,
        excerpt(role), chat_template_name(request.which),
        tools ? "system, user, assistant, tool and ipython" : "system, user and assistant");
  }
}

std::string spelling(const Request& request, std::optional<TokenId> id, std::string_view what) {
  if (id) return request.tokenizer.piece(*id);
  throw data_error("{}: chat template {} needs {}, and the tokenizer has none",
                   request.tokenizer.source().string(), chat_template_name(request.which), what);
}

std::string bos(const Request& request) {
  return spelling(request, request.tokenizer.bos_id(), "a token that begins a text (bos_token)");
}

void add_header(Transcript& out, std::string_view role) {
  out.control(kStartHeader);
  out.text(role);
  out.control(kEndHeader);
  out.text("\n\n");
}

void add_turn(Transcript& out, std::string_view role, std::string_view content) {
  add_header(out, role);
  out.text(content);
  out.control(kEndOfTurn);
}

// Llama 3 and the demonstration model: BOS, then every message under its role.
void add_llama3(const Request& request, Transcript& out) {
  out.control(bos(request));
  for (const ChatMessage& message : request.messages) {
    add_turn(out, message.role, strip(message.content));
  }
  if (request.options.add_generation_prompt) add_header(out, "assistant");
}

// Llama 3.1 to 3.3: always a system turn, which opens with two dates; a first message of the
// system is its rest.
void add_llama31(const Request& request, Transcript& out) {
  std::span<const ChatMessage> messages = request.messages;
  std::string system =
      "Cutting Knowledge Date: December 2023\nToday Date: " + date_line(request) + "\n\n";
  if (messages.front().role == "system") {
    system += strip(messages.front().content);
    messages = messages.subspan(1);
  }
  out.control(bos(request));
  add_turn(out, "system", system);
  for (const ChatMessage& message : messages) {
    if (is_tool(message)) {
      add_turn(out, "ipython", json_string(message.content));
    } else {
      add_turn(out, message.role, strip(message.content));
    }
  }
  if (request.options.add_generation_prompt) add_header(out, "assistant");
}

// Llama 2: exchanges of user and assistant, each between BOS and EOS; the system's message goes
// into the first user's. The opening of a reply is the end of a request: nothing to add for it.
void add_llama2(const Request& request, Transcript& out) {
  std::span<const ChatMessage> messages = request.messages;
  std::string system;
  if (messages.front().role == "system") {
    system = "<<SYS>>\n" + messages.front().content + "\n<</SYS>>\n\n";
    messages = messages.subspan(1);
    if (messages.empty()) {
      throw data_error(
          "message 1: role 'system' stands alone; chat template llama-2 puts it into the user's "
          "message behind it");
    }
  }
  const std::size_t first = request.messages.size() - messages.size();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    const std::string_view wanted = i % 2 == 0 ? "user" : "assistant";
    if (message.role != wanted) {
      throw data_error(
          "message {}: role '{}' where chat template llama-2 needs '{}': user and assistant take "
          "turns",
          first + i + 1, message.role, wanted);
    }
    if (wanted == "user") {
      out.control(bos(request));
      out.text("[INST] ");
      out.text(strip(i == 0 ? system + message.content : message.content));
      out.text(" [/INST]");
    } else {
      out.text(" ");
      out.text(strip(message.content));
      out.text(" ");
      out.control(spelling(request, request.tokenizer.eos_id(), "a token that ends a text"));
    }
  }
}

// ChatML: contents as they are. The template itself has no BOS; models that want one get it.
void add_chatml(const Request& request, Transcript& out) {
  if (request.tokenizer.adds_bos()) out.control(bos(request));
  for (const ChatMessage& message : request.messages) {
    out.control(kImStart);
    out.text(message.role);
    out.text("\n");
    out.text(message.content);
    out.control(kImEnd);
    out.text("\n");
  }
  if (!request.options.add_generation_prompt) return;
  out.control(kImStart);
  out.text("assistant\n");
}

std::vector<Segment> segments_of(const Request& request) {
  check_roles(request);
  Transcript out;
  switch (request.which) {
    case ChatTemplate::Llama2:
      add_llama2(request, out);
      break;
    case ChatTemplate::Llama3:
    case ChatTemplate::Demo:
      add_llama3(request, out);
      break;
    case ChatTemplate::Llama31:
    case ChatTemplate::Llama32:
    case ChatTemplate::Llama33:
      add_llama31(request, out);
      break;
    case ChatTemplate::ChatMl:
      add_chatml(request, out);
      break;
  }
  return out.segments();
}

}  // namespace

std::string render_chat(ChatTemplate t, std::span<const ChatMessage> messages,
                        const ChatOptions& options, const Tokenizer& tokenizer) {
  std::string text;
  for (const Segment& segment : segments_of({t, messages, options, tokenizer})) {
    text += segment.text;
  }
  return text;
}

std::vector<TokenId> encode_chat(ChatTemplate t, std::span<const ChatMessage> messages,
                                 const ChatOptions& options, const Tokenizer& tokenizer) {
  std::vector<TokenId> ids;
  for (const Segment& segment : segments_of({t, messages, options, tokenizer})) {
    if (!segment.control) {
      const auto encoded = tokenizer.encode(
          segment.text, {.add_bos = false, .parse_special = options.parse_special});
      ids.insert(ids.end(), encoded.begin(), encoded.end());
      continue;
    }
    const auto id = tokenizer.find(segment.text);
    if (!id) {
      throw data_error(
          "{}: has no token '{}', which chat template {} needs; name another with --chat-template "
          "or complete plain text with --raw",
          tokenizer.source().string(), segment.text, chat_template_name(t));
    }
    ids.push_back(*id);
  }
  return ids;
}

std::optional<TokenId> end_of_turn_id(ChatTemplate t, const Tokenizer& tokenizer) {
  switch (t) {
    case ChatTemplate::Llama2:
      return tokenizer.eos_id();
    case ChatTemplate::ChatMl:
      return tokenizer.find(kImEnd);
    default:
      return tokenizer.find(kEndOfTurn);
  }
}

}  // namespace fut
