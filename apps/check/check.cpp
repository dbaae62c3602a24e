// See the header.
#include "apps/check/check.h"

#include <algorithm>
#include <cmath>

#include "apps/check/op_trace.h"
#include "apps/flag_groups.h"
#include "apps/model_session.h"
#include "apps/prompt.h"
#include "apps/signals.h"
#include "apps/text_input.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

constexpr const char* kCheckNotes =
    "A prompt is fed to the model where it runs and to the CPU reference in the same precision, "
    "token by "
    "token by\nthe path of decode. For the last steps the two are held against each other after "
    "every "
    "op: the largest\ndifference as a share of the root mean square of what the reference has "
    "there. "
    "Both go their own way, so\ndifferences add up from layer to layer as they do in a reply. "
    "Where the "
    "model runs on the CPU it is\nthe reference, with one thread against many: nothing may differ "
    "then, "
    "and exit code 1 tells if it does. 'whole step' are the logits of steps that nothing is looked "
    "at "
    "in\nbetween, as in a reply, where launches overlap.\n";

// Of one op in one layer, the worst of all steps.
struct OpDifference {
  std::string op;
  int layer = 0;
  double largest = 0;  // over the reference's root mean square
};

double difference(const std::vector<float>& reference, const std::vector<float>& seen) {
  double squares = 0, largest = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    squares += static_cast<double>(reference[i]) * static_cast<double>(reference[i]);
    const double d = std::abs(static_cast<double>(reference[i]) - static_cast<double>(seen[i]));
    largest = std::isnan(d) ? std::numeric_limits<double>::infinity() : std::max(largest, d);
  }
  const double rms =
      std::sqrt(squares / static_cast<double>(std::max<std::size_t>(1, reference.size())));
  return largest == 0 ? 0 : rms > 0 ? largest / rms : std::numeric_limits<double>::infinity();
}

void add_step(const std::vector<OpValues>& reference, const std::vector<OpValues>& seen,
              std::vector<OpDifference>& worst) {
  if (worst.empty()) {
    for (const OpValues& v : reference) worst.push_back({v.op, v.layer, 0});
  }
  for (std::size_t i = 0; i < reference.size(); ++i) {
    if (reference[i].values.size() != seen[i].values.size()) {
      throw runtime_failure("{} of layer {} gives {} values here and {} on the reference",
                            reference[i].op, reference[i].layer, seen[i].values.size(),
                            reference[i].values.size());
    }
    worst[i].largest = std::max(worst[i].largest, difference(reference[i].values, seen[i].values));
  }
}

std::int32_t best_of(const std::vector<float>& logits) {
  return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
}

std::vector<TokenId> prompt_ids(const CheckOptions& o, const OpenedModel& model) {
  const Tokenizer& tokenizer = model.folder.tokenizer;
  std::string text = "Once upon a time there was a machine that wanted to be checked.";
  if (o.prompt.prompt.given()) {
    text = read_text(o.prompt.prompt, o.prompt.interpret_escapes,
                     most_prompt_bytes(tokenizer, model.context_tokens), " into the context")
               .text;
  }
  std::vector<TokenId> ids = encode_raw(tokenizer, text, true);
  require_room(ids.size() + static_cast<std::size_t>(o.steps),
               {model.context_tokens, model.folder.config.max_position_embeddings, false});
  return ids;
}

struct CheckResult {
  std::vector<OpDifference> ops;
  int same_best = 0;
};

// The reference leads: its best token is what both are fed next.
// `whole` is the model as `seen`, of which nothing is watched, as in a reply: launches overlap.
CheckResult run_both(TracedModel& reference, TracedModel& seen, TracedModel& whole,
                     const std::vector<TokenId>& prompt, int steps) {
  for (std::size_t i = 0; i + 1 < prompt.size(); ++i) {
    throw_if_interrupted();
    reference.feed(prompt[i]);
    seen.feed(prompt[i]);
    whole.feed(prompt[i]);
  }
  CheckResult result;
  TokenId token = prompt.back();
  for (int step = 0; step < steps; ++step) {
    throw_if_interrupted();
    std::vector<OpValues> mine, others;
    reference.feed(token, &mine);
    seen.feed(token, &others);
    whole.feed(token);
    mine.push_back({"whole step", -1, reference.logits()});
    others.push_back({"whole step", -1, whole.logits()});
    add_step(mine, others, result.ops);
    token = best_of(reference.logits());
    result.same_best += best_of(seen.logits()) == token ? 1 : 0;
  }
  return result;
}

