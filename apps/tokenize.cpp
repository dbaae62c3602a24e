// fut tokenize: texts and conversations to ids. Reads tokenizer files only.
#include <limits>
#include <string_view>

#include "apps/commands.h"
#include "apps/conversation_file.h"
#include "apps/escape.h"
#include "apps/json_input.h"
#include "apps/logging.h"
#include "apps/model_lookup.h"
#include "apps/prompt.h"
#include "apps/text_input.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

void check_options(const TokenizeOptions& o) {
  if (o.messages_file.empty() && o.chat_flag_typed) {
    throw usage_error(
        "--render, --parse-special, --no-generation-prompt, --chat-template and --date are about "
        "conversations; add --messages FILE");
  }
  if (!o.input_file.empty() && o.pieces && o.output.format == OutputFormat::Text) {
    throw usage_error("with -i, --pieces needs -o jsonl or json: a line holds one piece");
  }
}

std::string ids_line(std::span<const TokenId> ids) {
  return fmt::format("{}\n", fmt::join(ids, " "));
}

// One text in every form: a line of ids or a piece a line; an object with the same.
class TextEncoder {
 public:
  TextEncoder(const TokenizeOptions& options, const Tokenizer& tokenizer)
      : pieces_(options.pieces), tokenizer_(tokenizer) {
    encode_options_.add_bos = options.add_bos;
    encode_options_.parse_special = options.parse_special;
  }

  [[nodiscard]] std::string text(std::string_view input) const {
    if (!pieces_) return ids_line(tokenizer_.encode(input, encode_options_));
    std::string lines;
    for (const std::string& piece : tokenizer_.split(input, encode_options_.parse_special)) {
      lines += escape_controls(piece) + "\n";
    }
    return lines;
  }

  [[nodiscard]] Json object(std::string_view input) const {
    if (pieces_) return {{"pieces", tokenizer_.split(input, encode_options_.parse_special)}};
    return {{"ids", tokenizer_.encode(input, encode_options_)}};
  }

 private:
  bool pieces_;
  const Tokenizer& tokenizer_;
  EncodeOptions encode_options_;
};

// The "text" of one line of a JSON Lines file.
std::string text_of_line(std::string_view line, const std::string& path, std::size_t number) {
  const Json object = parse_json_input(line, fmt::format("{}:{}: the line", path, number));
  const auto found = object.is_object() ? object.find("text") : object.end();
  if (!object.is_object() || found == object.end() || !found->is_string()) {
    throw data_error("{}:{}: the line is not an object with a text as its \"text\"", path, number);
  }
  return found->get<std::string>();
}

void tokenize_lines(const TokenizeOptions& options, const TextEncoder& encoder,
                    Reporter& reporter) {
  const std::string file = read_whole_file(options.input_file);
  Json& document = reporter.document();
  document["items"] = Json::array();
  std::size_t number = 0;
  for (std::size_t at = 0; at < file.size();) {
    const std::size_t end = std::min(file.find('\n', at), file.size());
    const std::string_view line = std::string_view(file).substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string text = text_of_line(line, options.input_file, number);
    if (reporter.is_text()) {
      reporter.text(encoder.text(text));
    } else if (options.output.format == OutputFormat::JsonLines) {
      reporter.line(encoder.object(text));
    } else {
      document["items"].push_back(encoder.object(text));
    }
  }
  reporter.finish(false);
}

void tokenize_conversation(const TokenizeOptions& options, const std::filesystem::path& folder,
                           const Tokenizer& tokenizer, Reporter& reporter) {
  const std::vector<ChatMessage> messages = read_conversation(options.messages_file);
  const ChatTemplate chat_template = resolve_chat_template(options.chat_template, folder);
  ChatOptions form;
  form.date = options.date;
  form.add_generation_prompt = options.add_generation_prompt;
  form.parse_special = options.parse_message_special;
  if (options.render) {
    const std::string text = render_chat(chat_template, messages, form, tokenizer);
    reporter.text(text);
    reporter.document()["text"] = text;
  } else {
    const std::vector<TokenId> ids = encode_chat(chat_template, messages, form, tokenizer);
    reporter.text(ids_line(ids));
    reporter.document()["ids"] = ids;
  }
  reporter.finish();
}

}  // namespace

int tokenize(const TokenizeOptions& options, Reporter& reporter) {
  check_options(options);
  const FoundFolder found = find_model_folder(options.model, Wanted::Tokenizer);
  if (!found.notice.empty()) log_warning("{}", found.notice);
  const Tokenizer tokenizer = Tokenizer::load(found.path);
  const TextEncoder encoder(options, tokenizer);
  if (!options.messages_file.empty()) {
    tokenize_conversation(options, found.path, tokenizer, reporter);
  } else if (!options.input_file.empty()) {
    tokenize_lines(options, encoder, reporter);
  } else {
    if (!options.text.given() && standard_input_is_terminal()) {
      throw usage_error("there is no text; give one with -p, -f or on standard input");
    }
    const InputText input = read_text(options.text, options.interpret_escapes,
                                      std::numeric_limits<std::uint64_t>::max(), "");
    if (reporter.is_text()) {
      reporter.text(encoder.text(input.text));
    } else {
      reporter.document() = encoder.object(input.text);
    }
    reporter.finish();
  }
  return 0;
}

}  // namespace fut::app
