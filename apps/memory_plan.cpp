// See the header.
#include "apps/memory_plan.h"

#include <algorithm>

#include "apps/gpu_catalog.h"
#include "kernels/error.h"
#include "loader/checkpoint.h"
#include "loader/packed_model.h"
#include "loader/packed_options.h"

namespace fut::app {
namespace {

EngineOptions engine_options(const PlannedModel& model) {
  EngineOptions options;
  options.context_tokens = model.context_tokens;
  options.max_sequences = model.sequences;
  options.kv_cache = model.kv_cache;
  return options;
}

WeightBytes weights_by_shape(const PlannedModel& model) {
  return is_quantized(model.precision)
             ? packed_weight_bytes(model.config, model.group_size, model.precision, model.head,
                                   model.prefill)
             : checkpoint_weight_bytes(model.config, model.precision);
}

MemoryNeeds needs_of(const PlannedModel& model, MemoryOwner owner) {
  return memory_needs(model.weights, model.config, engine_options(model), owner);
}

// ---- where prefill has its weights from ---------------------------------------------------------

PlannedModel with_prefill(const PlannedModel& model, PrefillWeights prefill) {
  PlannedModel changed = model;
  changed.prefill = prefill;
  changed.weights = weights_by_shape(changed);
  return changed;
}

// What loading chooses from, the better first: the one that is wanted, or where nothing is said a copy
// of prefill's own and then none.
std::vector<PlannedModel> choices_of(const PlannedModel& model,
                                     std::optional<PrefillWeights> wanted) {
  if (!is_quantized(model.precision)) return {model};  // by the headers of its checkpoint
  if (model.precision == Precision::Fp8) return {with_prefill(model, PrefillWeights::Fp8)};
  if (wanted) return {with_prefill(model, *wanted)};
  return {with_prefill(model, PrefillWeights::Fp8), with_prefill(model, PrefillWeights::Int4)};
}

// The first choice that fits, or else the last, which comes closest.
PlannedModel settle(const PlannedModel& model, const MemoryBudget& budget,
                    std::optional<PrefillWeights> wanted) {
  const std::vector<PlannedModel> choices = choices_of(model, wanted);
  const auto first = std::ranges::find_if(choices, [&](const PlannedModel& choice) {
    return needs_of(choice, budget.owner).total <= budget.free_bytes;
  });
  return first == choices.end() ? choices.back() : *first;
}

LargestFit largest_of(const PlannedModel& model, const MemoryBudget& budget) {
  return largest_fit(model.weights, model.config, engine_options(model), budget.owner,
                     budget.free_bytes);
}

// With whichever choice goes furthest.
LargestFit largest_of_choices(const PlannedModel& model, const MemoryBudget& budget,
                              std::optional<PrefillWeights> wanted) {
  LargestFit largest;
  for (const PlannedModel& choice : choices_of(model, wanted)) {
    const LargestFit fit = largest_of(choice, budget);
    largest.context_tokens = std::max(largest.context_tokens, fit.context_tokens);
    largest.sequences = std::max(largest.sequences, fit.sequences);
  }
  return largest;
}

// A size in the unit of the table that it stands in.
class Unit {
 public:
  explicit Unit(std::size_t largest) : gibibytes_(largest >= std::size_t{1} << 30) {}
  [[nodiscard]] std::string text(std::size_t bytes) const {
    const auto size = static_cast<double>(bytes);
    return gibibytes_ ? fmt::format("{:.2f} GiB", size / (1 << 30))
                      : fmt::format("{:.2f} MiB", size / (1 << 20));
  }

