// The flag tables of the commands that make and judge quantised folders.
#include <filesystem>
#include <limits>
#include <optional>

#include "apps/flag_groups.h"
#include "engine/quantize.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

constexpr const char* kQuantizeSection = "Quantisation";
constexpr const char* kScoreSection = "What is scored";

constexpr const char* kQuantizeNotes =
    "Writes a folder that -m accepts in the place of the checkpoint, with the FP8 and INT4 copies "
    "of "
    "its weights,\nits config and its tokenizer. The bytes depend on the checkpoint, the "
    "calibration "
    "text and these flags alone, and on whether a GPU or the CPU runs the calibration text.\n"
    "Standard output is the report card: the relative error of each matrix (with gptq its loss, "
    "relative as\nwell), worst first.\n";

constexpr const char* kPerplexityNotes =
    "The text is tokenised as a whole, so that a BOS stands at its start alone, and cut into "
    "windows "
    "that do not\noverlap; what is left at the end is dropped. Each window begins with an empty "
    "cache; its first token is not\nscored. --path decode sends every token through the decode "
    "path, many windows in lock-step.\n"
    "Two runs are compared by --against: the difference of the two models on the same tokens has a "
    "far smaller\nerror than either perplexity. The other model has the defaults of its precision: "
    "--no-kv-rotation --against :int4\nis what the rotation brings.\n";

void set_target(std::string& target, const Argument& a) {
  if (a.text == "text" || a.text == "json" || a.text == "jsonl") {
    throw usage_error(
        "{}: for quantize this is the folder to write, and '{}' looks like a format; give --json "
        "for the report as JSON, ./{} for a folder of that name",
        a.source, a.text, a.text);
  }
  target = parse_text(a, "folder");
}

Flags method_flags(QuantizeOptions& o) {
  return {{{"-o", "--target"},
           "DIR",
           kQuantizeSection,
           "Folder to write [beside the checkpoint: its name, the method and the group]",
           [&o](const Argument& a) { set_target(o.target, a); }},
          {{"--overwrite", "--force"},
           "",
           kQuantizeSection,
           "Replace a quantised folder that is there",
           turn_on(o.overwrite)},
          {{"--method"},
           "rtn|gptq",
           kQuantizeSection,
           "Round to nearest (seconds to minutes) or GPTQ (better, slow) [rtn]",
           [&o](const Argument& a) {
             o.packed.method =
                 parse_choice(a, {"rtn", "gptq"}) == 0 ? QuantMethod::Rtn : QuantMethod::Gptq;
           }},
          {{"--group-size"},
           "128|64",
           kQuantizeSection,
           "Weights that share a scale [128]",
           [&o](const Argument& a) {
             o.packed.group_size = parse_choice(a, {"128", "64"}) == 0 ? 128 : 64;
           }},
          {{"--scales"},
           "searched|minmax",
           kQuantizeSection,
           "How the scale of a group is chosen; minmax is there to compare with [searched]",
           [&o](const Argument& a) {
             o.packed.scale_rule = parse_choice(a, {"searched", "minmax"}) == 0
                                       ? ScaleRule::Searched
                                       : ScaleRule::MinMax;
           }},
          {{"--calib"},
           "FILE",
           kQuantizeSection,
           "Calibration text [public-domain prose in the program]",
           set_text(o.calibration_file, "file name")},
          {{"--calib-tokens"},
           "N",
           kQuantizeSection,
           fmt::format("Tokens of it in all [rtn: {}, gptq: {}]", kRtnCalibrationTokens,
                       kGptqCalibrationTokens),
           [&o](const Argument& a) { o.calibration_tokens = parse_integer(a, 2, kMostTokens); }}};
}

Flags transform_flags(QuantizeOptions& o) {
  Flags flags;
  append(flags, on_off_flags("rotate", kQuantizeSection,
                             "Rotate the hidden channels by a Hadamard matrix [with gptq]",
                             "Leave the hidden channels as they are [with rtn]",
                             [&o](bool on) { o.rotate = on; }));
  append(flags,
         on_off_flags("balance-qk", kQuantizeSection,
                      "Even out the channels of queries and keys by powers of two [on]",
                      "Leave them as they are", [&o](bool on) { o.packed.balance_qk = on; }));
  append(flags,
         on_off_flags("balance-ffn", kQuantizeSection,
                      "Even out the channels of up and down by powers of two [on]",
                      "Leave them as they are", [&o](bool on) { o.packed.balance_ffn = on; }));
  append(flags,
         on_off_flags("kv-rotation", kQuantizeSection,
                      "Rotate the values of each head, for the INT4 cache [on]",
                      "Leave values as they are", [&o](bool on) { o.packed.kv_rotation = on; }));
  flags.push_back({{"--rotation-seed"},
                   "N",
                   kQuantizeSection,
                   "Of the random signs of --rotate [0]",
                   [&o](const Argument& a) {
                     o.rotation_seed_is_typed = a.typed;
                     o.packed.rotation_seed = static_cast<std::uint64_t>(
                         parse_integer(a, 0, std::numeric_limits<std::int64_t>::max()));
                   }});
  return flags;
}

