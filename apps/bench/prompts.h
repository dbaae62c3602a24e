// fut bench --prompts: what prompts cost until their first tokens, and their layers alone.
#pragma once

#include <vector>

#include "apps/bench/machine_watch.h"
#include "apps/reporter.h"
#include "engine/prefill_bench.h"

namespace fut::app {

// Measures each pack and adds a row for it to the report: to the document's "prompts", as a line, and as
// text. The prompts are those that check_prompts let pass.
void bench_prompts(Backend& backend, const Model& model, const std::vector<PromptPack>& packs,
                   const KvCacheOptions& kv_cache, const SamplingParams& sampling,
                   MachineWatch& watch, Reporter& reporter);

// Throws Usage for prompts that the model has no positions for.
void check_prompts(const std::vector<PromptPack>& packs, const ModelConfig& config);

}  // namespace fut::app
