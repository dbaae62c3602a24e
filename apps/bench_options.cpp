// The flags of fut bench.
#include "apps/bench/int_list.h"
#include "apps/bench/latency_flags.h"
#include "apps/flag_groups.h"
#include "apps/options.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

constexpr const char* kBenchSection = "What is measured";
constexpr int kMostSequences = 4096;

constexpr std::string_view kAllPrompts = "128,512,2048,8192,32768,4x2048,8x2048,mixed,equal";

// "512,4x2048,mixed"
void set_prompts(BenchOptions& o, const Argument& a) {
  o.all_prompts = a.text == "all";
  std::string_view rest = o.all_prompts ? kAllPrompts : std::string_view(a.text);
  o.prompts.clear();
  for (bool more = true; more;) {
    const std::size_t end = std::min(rest.find(','), rest.size());
    PromptPack pack = parse_prompt_pack(rest.substr(0, end));
    if (pack.lengths.empty()) {
      throw usage_error(
          "{}: '{}'; prompts are TOKENS, COUNTxTOKENS, mixed or equal, with commas between them",
          a.source, a.text);
    }
    o.prompts.push_back(std::move(pack));
    more = end < rest.size();
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
}

constexpr const char* kBenchNotes =
    "Times decode steps, sampling included, of sequences that stand at a given depth, beside the "
    "bandwidth\n"
    "of memory measured in the same run. --dummy needs no checkpoint: the weights are random and "
    "the text is\n"
    "none, but a step reads and computes what a real one does. -v adds a line for each op, "
    "timed apart;\n"
    "their sum is not a step's time, for on a GPU the next kernel starts while the last one "
    "ends.\n"
    "-b and -d take lists: each batch is measured at each depth, a line for each.\n\n"
    "With --prompts, prompts instead: the time from prompts to their first tokens, in passes as "
    "fut run "
    "makes\nthem, and one pass over them by its layers, in operations a second (2 for each weight "
    "and "
    "token, 4 for each\nhead, dim and pair of tokens in attention) beside what the tensor cores do "
    "with "
    "nothing but products.\n'mixed' are 17 prompts of 30 to 3000 tokens, 'equal' 17 of their mean, "
    "'all' "
    "128 to 32768 tokens alone and\npacks; of these three, what a model has no positions for is "
    "left out.\n\n"
    "With --serve the model stays and each line of standard input is answered by a line: 'step "
    "100' and\n"
    "'layers 100' run whole steps, or the layers of one alone, for at least 100 ms; 'roof' "
    "measures the\n"
    "bandwidth. So that something else can be measured in turn on the same card.\n\n"
    "With -p, -n or --end-to-end whole requests are measured, one setting after the other: time to "
    "the first token\n"
    "(text, tokens, prompt, first draw), time for each token after it, the time between two tokens "
    "with its\n"
    "percentiles and a histogram in which what stands out is named. --compare tells of two such "
    "reports what\n"
    "became faster, beyond what chance would do.\n\n"
    "Clocks, power and temperature are read meanwhile, and never set. A run is marked THROTTLED "
    "where "
    "heat or a\nlimit of power held the device back, and SHARED where other processes used it.\n\n";

Flags measure_flags(BenchOptions& o) {
  return {
      {{"--dummy"},
       "CONFIG.json",
       kBenchSection,
       "Random weights of the shape that this config.json describes (or llama-3.1-8b, "
       "llama-3.1-70b), "
       "instead of a model",
       set_text(o.dummy, "file name"),
       false,
       {"--model"}},
      {{"--layers"},
       "N",
       kBenchSection,
       "With --dummy: so many layers instead of the shape's own",
       set_integer(o.layers, 1, 1000, "")},
      {{"--prompts"},
       "LIST",
       kBenchSection,
       "Prompts instead of decode steps: 512,4x2048,mixed,equal or all",
       [&o](const Argument& a) { set_prompts(o, a); },
       false,
       {"--batch", "--depth", "--repetitions", "--warm-up"}},
      {{"-b", "--batch"},
       "LIST",
       kBenchSection,
       "Sequences that go along together: 8 or 1,8 or 1-32*2 [1]",
       [&o](const Argument& a) { o.batches = parse_int_list(a, 1, kMostSequences); }},
      {{"-d", "--depth"},
       "LIST",
       kBenchSection,
       "Tokens of each sequence in the cache already: 512 or 0,8k [2048, or the most that the "
       "model has positions for; of whole requests 0, and above 0 one sequence alone]",
       [&o](const Argument& a) { o.depths = parse_int_list(a, 0, static_cast<int>(kMostTokens)); }},
      {{"-r", "--repetitions"},
       "N",
       kBenchSection,
       "Steps that are timed [200]",
       set_integer(o.repetitions, 1, 1000000, "")},
      {{"--warm-up"},
       "N",
       kBenchSection,
       "Steps before, that are not [50]",
       set_integer(o.warm_up, 0, 1000000, "")},
      {{"--energy"},
       "",
       kBenchSection,
       "Joules of a token, too: as the device counts them, else from its power",
       turn_on(o.energy),
       false,
       {"--prompts", "--serve"}},
      {{"--serve"},
       "",
       kBenchSection,
       "Measure when asked to on standard input, with -o jsonl",
       [&o](const Argument&) { o.serve = true; },
       false,
       {"--repetitions", "--warm-up"}}};
}

}  // namespace

Command bench_command(BenchOptions& o) {
  Command command{"bench",
                  "How fast a model decodes here, beside what memory allows",
                  std::string(kBenchNotes) + kExitCodes,
                  {}};
  command.flags = {model_flag(o.model.model)};
  append(command.flags, measure_flags(o));
  append(command.flags, latency_flags(o.latency));
  append(command.flags, device_flags(o.model.device));
  append(command.flags, arithmetic_flags(o.model.arithmetic));
  append(command.flags, copy_flags(o.model));
  append(command.flags, sampling_flags(o.sampling));
  append(command.flags, bench_output_flags(o.output));
  append(command.flags, log_flags(o.log));
  command.word = "--with";
  return command;
}

}  // namespace fut::app
