// fut bench --prompts: what prompts cost until their first tokens, and their layers alone.
#pragma once

#include <vector>

#include "apps/reporter.h"
#include "engine/prefill_bench.h"

namespace fut::app {

// Measures each pack and adds a row for it to the report: to the document's "prompts", as a line, and as
// text. Throws Usage, before anything is measured, for prompts that the model has no positions for.
void bench_prompts(Backend& backend, const Model& model, const std::vector<PromptPack>& packs,
                   const KvCacheOptions& kv_cache, const SamplingParams& sampling,
                   Reporter& reporter);

// Throws Usage for prompts that the model has no positions for.
void check_prompts(const std::vector<PromptPack>& packs, const ModelConfig& config);

}  // namespace fut::app
