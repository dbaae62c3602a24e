// See the header.
#include "apps/bench/latency_flags.h"

#include "apps/bench/int_list.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

constexpr const char* kLatencySection = "Whole requests";

std::function<void(const Argument&)> set_list(std::vector<int>& target, int least) {
  return [&target, least](const Argument& a) {
    target = parse_int_list(a, least, static_cast<int>(kMostTokens));
  };
}

}  // namespace

Flags latency_flags(LatencyOptions& o) {
  // A typed length asks for requests; one of the environment only says how long they would be.
  const auto as_request = [&o](std::vector<int>& target, int least) {
    return noting_typed(o.end_to_end, set_list(target, least));
  };
  // What else could be measured, and what is about that alone.
  const std::vector<std::string> other_modes = {"--warm-up", "--serve", "--prompts"};
  return {
      {{"--end-to-end"},
       "",
       kLatencySection,
       "Measure requests from text to text, until the 95 % interval is below 1 % or a minute is "
       "over; -p and -n say so too. Without any of them, decode steps alone",
       turn_on(o.end_to_end),
       false,
       other_modes},
      {{"-p", "--n-prompt", "--input-len"},
       "LIST",
       kLatencySection,
       "Tokens of the prompt: 128,512 or 128-2048*2 or 8k; 0: decode alone, behind one token [128]",
       as_request(o.prompt_tokens, 0),
       false,
       other_modes},
      {{"-n", "--n-gen", "--output-len"},
       "LIST",
       kLatencySection,
       "Tokens of the reply [64]",
       as_request(o.reply_tokens, 1),
       false,
       other_modes},
      {{"--plot"},
       "FILE.svg",
       kLatencySection,
       "Draw latency by step, its histogram, and the roofline with the ops of a step on it",
       set_text(o.plot_file, "file name"),
       false,
       {"--prompts", "--serve"}},
      {{"--compare"},
       "OLD.json",
       kLatencySection,
       "Measure nothing: compare two reports of -o json, OLD.json NEW.json",
       set_text(o.compare_old, "file name"),
       false,
       {"--end-to-end", "--dummy", "--model", "--serve", "--plot", "--energy", "--prompts",
        "--layers", "--batch", "--depth", "--repetitions", "--warm-up", "--n-prompt", "--n-gen"}},
      {{"--with"},
       "NEW.json",
       kLatencySection,
       "The second report of --compare; its name alone does too",
       set_text(o.compare_new, "file name")}};
}

Flags bench_output_flags(OutputOptions& o) {
  Flags flags = output_flags(o, "Form of the report; md and csv with --end-to-end [text]");
  flags[0].value = "text|md|csv|json|jsonl";
  const auto set_other = flags[0].set;
  flags[0].set = [&o, set_other](const Argument& a) {
    if (a.text == "md")
      o.format = OutputFormat::Markdown;
    else if (a.text == "csv")
      o.format = OutputFormat::Csv;
    else
      set_other(a);
  };
  return flags;
}

void check_latency_flags(const BenchOptions& o) {
  const LatencyOptions& l = o.latency;
  if (l.compare_old.empty() && !l.compare_new.empty()) {
    throw usage_error(
        "'{}' belongs to no flag; a model is given with -m (two reports are compared by --compare "
        "OLD.json NEW.json)",
        l.compare_new);
  }
  if (!l.compare_old.empty() && l.compare_new.empty()) {
    throw usage_error("two reports are compared: --compare OLD.json NEW.json");
  }
  const bool table =
      o.output.format == OutputFormat::Markdown || o.output.format == OutputFormat::Csv;
  if (table && (!l.end_to_end || !l.compare_old.empty())) {
    throw usage_error("-o md and -o csv are tables of whole requests; add -p, -n or --end-to-end");
  }
}

}  // namespace fut::app
