// The flags of fut compare.
#include "apps/compare/compare.h"
#include "apps/flag_groups.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

constexpr const char* kCompareNotes =
    "Both reply greedily to the same prompt. Then both are led along the first one's reply, token "
    "by "
    "token by the\npath of decode, and their distributions are compared: Kullback-Leibler "
    "divergence, "
    "the probability of what\nwas said, and what left and entered the five best. The first model "
    "is "
    "that of -m and --precision.\n";

AgainstOptions parse_other(const Argument& a) {
  AgainstOptions against{parse_text(a, "model"), {}};
  const std::size_t colon = against.model.rfind(':');
  const std::string word =
      colon == std::string::npos ? against.model : against.model.substr(colon + 1);
  for (const Precision p : {Precision::Int4, Precision::Fp8, Precision::Bf16, Precision::F32}) {
    if (word != precision_name(p)) continue;
    against.precision = p;
    against.model = colon == std::string::npos ? "" : against.model.substr(0, colon);
    break;
  }
  return against;
}

}  // namespace

Command compare_command(CompareOptions& o) {
  Command command{"compare",
                  "One prompt, two precisions: what each says and how far apart they are",
                  std::string(kCompareNotes) + kExitCodes,
                  {model_flag(o.model.model)}};
  command.flags.push_back(
      {{"--against"},
       "PRECISION|DIR[:PRECISION]",
       kModelSection,
       "The second one: this model in another precision, or another model [bf16]",
       [&o](const Argument& a) { o.against = parse_other(a); }});
  append(command.flags, device_flags(o.model.device));
  command.flags.push_back(context_flag(o.model.context_tokens));
  append(command.flags, arithmetic_flags(o.model.arithmetic));
  append(command.flags, copy_flags(o.model));
  append(command.flags, prompt_flags(o.prompt, "The prompt"));
  append(command.flags, raw_flags(o.form));
  command.flags.push_back(chat_template_flag(o.form.chat_template));
  command.flags.push_back(date_flag(o.form.date));
  command.flags.push_back({{"--parse-special"},
                           "",
                           kFormSection,
                           "Control tokens spelt out in messages become control tokens",
                           [&o](const Argument&) { o.form.parse_special = true; }});
  command.flags.push_back({{"-n", "--n-predict", "--max-tokens"},
                           "N",
                           kReplySection,
                           "Most tokens of a reply [64]",
                           set_integer(o.max_new_tokens, 1, kMostTokens, "")});
  append(command.flags, output_flags(o.output, "Form of the report [text]"));
  append(command.flags, log_flags(o.log));
  return command;
}

}  // namespace fut::app
