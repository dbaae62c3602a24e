// The flags that several commands share. Adding a flag is adding a row here and reading its field
// where it acts.
#include "apps/flag_groups.h"

#include <iterator>
#include <limits>

#include "engine/engine.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

constexpr double kMostReal = std::numeric_limits<float>::max();

// "cuda" or "cuda:N"; nullopt for anything else.
std::optional<int> cuda_index(const std::string& text) {
  constexpr std::string_view kPrefix = "cuda:";
  constexpr std::size_t kMostDigits = 2;
  if (text == "cuda") return 0;
  if (!text.starts_with(kPrefix)) return std::nullopt;
  const std::string digits = text.substr(kPrefix.size());
  if (digits.empty() || digits.size() > kMostDigits ||
      digits.find_first_not_of("0123456789") != std::string::npos) {
    return std::nullopt;
  }
  return std::stoi(digits);
}

void set_device(DeviceRequest& device, const Argument& a) {
  if (a.text == "auto") {
    device.kind = DeviceRequest::Kind::Auto;
  } else if (a.text == "cpu") {
    device.kind = DeviceRequest::Kind::Cpu;
  } else if (const auto index = cuda_index(a.text)) {
    device.kind = DeviceRequest::Kind::Cuda;
    device.cuda_index = *index;
  } else {
    throw usage_error("{}: '{}' is no device; allowed: auto, cpu, cuda, cuda:N with N from 0 to 99",
                      a.source, a.text);
  }
}

Flags truncation_flags(SamplingOptions& o) {
  return {
      {{"--temp", "--temperature"},
       "T",
       kSamplingSection,
       "0 up to 0.00001 is greedy [generation_config.json, else 0]",
       set_real(o.temperature, {0, kMostReal, false, "0 (greedy) to 3.4e38"}),
       false,
       {"--greedy"}},
      {{"--greedy"},
       "",
       kSamplingSection,
       "Same as --temp 0",
       [&o](const Argument&) { o.temperature = 0.0F; }},
      {{"--top-k"},
       "K",
       kSamplingSection,
       "Only the K best; 0 or -1: off [generation_config.json, else off]",
       set_integer(o.top_k, -1, kMostTokens, "-1 or 0 (off), 1 to 2147483647")},
      {{"--top-p"},
       "P",
       kSamplingSection,
       "Only the best that together have probability P [generation_config.json, else 1]",
       set_real(o.top_p, {0, 1, true, "above 0, up to 1 (off)"})},
      {{"--min-p"},
       "P",
       kSamplingSection,
       "Only those of at least P times the best one's probability [generation_config.json, else 0]",
       set_real(o.min_p, {0, 1, false, "0 (off) to 1"})},
  };
}

void set_seed(SamplingOptions& o, const Argument& a) {
  o.seed.reset();
  if (a.text == "-1") return;
  o.seed =
      static_cast<std::uint64_t>(parse_integer(a, 0, std::numeric_limits<std::int64_t>::max(),
                                               "0 to 9223372036854775807, or -1 for a random one"));
}

Flag threads_flag(int& threads) {
  return {{"-t", "--threads"},
          "N",
          kModelSection,
          "Threads of the CPU backend; results do not depend on it [all cores]",
          set_integer(threads, 1, 4096, "")};
}

}  // namespace

void append(Flags& flags, Flags more) {
  flags.insert(flags.end(), std::make_move_iterator(more.begin()),
               std::make_move_iterator(more.end()));
}
std::function<void(const Argument&)> turn_on(bool& target) {
  return [&target](const Argument&) { target = true; };
}
std::function<void(const Argument&)> turn_off(bool& target) {
  return [&target](const Argument&) { target = false; };
}
Flags on_off_flags(const std::string& name, const char* section, std::string on_help,
                   std::string off_help, std::function<void(bool)> set) {
  return {
      {{"--" + name},
       "",
       section,
       std::move(on_help),
       [set](const Argument&) { set(true); },
       false,
       {"--no-" + name}},
      {{"--no-" + name}, "", section, std::move(off_help), [set](const Argument&) { set(false); }}};
}
std::function<void(const Argument&)> noting_typed(bool& typed,
                                                  std::function<void(const Argument&)> set) {
  return [&typed, set = std::move(set)](const Argument& a) {
    typed = typed || a.typed;
    set(a);
  };
}
std::function<void(const Argument&)> set_any_text(std::optional<std::string>& target) {
  return [&target](const Argument& a) { target = a.text; };
}

Flag model_flag(std::string& model) {
  return {{"-m", "--model"},
          "MODEL",
          kModelSection,
          "Folder with config.json, a .safetensors file in one, or org/name[@revision] in the "
          "Hugging Face cache [the demonstration model]",
          set_text(model, "model")};
}