 private:
  bool gibibytes_;
};

Unit unit_of(const MemoryPlan& plan) {
  return Unit(plan.needs.total);
}

struct Row {
  std::string key;  // of JSON
  std::string name;
  std::size_t bytes;
  std::string note = {};
};

std::vector<Row> rows_of(const MemoryPlan& plan) {
  const PlannedModel& m = plan.model;
  const MemoryNeeds& n = plan.needs;
  std::vector<Row> rows;
  const auto add = [&](Row row) {
    if (row.bytes > 0) rows.push_back(std::move(row));
  };
  add({"fp8_copy", "FP8 copy", n.weights.fp8_copy,
       m.precision == Precision::Int4 ? "prefill" : ""});
  add({"int4_copy", "INT4 copy", n.weights.int4_copy,
       m.prefill == PrefillWeights::Int4 ? "prefill and decode" : "decode"});
  add({"expanded", "expanded", n.weights.expanded, "one matrix in FP8, for prompts"});
  add({"layers", "layers", n.weights.layers,
       m.precision == Precision::F32 ? "as stored" : "in BF16"});
  const bool int8 = is_quantized(m.precision) && m.head != HeadChoice::Bf16;
  add({"head", "head", n.weights.head, int8 ? "INT8" : ""});
  add({"rescoring_head", "rescoring head", n.weights.rescoring_head, "BF16"});
  add({"embedding", "embedding", n.weights.embedding,
       n.weights.head == 0 ? "serves as head too" : ""});
  add({"kv_cache", "KV cache", n.engine.kv_cache,
       fmt::format("{}, {} tokens x {}", kv_cache_dtype_name(m.kv_cache.dtype), m.context_tokens,
                   m.sequences)});
  const bool cpu = plan.budget.owner == MemoryOwner::Cpu;
  add({"workspace", "workspace", n.engine.workspace + (cpu ? n.engine.shared : 0)});
  if (!cpu) {
    add({"history", "history", n.engine.history, "one layer in BF16, for prompts"});
    add({"operands", "operands", n.engine.operands, "of a pass over prompts"});
  }
  add({"graphs", "graphs", n.graphs, "estimate"});
  add({"driver",
       cpu                                     ? ""
       : plan.budget.owner == MemoryOwner::Gpu ? "kernels"
                                               : "driver, kernels",
       n.driver, "estimate"});
  return rows;
}

// ---- what could be changed ---------------------------------------------------------------------

constexpr int kLeastUsefulContext = 1024;

// Each is judged as a plan with its flag beside those that were given would be.
class Changes {
 public:
  Changes(const MemoryPlan& plan, std::optional<PrefillWeights> wanted)
      : plan_(plan), wanted_(wanted) {}

  // The cheapest for the user first: nothing to notice, less room, other replies, another machine.
  std::vector<MemoryChange> list() {
    change_head();
    change_prefill();
    change_cache();
    free_others();
    shrink_room();
    change_precision();
    other_device();
    // Those that are enough by themselves; then whatever brings most.
    std::stable_sort(changes_.begin(), changes_.end(), [](const auto& a, const auto& b) {
      if (a.is_enough != b.is_enough) return a.is_enough;
      return !a.is_enough && a.saves > b.saves;
    });
    constexpr std::size_t kShown = 3;
    if (changes_.size() > kShown) changes_.resize(kShown);
    return std::move(changes_);
  }

 private:
  void add(std::string what, std::string why, const PlannedModel& changed) {
    const std::size_t total = total_of(changed);
    if (total >= plan_.needs.total) return;
    changes_.push_back({std::move(what), std::move(why), plan_.needs.total - total,
                        total <= plan_.budget.free_bytes});
  }

  [[nodiscard]] std::size_t total_of(const PlannedModel& changed) const {
    return needs_of(settle(changed, plan_.budget, wanted_), plan_.budget.owner).total;
  }

  // The same, with less context or fewer prompts beside where it is not enough alone.
  void add_with_room(const std::string& what, const std::string& why, PlannedModel changed) {
    const std::size_t total = total_of(changed);
    const bool is_some_help = total < plan_.needs.total && total > plan_.budget.free_bytes;
    const LargestFit fit =
        is_some_help ? largest_of_choices(changed, plan_.budget, wanted_) : LargestFit{};
    if (fit.context_tokens >= kLeastUsefulContext) {
      changed.context_tokens = fit.context_tokens;
      add(fmt::format("{} -c {}", what, fit.context_tokens), why + ", less context", changed);
    } else if (fit.sequences > 0) {
      changed.sequences = fit.sequences;
      add(fmt::format("{} -b {}", what, fit.sequences), why + ", fewer prompts at a time", changed);
    } else {
      add(what, why, changed);
    }
  }

