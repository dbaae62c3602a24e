// Whether a model fits, what takes the memory, and what to change where it does not: for fut plan, and
// for the error of a model that is not loaded because it does not fit.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/reporter.h"
#include "engine/memory_needs.h"
#include "engine/roofline.h"

namespace fut::app {

// A model as it would be loaded.
struct PlannedModel {
  std::string name;
  ModelConfig config;
  bool is_packed = false;  // a quantised folder
  int group_size = 128;    // of int4 and fp8
  Precision precision = Precision::Int4;
  KvCacheOptions kv_cache;
  KvCacheChoice cache_choice;  // of the user, which another precision would meet too
  HeadChoice head = HeadChoice::Int8;
  PrefillWeights prefill = PrefillWeights::Fp8;
  WeightBytes weights;
  int context_tokens = 0;
  int sequences = 1;
};

// Reads the headers of a folder's weights, or where it has none goes by `config`. Throws Data for
// weights or a shape that cannot be loaded.
[[nodiscard]] PlannedModel plan_folder(const std::filesystem::path& folder, ModelConfig config,
                                       Precision precision, const KvCacheOptions& kv_cache,
                                       HeadChoice head);
// The same of a config.json that stands alone.
[[nodiscard]] PlannedModel plan_shape(std::string name, const ModelConfig& config,
                                      Precision precision, const KvCacheOptions& kv_cache,
                                      HeadChoice head);

struct MemoryBudget {
  std::string device;
  MemoryOwner owner = MemoryOwner::Cpu;
  std::size_t total_bytes = 0;
  std::size_t free_bytes = 0;
  std::optional<Roof> roof;  // where the device is known
};
[[nodiscard]] MemoryBudget budget_of(const Backend& backend);

struct MemoryChange {
  std::string what;  // "-c 4096"
  std::string why;   // "less context"
  std::size_t saves = 0;
  bool is_enough = false;
};

struct MemoryPlan {
  PlannedModel model;
  MemoryBudget budget;
  MemoryNeeds needs;
  LargestFit largest;  // with prefill's weights from INT4 codes where that goes further and may be
  std::vector<MemoryChange> changes;  // where it does not fit: three at most, the cheapest first
  [[nodiscard]] bool fits() const { return needs.total <= budget.free_bytes; }
};
// With the weights of prefill as `wanted` has them; nullopt: from INT4 codes where a copy of their own
// does not fit.
[[nodiscard]] MemoryPlan make_plan(const PlannedModel& model, MemoryBudget budget,
                                   std::optional<PrefillWeights> wanted);

// Lines of "what  size", with what is needed and what is there at the end.
[[nodiscard]] std::string plan_table(const MemoryPlan& plan);
// "It does not fit: ...", what would, and the changes; several lines.
[[nodiscard]] std::string plan_verdict(const MemoryPlan& plan);
// The same facts: memory, fits, largest_context, largest_batch, changes.
void add_plan(Json& document, const MemoryPlan& plan);

// Throws Capacity with table and verdict where it does not fit.
void require_fit(const MemoryPlan& plan);

}  // namespace fut::app