Flags log_flags(LogOptions& o) {
  return {{{"-v"},
           "",
           kOutputSection,
           "Say more on standard error; -vv for details",
           [&o](const Argument&) { o.verbosity = o.verbosity < 2 ? 2 : o.verbosity + 1; },
           true,
           {"--verbosity", "--quiet"}},
          {{"-q", "--quiet"},
           "",
           kOutputSection,
           "Say nothing but errors",
           [&o](const Argument&) { o.verbosity = 0; },
           false,
           {"--verbosity"}},
          {{"--verbosity"},
           "0..5",
           kOutputSection,
           "0 errors, 1 warnings, 2 information, 3 details, 4 and 5 everything [1]",
           set_integer(o.verbosity, 0, 5, "")},
          {{"--log-file"},
           "FILE",
           kOutputSection,
           "Append messages to FILE too",
           set_text(o.log_file, "file name")},
          {{"--color"},
           "auto|on|off",
           kOutputSection,
           "Colour of messages; auto: on a terminal, unless NO_COLOR is set [auto]",
           [&o](const Argument& a) {
             constexpr ColorMode kModes[] = {ColorMode::Auto, ColorMode::On, ColorMode::Off};
             o.color = kModes[parse_choice(a, {"auto", "on", "off"})];
           }},
          {{"--config"},
           "FILE",
           kOutputSection,
           "Read flags from FILE, a 'name = value' a line; names are the long flags without dashes",
           // Used while arguments are gathered.
           [](const Argument& a) { (void)parse_text(a, "file name"); }}};
}

Flags output_flags(OutputOptions& o, std::string help) {
  return {{{"-o", "--output"},
           "text|json|jsonl",
           kOutputSection,
           std::move(help),
           [&o](const Argument& a) {
             constexpr OutputFormat kFormats[] = {OutputFormat::Text, OutputFormat::Json,
                                                  OutputFormat::JsonLines};
             if (a.text.find_first_of("./") != std::string::npos) {
               throw usage_error(
                   "{}: '{}' is no format; allowed: text, json, jsonl; a file is given with "
                   "--output-file {}",
                   a.source, a.text, a.text);
             }
             o.format = kFormats[parse_choice(a, {"text", "json", "jsonl"})];
           }},
          {{"--output-file"},
           "FILE",
           kOutputSection,
           "Write the result to FILE instead of standard output, which is - as well",
           [&o](const Argument& a) {
             set_text(o.file, "file name")(a);
             if (o.file == "-") o.file.clear();
           }}};
}

DeviceRequest parse_device(const Argument& argument) {
  DeviceRequest device;
  set_device(device, argument);
  return device;
}

Flags device_flags(DeviceRequest& device) {
  return {{{"--device"},
           "auto|cpu|cuda[:N]",
           kModelSection,
           "Where to compute; auto: a GPU that this build has kernels for, else the CPU [auto]",
           [&device](const Argument& a) { set_device(device, a); },
           false,
           {"--cpu"}},
          {{"--cpu"},
           "",
           kModelSection,
           "Same as --device cpu",
           [&device](const Argument&) { device.kind = DeviceRequest::Kind::Cpu; }},
          {{"--no-cuda-graph"},
           "",
           kModelSection,
           "GPU: launch the kernels of a decode step one by one, for debugging",
           turn_off(device.record_graphs)},
          threads_flag(device.cpu_threads)};
}

Flag context_flag(std::optional<int>& tokens) {
  return {{"-c", "--ctx-size", "--max-model-len"},
          "N",
          kModelSection,
          "Tokens of prompt and reply together [the model's own, at most 8192]",
          set_integer(tokens, kLeastContextTokens, kMostTokens, "2 up to the model's own context")};
}

Flags prompt_flags(PromptOptions& o, const std::string& what) {
  return {{{"-p", "--prompt"},
           "TEXT",
           kPromptSection,
           what + "; '-' reads standard input; \\n, \\t and the like are interpreted",
           set_any_text(o.prompt.text),
           false,
           {"--file"}},
          {{"-f", "--file"},
           "FILE",
           kPromptSection,
           what + " from a file, byte for byte; '-' is standard input",
           set_text(o.prompt.file, "file name")},
          {{"--no-escape"},
           "",
           kPromptSection,
           "Take backslashes in -p as they are",
           turn_off(o.interpret_escapes)},
          {{"-sys", "--system-prompt"},
           "TEXT",
           kPromptSection,
           "System turn of the chat form",
           set_any_text(o.system.text),
           false,
           {"--system-prompt-file", "--raw"}},
          {{"-sysf", "--system-prompt-file"},
           "FILE",
           kPromptSection,
           "System turn from a file, less one final newline",
           set_text(o.system.file, "file name"),
           false,
           {"--raw"}}};
}