  void change_head() {
    if (plan_.model.head == HeadChoice::Int8 || !is_quantized(plan_.model.precision)) return;
    PlannedModel changed = plan_.model;
    changed.head = HeadChoice::Int8;
    add_with_room("--head int8", "the head in INT8", std::move(changed));
  }

  // Where the user wants a copy for prefill; where nothing is said the plan has tried this already.
  void change_prefill() {
    if (plan_.model.precision != Precision::Int4 || wanted_ != PrefillWeights::Fp8) return;
    wanted_ = PrefillWeights::Int4;
    add_with_room("--prefill-weights int4", "prefill from the INT4 weights", plan_.model);
    wanted_ = PrefillWeights::Fp8;
  }

  void change_cache() {
    PlannedModel changed = plan_.model;
    if (changed.precision == Precision::F32 || changed.kv_cache.dtype == KvCacheDtype::Int4) return;
    KvCacheChoice int4 = changed.cache_choice;
    int4.has_dtype = true;
    int4.dtype = KvCacheDtype::Int4;
    try {
      changed.kv_cache = resolve_kv_cache(changed.config, changed.precision, int4);
    } catch (const Error&) {
      return;  // heads of another width
    }
    add_with_room("--kv-cache-dtype int4", "keys and values in INT4", std::move(changed));
  }

  // Memory of the device that something else has.
  void free_others() {
    const MemoryBudget& budget = plan_.budget;
    if (budget.owner != MemoryOwner::Gpu || plan_.needs.total > budget.total_bytes) return;
    changes_.push_back({"end the other programs on this GPU", "fut doctor lists them",
                        budget.total_bytes - budget.free_bytes, true});
  }

  void shrink_room() {
    PlannedModel changed = plan_.model;
    if (plan_.largest.context_tokens > 0) {
      changed.context_tokens = plan_.largest.context_tokens;
      add(fmt::format("-c {}", changed.context_tokens), "less context", changed);
      changed = plan_.model;
    }
    if (plan_.largest.sequences > 0) {
      changed.sequences = plan_.largest.sequences;
      add(fmt::format("-b {}", changed.sequences), "fewer prompts at a time", changed);
    }
    if (plan_.largest.context_tokens == 0) shrink_both();
  }

  // As much context as there is for one prompt at a time.
  void shrink_both() {
    PlannedModel changed = plan_.model;
    const bool has_batch = changed.sequences > 1;
    changed.sequences = 1;
    const int fit = largest_of_choices(changed, plan_.budget, wanted_).context_tokens;
    // A batch of one is enough by itself: -b says so.
    if (fit >= changed.context_tokens) return;
    changed.context_tokens = fit > 0 ? fit : std::min(changed.context_tokens, kLeastUsefulContext);
    add(fmt::format("-c {}{}", changed.context_tokens, has_batch ? " -b 1" : ""), "less room",
        changed);
  }

  void change_precision() {
    for (const Precision precision : {Precision::Int4, Precision::Fp8, Precision::Bf16}) {
      PlannedModel changed = plan_.model;
      if (precision == changed.precision || (changed.is_packed && !is_quantized(precision)))
        continue;
      changed.precision = precision;
      try {
        if (is_quantized(precision)) check_packable(changed.config, changed.group_size);
        changed.kv_cache = resolve_kv_cache(changed.config, precision, changed.cache_choice);
      } catch (const Error&) {
        continue;
      }
      changed = with_prefill(changed, PrefillWeights::Fp8);
      // The two flags are not taken together.
      const bool replaces = wanted_ && precision != Precision::Int4;
      add_with_room(fmt::format("--precision {}{}", precision_name(precision),
                                replaces ? " in place of --prefill-weights" : ""),
                    weights_text(settle(changed, plan_.budget, wanted_)), changed);
    }
  }