std::optional<Precision> precision_of(const std::string& word) {
  for (const Precision p : {Precision::Int4, Precision::Fp8, Precision::Bf16, Precision::F32}) {
    if (word == precision_name(p)) return p;
  }
  return std::nullopt;
}

// "DIR", "DIR:bf16", ":bf16", and "bf16" where nothing is called so. A colon that no precision follows is part
// of the name.
AgainstOptions parse_against(const Argument& a) {
  AgainstOptions against{parse_text(a, "model"), {}};
  const std::size_t colon = against.model.rfind(':');
  std::error_code ignored;
  if (colon == std::string::npos) {
    const std::optional<Precision> precision = precision_of(against.model);
    if (!precision || std::filesystem::exists(against.model, ignored)) return against;
    return {"", precision};
  }
  const std::string word = against.model.substr(colon + 1);
  if (const std::optional<Precision> precision = precision_of(word)) {
    against.precision = precision;
    against.model.resize(colon);
    return against;
  }
  if (word.find('/') == std::string::npos) {
    throw usage_error("{}: '{}' after the colon is no precision; allowed: int4, fp8, bf16, f32",
                      a.source, word);
  }
  return against;
}

Flags text_flags(PerplexityOptions& o) {
  return {{{"-f", "--file"},
           "FILE",
           kScoreSection,
           "The text, byte for byte; '-' is standard input",
           set_text(o.file, "file name")},
          {{"--wikitext"},
           "",
           kScoreSection,
           "FILE is a raw file of WikiText: its lines become rows joined by two newlines, as "
           "published figures have it",
           turn_on(o.wikitext)},
          {{"--window"},
           "N",
           kScoreSection,
           "Tokens of a window [2048, or the model's context where that is less]",
           set_integer(o.window, 2, kMostTokens, "2 up to the model's own context")},
          {{"--windows"},
           "N",
           kScoreSection,
           "At most N windows [all]",
           set_integer(o.max_windows, 1, kMostTokens, "")},
          {{"--path"},
           "prefill|decode",
           kScoreSection,
           "Which of the two paths computes the logits [prefill]",
           [&o](const Argument& a) {
             o.path =
                 parse_choice(a, {"prefill", "decode"}) == 0 ? StepKind::Prefill : StepKind::Decode;
           }},
          {{"--lock-step"},
           "N",
           kScoreSection,
           "Windows that --path decode takes along together; results do not depend on it [16]",
           noting_typed(o.lock_step_typed, set_integer(o.lock_step, 1, 4096, ""))},
          {{"--against"},
           "DIR[:PRECISION]",
           kScoreSection,
           "Compare with another model on the same tokens, or with this one in another precision "
           "(:f32). Without PRECISION: int4 for a quantised folder, f32 for any other",
           [&o](const Argument& a) { o.against = parse_against(a); }}};
}

}  // namespace

Command quantize_command(QuantizeOptions& o) {
  Command command{"quantize",
                  "Make a quantised folder of a checkpoint",
                  std::string(kQuantizeNotes) + kExitCodes,
                  {}};
  command.flags = {model_flag(o.model)};
  append(command.flags, device_flags(o.device));
  append(command.flags, method_flags(o));
  append(command.flags, transform_flags(o));
  command.flags.push_back(
      {{"--json"}, "", kOutputSection, "The report card as one JSON document", turn_on(o.json)});
  append(command.flags, log_flags(o.log));
  return command;
}

Command perplexity_command(PerplexityOptions& o) {
  Command command{"perplexity",
                  "How well a model predicts a text, alone or against another",
                  std::string(kPerplexityNotes) + kExitCodes,
                  {}};
  command.flags = {model_flag(o.model.model)};
  append(command.flags, text_flags(o));
  append(command.flags, device_flags(o.model.device));
  append(command.flags, arithmetic_flags(o.model.arithmetic));
  append(command.flags, copy_flags(o.model));
  append(command.flags, output_flags(o.output, "Form of the report [text]"));
  append(command.flags, log_flags(o.log));
  return command;
}

}  // namespace fut::app