Flag chat_template_flag(std::optional<ChatTemplate>& target) {
  return {{"--chat-template"},
          "NAME",
          kFormSection,
          fmt::format("Chat template instead of the folder's own: {}",
                      fmt::join(chat_template_names(), ", ")),
          [&target](const Argument& a) { target = chat_template_from_name(a.text); },
          false,
          {"--raw"}};
}

Flag date_flag(std::optional<std::string>& target) {
  return {{"--date"},
          "DATE",
          kFormSection,
          "Date that the template writes, such as '26 Jul 2024' [what the template says]",
          set_text(target, "date"),
          false,
          {"--raw"}};
}

Flags form_flags(FormOptions& o) {
  return {chat_template_flag(o.chat_template),
          date_flag(o.date),
          {{"--parse-special"},
           "",
           kFormSection,
           "Control tokens spelt out in messages become control tokens",
           [&o](const Argument&) { o.parse_special = true; }},
          {{"--verbose-prompt"},
           "",
           kFormSection,
           "Print the prompt's tokens to standard error",
           turn_on(o.verbose_prompt)}};
}

Flags raw_flags(FormOptions& o) {
  return {{{"--raw", "--ignore-chat-template"},
           "",
           kFormSection,
           "Continue the text as it is, without a chat template",
           turn_on(o.raw)},
          {{"--no-special"},
           "",
           kFormSection,
           "Control tokens spelt out in the text stay text",
           [&o](const Argument&) { o.parse_special = false; },
           false,
           {"--parse-special"}}};
}

Flags sampling_flags(SamplingOptions& o) {
  Flags flags = truncation_flags(o);
  constexpr std::string_view kAnyPenalty = "-1000 to 1000 (0: off)";
  append(
      flags,
      {{{"--repeat-penalty", "--repetition-penalty"},
        "R",
        kSamplingSection,
        "Weakens tokens seen before; 1: off [generation_config.json, else 1]",
        set_real(o.repetition_penalty, {0, kMostReal, true, "above 0 (1: off)"})},
       {{"--repeat-last-n"},
        "N",
        kSamplingSection,
        "How many of the last tokens penalties look at, the prompt's too; -1: all, 0: none [64]",
        set_integer(o.repeat_last_n, -1, kMostTokens, "-1 (all), 0 (none), 1 to 2147483647")},
       {{"--presence-penalty"},
        "P",
        kSamplingSection,
        "Subtracted once from the logit of a token seen before [0]",
        set_real(o.presence_penalty, {-1000, 1000, false, kAnyPenalty})},
       {{"--frequency-penalty"},
        "P",
        kSamplingSection,
        "Subtracted each time a token was seen [0]",
        set_real(o.frequency_penalty, {-1000, 1000, false, kAnyPenalty})},
       {{"-s", "--seed"},
        "N",
        kSamplingSection,
        "Same seed, same reply; -1: random [random]",
        [&o](const Argument& a) { set_seed(o, a); }},
       {{"--sampler-order"},
        "fut|hf",
        kSamplingSection,
        "fut: penalties, top-k, top-p, min-p, temperature; hf: temperature right after penalties "
        "[fut]",
        [&o](const Argument& a) {
          o.temperature_first = parse_choice(a, {"fut", "hf"}) == 1;
        }}});
  return flags;
}

Flags reply_flags(ReplyOptions& o) {
  return {{{"-n", "--n-predict", "--predict", "--max-tokens", "--max-new-tokens"},
           "N",
           kReplySection,
           "Most tokens of a reply; -1: as many as the context holds [1024]",
           [&o](const Argument& a) {
             constexpr std::string_view kAllowed = "1 to 2147483647, or -1 for up to the context";
             o.max_new_tokens = a.text == "-1" ? -1 : parse_integer(a, 1, kMostTokens, kAllowed);
           }},
          {{"--stop", "-r", "--reverse-prompt"},
           "TEXT",
           kReplySection,
           "End the reply before TEXT; may be given several times",
           [&o](const Argument& a) { o.stop.push_back(parse_text(a, "stop text")); },
           true},
          {{"--ignore-eos"}, "", kReplySection, "Go on past end tokens", turn_on(o.ignore_eos)},
          {{"--special"},
           "",
           kReplySection,
           "Show control tokens of the reply",
           turn_on(o.show_special)},
          {{"--logprobs"},
           "N",
           kReplySection,
           "With -o json or jsonl: log probabilities of each token and of the N best ones",
           noting_typed(o.logprobs_typed, set_integer(o.num_logprobs, 1, 100, ""))}};
}

}  // namespace fut::app