  static const char* weights_text(const PlannedModel& model) {
    if (model.precision == Precision::Bf16) return "weights in BF16";
    if (model.precision == Precision::Fp8) return "one copy of the weights, in FP8";
    return model.prefill == PrefillWeights::Int4 ? "one copy of the weights, in INT4"
                                                 : "weights in FP8 and INT4";
  }

  // The smallest that is enough. Who plans for a CPU has no use for one.
  void other_device() {
    if (plan_.budget.owner == MemoryOwner::Cpu) return;
    for (const NamedGpu& gpu : named_gpus()) {
      MemoryBudget budget;
      budget.owner = MemoryOwner::UnseenGpu;
      budget.free_bytes = budget.total_bytes = gpu.memory_bytes;
      const PlannedModel settled = settle(plan_.model, budget, wanted_);
      if (needs_of(settled, budget.owner).total > budget.free_bytes) continue;
      changes_.push_back(
          {fmt::format("another GPU, as --gpu {} has it", gpu.name),
           fmt::format("{:.0f} GiB", static_cast<double>(gpu.memory_bytes) / (1 << 30)), 0, true});
      return;
    }
  }

  const MemoryPlan& plan_;
  std::optional<PrefillWeights> wanted_;
  std::vector<MemoryChange> changes_;
};

}  // namespace

PlannedModel plan_shape(std::string name, const ModelConfig& config, Precision precision,
                        const KvCacheOptions& kv_cache, HeadChoice head) {
  PlannedModel model;
  model.name = std::move(name);
  model.config = config;
  model.precision = precision;
  model.kv_cache = kv_cache;
  model.head = head;
  model.group_size = PackedOptions().group_size;
  if (is_quantized(precision)) check_packable(config, model.group_size);
  model.weights = weights_by_shape(model);
  return model;
}

PlannedModel plan_folder(const std::filesystem::path& folder, ModelConfig config,
                         Precision precision, const KvCacheOptions& kv_cache, HeadChoice head) {
  PlannedModel model;
  if (PackedModel::is_packed(folder)) {
    const int group_size = PackedModel::open(folder, config).info().options.group_size;
    model = plan_shape(folder.string(), config, precision, kv_cache, head);
    model.is_packed = true;
    model.group_size = group_size;
    model.weights = weights_by_shape(model);
    return model;
  }
  const Checkpoint checkpoint = Checkpoint::open(folder, config);
  model = plan_shape(folder.string(), config, precision, kv_cache, head);
  if (!is_quantized(precision)) {
    model.weights = checkpoint_weight_bytes(checkpoint, config, precision);
  }
  return model;
}

MemoryBudget budget_of(const Backend& backend) {
  const MemoryState memory = backend.memory();
  MemoryBudget budget;
  budget.device = backend.description();
  budget.owner = memory.is_the_hosts ? MemoryOwner::Cpu : MemoryOwner::Gpu;
  budget.total_bytes = memory.total_bytes;
  budget.free_bytes = memory.free_bytes;
  if (const NamedGpu* gpu = gpu_of_description(budget.device)) budget.roof = gpu->roof;
  return budget;
}

MemoryPlan make_plan(const PlannedModel& model, MemoryBudget budget,
                     std::optional<PrefillWeights> wanted) {
  MemoryPlan plan;
  plan.model = settle(model, budget, wanted);
  plan.needs = needs_of(plan.model, budget.owner);
  plan.largest = largest_of_choices(model, budget, wanted);
  plan.budget = std::move(budget);
  if (!plan.fits()) plan.changes = Changes(plan, wanted).list();
  return plan;
}

std::string plan_table(const MemoryPlan& plan) {
  const Unit unit = unit_of(plan);
  std::string text;
  const auto line = [&](std::string_view name, std::size_t bytes, std::string_view note) {
    text +=
        fmt::format("  {:<16}{:>12}{}{}\n", name, unit.text(bytes), note.empty() ? "" : "  ", note);
  };
  for (const Row& row : rows_of(plan)) line(row.name, row.bytes, row.note);
  line("needed", plan.needs.total, "");
  const MemoryBudget& budget = plan.budget;
  line("free", budget.free_bytes,
       budget.free_bytes == budget.total_bytes ? "" : "of " + unit.text(budget.total_bytes));
  return text;
}

namespace {

// Where the largest go beyond what fits with the weights of prefill that the table has.
std::string beyond_text(const MemoryPlan& plan) {
  if (!plan.fits()) return "";
  const LargestFit here = largest_of(plan.model, plan.budget);
  const bool more_context = plan.largest.context_tokens > here.context_tokens;
  const bool more_batch = plan.largest.sequences > here.sequences;
  if (!more_context && !more_batch) return "";
  const std::string context = fmt::format("context {}", here.context_tokens);
  const std::string batch = fmt::format("batch {}", here.sequences);
  return fmt::format("\nBeyond {} prefill has its weights from the INT4 copy.",
                     !more_batch     ? context
                     : !more_context ? batch
                                     : context + " or " + batch);
}

}  // namespace

std::string plan_verdict(const MemoryPlan& plan) {
  const Unit unit = unit_of(plan);
  const int most = plan.model.config.max_position_embeddings;
  std::string text = plan.fits()
                         ? "It fits."
                         : fmt::format("It does not fit: {} too little.",
                                       unit.text(plan.needs.total - plan.budget.free_bytes));
  text += plan.largest.context_tokens == 0
              ? fmt::format(" No context fits with batch {}", plan.model.sequences)
              : fmt::format(" Largest context with batch {}: {}{}", plan.model.sequences,
                            plan.largest.context_tokens,
                            plan.largest.context_tokens == most ? ", the model's own" : "");
  text += plan.largest.sequences == 0
              ? fmt::format("; no batch fits with context {}.", plan.model.context_tokens)
              : fmt::format("; largest batch with context {}: {}.", plan.model.context_tokens,
                            plan.largest.sequences);
  text += beyond_text(plan) + '\n';
  if (plan.changes.empty()) return text;
  text += "What to change, the cheapest first:\n";
  for (const MemoryChange& change : plan.changes) {
    text += fmt::format("  {}: {}{}{}\n", change.what, change.why,
                        change.saves == 0 ? "" : fmt::format(", saves {}", unit.text(change.saves)),
                        change.is_enough ? "" : " (not enough alone)");
  }
  return text;
}

void add_plan(Json& document, const MemoryPlan& plan) {
  Json& memory = document["memory"];
  for (const Row& row : rows_of(plan)) memory[row.key] = row.bytes;
  memory["needed"] = plan.needs.total;
  memory["free"] = plan.budget.free_bytes;
  memory["total"] = plan.budget.total_bytes;
  if (plan.model.precision == Precision::Int4) {
    document["prefill_weights"] = prefill_weights_name(plan.model.prefill);
  }
  document["fits"] = plan.fits();
  document["largest_context"] = plan.largest.context_tokens;
  document["largest_batch"] = plan.largest.sequences;
  document["changes"] = Json::array();
  for (const MemoryChange& change : plan.changes) {
    document["changes"].push_back({{"what", change.what},
                                   {"why", change.why},
                                   {"saves", change.saves},
                                   {"is_enough", change.is_enough}});
  }
}

void require_fit(const MemoryPlan& plan) {
  if (plan.fits()) return;
  const Unit unit = unit_of(plan);
  std::string verdict = plan_verdict(plan);
  verdict.pop_back();  // messages end without a newline
  throw capacity_error("{} needs {} in {} and {} are free on {}:\n{}{}", plan.model.name,
                       unit.text(plan.needs.total), precision_name(plan.model.precision),
                       unit.text(plan.budget.free_bytes), plan.budget.device, plan_table(plan),
                       verdict);
}

}  // namespace fut::app
