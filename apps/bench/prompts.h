// fut bench --prompts: what prompts cost until their first tokens, and their layers alone.
#pragma once

#include <vector>

#include "apps/bench/machine_watch.h"
#include "apps/reporter.h"
#include "engine/prefill_bench.h"

namespace fut::app {

// Measures each pack and adds a row for it to the report: to the document's "prompts", as a line, and as
// text. The prompts are those of fitting_prompts.
void bench_prompts(Backend& backend, const Model& model, const std::vector<PromptPack>& packs,
                   const KvCacheOptions& kv_cache, const SamplingParams& sampling,
                   MachineWatch& watch, Reporter& reporter);

// The packs that the model has positions for, with a word about what was left out: of 'mixed' the prompts
// that are too long ('equal' has as many as are left, of their mean length), other packs whole where
// `all` says that nobody named them. Throws Usage for those that somebody did, and where nothing is left.
[[nodiscard]] std::vector<PromptPack> fitting_prompts(const std::vector<PromptPack>& packs,
                                                      bool all, const ModelConfig& config);

}  // namespace fut::app
