// See the header.
#include "apps/bench/prompts.h"

#include <fmt/ranges.h>

#include "apps/bench/statistics.h"
#include "apps/bench/sweep.h"
#include "apps/bench/timing.h"
#include "apps/logging.h"
#include "apps/signals.h"
#include "engine/roofline.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

constexpr double kMilliseconds = 1e3;  // of a second
constexpr double kLayersUs = 3e5;      // for so long layers are run
constexpr double kWarmUpUs = 1e5;
constexpr double kFirstTokenSeconds = 1;  // for so long prompts are run to their first tokens
constexpr std::size_t kLeastRuns = 3;

// Seconds until all first tokens are there.
Summary first_token_times(PrefillBench& bench) {
  (void)bench.seconds_to_first_tokens();
  std::vector<double> times;
  for (double total = 0; total < kFirstTokenSeconds || times.size() < kLeastRuns;) {
    times.push_back(bench.seconds_to_first_tokens());
    throw_if_interrupted();
    total += times.back();
  }
  return summarise(times);
}

Json measure(Backend& backend, const Model& model, const PrefillBenchOptions& options,
             double product_roof) {
  PrefillBench bench(backend, model, options);
  const Summary seconds = first_token_times(bench);
  const Backend::Procedure layers = bench.layers();
  (void)run_for(backend, layers, kWarmUpUs);
  const Summary us = summarise(run_for(backend, layers, kLayersUs));
  const int num_layers = model.config().num_layers;
  const PrefillFlops flops = prefill_flops(model.config(), options.pack.lengths);
  const double flops_per_second = flops.total() / us.median * 1e6;
  Json row = {{"prompts", options.pack.name},
              {"sequences", options.pack.lengths.size()},
              {"tokens", options.pack.tokens()},
              {"first_token_ms", seconds.median * kMilliseconds},
              {"first_token_ms_least", seconds.least * kMilliseconds},
              {"first_token_ms_most", seconds.most * kMilliseconds},
              {"tokens_per_second", static_cast<double>(options.pack.tokens()) / seconds.median},
              {"us_layer", us.median / num_layers},
              {"us_layer_least", us.least / num_layers},
              {"us_layer_most", us.most / num_layers},
              {"flops_layer", flops.total() / num_layers},
              {"attention_flops_layer", flops.attention / num_layers},
              {"flops_per_second", flops_per_second}};
  if (product_roof > 0) row["of_roof"] = flops_per_second / product_roof;
  return row;
}

std::string line_of(const Json& row) {
  const auto number = [&](const char* key) { return row[key].get<double>(); };
  std::string line = fmt::format("{:>8} {:>7} {:>14.2f} {:>10.0f} {:>12.1f} {:>9.4g}",
                                 row["prompts"].get<std::string>(), row["tokens"].get<int>(),
                                 number("first_token_ms"), number("tokens_per_second"),
                                 number("us_layer"), number("flops_per_second") / 1e12);
  if (row.contains("of_roof")) line += fmt::format(" {:>6.1f} %", 100 * number("of_roof"));
  return line;
}

// The pack less what is longer than `most` tokens.
PromptPack fitting(const PromptPack& pack, int most) {
  const bool equal = pack.name == kEqualPack;
  PromptPack rest{pack.name, equal ? parse_prompt_pack(kMixedPack).lengths : pack.lengths};
  std::erase_if(rest.lengths, [&](int tokens) { return tokens > most; });
  if (!equal || rest.lengths.empty()) return rest;
  const std::size_t count = rest.lengths.size();
  rest.lengths.assign(count, static_cast<int>(rest.tokens() / static_cast<std::int64_t>(count)));
  return rest;
}

}  // namespace

std::vector<PromptPack> fitting_prompts(const std::vector<PromptPack>& packs, bool all,
                                        const ModelConfig& config) {
  const int positions = config.max_position_embeddings;
  std::vector<PromptPack> kept;
  std::vector<std::string> left_out;
  for (const PromptPack& pack : packs) {
    PromptPack rest = fitting(pack, positions - 1);  // the first token comes behind
    const std::size_t missing = pack.lengths.size() - rest.lengths.size();
    const bool is_named = !all && pack.name != kMixedPack && pack.name != kEqualPack;
    if (missing > 0 && is_named) {
      throw usage_error("--prompts {}: this model has {} positions (max_position_embeddings)",
                        pack.name, positions);
    }
    if (missing > 0) {
      left_out.push_back(rest.lengths.empty() ? pack.name
                                              : fmt::format("{} of the {} prompts of {}", missing,
                                                            pack.lengths.size(), pack.name));
    }
    if (!rest.lengths.empty()) kept.push_back(std::move(rest));
  }
  if (kept.empty()) {
    throw usage_error(
        "--prompts: of {} none fits; this model has {} positions "
        "(max_position_embeddings)",
        fmt::join(left_out, ", "), positions);
  }
  if (!left_out.empty()) {
    log_warning("--prompts: this model has {} positions; left out: {}", positions,
                fmt::join(left_out, ", "));
  }
  return kept;
}

void bench_prompts(Backend& backend, const Model& model, const std::vector<PromptPack>& packs,
                   const KvCacheOptions& kv_cache, const SamplingParams& sampling,
                   MachineWatch& watch, Reporter& reporter) {
  const double product_roof = backend.measure_product_roof();
  Json& document = reporter.document();
  if (product_roof > 0) {
    document["product_roof_flops_per_second"] = product_roof;
    reporter.text(fmt::format("tensor cores, nothing but products of E4M3: {:.4g} TFLOP/s\n",
                              product_roof / 1e12));
  }
  reporter.text(fmt::format("{:>8} {:>7} {:>14} {:>10} {:>12} {:>9}{}\n", "prompts", "tokens",
                            "first token ms", "tokens/s", "us a layer", "TFLOP/s",
                            product_roof > 0 ? "  of roof" : ""));
  document["prompts"] = Json::array();
  measure_each(packs, reporter, [&](const PromptPack& pack) {
    watch.begin();
    Json row = measure(backend, model, {pack, kv_cache, sampling}, product_roof);
    const MachineState machine = watch.end();
    row["machine"] = machine_json(machine);
    reporter.line(row);
    reporter.text(line_of(row) + marks_text(machine) + '\n');
    document["prompts"].push_back(std::move(row));
  });
}

}  // namespace fut::app