std::string text_of(const CheckResult& result, int steps, const std::string& device) {
  std::vector<std::string> names;
  for (const OpDifference& d : result.ops) {
    if (std::ranges::find(names, d.op) == names.end()) names.push_back(d.op);
  }
  std::string text = fmt::format(
      "{} against the CPU reference, {} steps: the largest difference over the root mean square\n"
      "  op                  all layers  worst layer\n",
      device, steps);
  for (const std::string& name : names) {
    const OpDifference* worst = nullptr;
    for (const OpDifference& d : result.ops) {
      if (d.op == name && (worst == nullptr || d.largest > worst->largest)) worst = &d;
    }
    text += fmt::format("  {:<18} {:>11.3g}  {}\n", name, worst->largest,
                        worst->layer < 0 ? std::string("-") : std::to_string(worst->layer));
  }
  return text + fmt::format("the same best token at {} of {} steps\n", result.same_best, steps);
}

}  // namespace

Command check_command(CheckOptions& o) {
  Command command{"check",
                  "Steps of a model once more on the CPU reference, and where the two differ",
                  std::string(kCheckNotes) + kExitCodes,
                  {model_flag(o.model.model)}};
  command.flags.push_back({{"--steps"},
                           "N",
                           kTextSection,
                           "Decode steps that are compared op by op [4]",
                           set_integer(o.steps, 1, 10000, "")});
  append(command.flags, device_flags(o.model.device));
  command.flags.push_back(context_flag(o.model.context_tokens));
  append(command.flags, arithmetic_flags(o.model.arithmetic));
  append(command.flags, copy_flags(o.model));
  append(command.flags, prompt_flags(o.prompt, "The text that is fed"));
  std::erase_if(command.flags,
                [](const Flag& flag) { return flag_name(flag).starts_with("--system-prompt"); });
  append(command.flags, output_flags(o.output, "Form of the report [text]"));
  append(command.flags, log_flags(o.log));
  return command;
}

int check(const CheckOptions& options, Reporter& reporter) {
  OpenedModel opened = open_model(options.model);
  const std::vector<TokenId> prompt = prompt_ids(options, opened);
  Backend& backend = *opened.backend;
  const bool on_cpu = backend.description().starts_with("CPU");
  const Model model = load_weights(backend, opened, options.model, NoRoom::Fail);
  DeviceRequest request;
  request.kind = DeviceRequest::Kind::Cpu;
  request.cpu_threads = on_cpu ? 1 : options.model.device.cpu_threads;
  const std::unique_ptr<Backend> cpu = open_backend(request);
  const Model reference_model = load_weights(*cpu, opened, options.model, NoRoom::Fail);

  const int tokens = static_cast<int>(prompt.size()) + options.steps;
  TracedModel seen(backend, model, opened.kv_cache, tokens);
  TracedModel whole(backend, model, opened.kv_cache, tokens);
  TracedModel reference(*cpu, reference_model, opened.kv_cache, tokens);
  const CheckResult result = run_both(reference, seen, whole, prompt, options.steps);

  Json& document = reporter.document();
  document["model"] = opened.folder.path.string();
  document["device"] = backend.description();
  document["reference"] = cpu->description();
  add_arithmetic(document, opened);
  document["steps"] = options.steps;
  document["same_best"] = result.same_best;
  Json& list = document["ops"] = Json::array();
  bool same = true;
  for (const OpDifference& d : result.ops) {
    same = same && d.largest == 0;
    // Infinity has no number in JSON.
    list.push_back({{"op", d.op},
                    {"layer", d.layer},
                    {"largest", std::isfinite(d.largest) ? Json(d.largest) : Json("infinite")}});
  }
  document["same_bits"] = same;
  reporter.text(text_of(result, options.steps, backend.description()));
  reporter.finish();
  return on_cpu && !same ? static_cast<int>(ErrorKind::Runtime) : 0;
}

}  // namespace fut::app
