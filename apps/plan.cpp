// fut plan: whether a model fits on a device, here or named, and how fast it could be at best.
#include <algorithm>

#include "apps/commands.h"
#include "apps/gpu_catalog.h"
#include "apps/logging.h"
#include "apps/memory_plan.h"
#include "apps/model_lookup.h"
#include "apps/model_session.h"
#include "apps/words.h"
#include "kernels/error.h"
#include "loader/packed_tensors.h"

namespace fut::app {
namespace fs = std::filesystem;
namespace {

constexpr double kMilliseconds = 1e3;  // of a second

// What -m names: a folder, or a shape alone.
struct Subject {
  std::string name;
  fs::path folder;  // empty: a shape
  ModelConfig config;
};

Subject find_subject(const std::string& argument) {
  std::error_code ignored;
  fs::path shape = find_preset(argument);
  if (shape.empty() && fs::path(argument).extension() == ".json" &&
      fs::is_regular_file(argument, ignored)) {
    shape = argument;
  }
  if (!shape.empty()) return {argument, {}, load_model_config_file(shape)};
  const FoundFolder found = find_model_folder(argument, Wanted::Model);
  if (!found.notice.empty()) log_warning("{}", found.notice);
  ModelConfig config = load_model_config(found.path);
  for (const std::string& notice : config.notices) log_warning("{}", notice);
  if (!has_weights(found.path)) {
    log_warning("{}: no weights (*.safetensors) are there; planning by config.json",
                found.path.string());
    return {found.path.string(), {}, std::move(config)};
  }
  return {found.path.string(), found.path, std::move(config)};
}

MemoryBudget find_budget(const PlanOptions& options, const ModelConfig& config) {
  const Precision precision = options.model.arithmetic.precision;
  const DeviceRequest& device = options.model.device;
  MemoryBudget budget;
  if (options.gpu.empty() && !options.memory_gb) {
    std::unique_ptr<Backend> backend = open_backend(device);
    require_able(backend, config, precision, device);
    return budget_of(*backend);
  }
  const bool cpu = options.memory_gb && device.kind == DeviceRequest::Kind::Cpu;
  if (!cpu && precision == Precision::F32) {
    throw usage_error("--precision f32 is the CPU's alone; add --device cpu");
  }
  if (const NamedGpu* gpu = gpu_by_name(options.gpu)) {
    budget.device = fmt::format("{}, empty", gpu->device_name);
    budget.total_bytes = gpu->memory_bytes;
    budget.roof = gpu->roof;
  } else {
    constexpr double kGigabyte = 1e9;
    // Flags are read as floats, of which the shortest text is the one that was typed.
    budget.device = fmt::format("a {} with {} GB free", cpu ? "machine" : "GPU",
                                static_cast<float>(*options.memory_gb));
    budget.total_bytes = static_cast<std::size_t>(*options.memory_gb * kGigabyte);
  }
  budget.owner = cpu ? MemoryOwner::Cpu : MemoryOwner::UnseenGpu;
  budget.free_bytes = budget.total_bytes;
  return budget;
}

PlannedModel plan_subject(const PlanOptions& options, const Subject& subject) {
  const ArithmeticOptions& arithmetic = options.model.arithmetic;
  const KvCacheOptions cache =
      resolve_kv_cache(subject.config, arithmetic.precision, arithmetic.kv_cache);
  PlannedModel model =
      subject.folder.empty()
          ? plan_shape(subject.name, subject.config, arithmetic.precision, cache, arithmetic.head)
          : plan_folder(subject.folder, subject.config, arithmetic.precision, cache,
                        arithmetic.head);
  if (model.is_packed && !is_quantized(model.precision)) {
    throw data_error(
        "{}: a quantised folder, which has nothing to compute in {} with: use "
        "--precision int4 or fp8, or the checkpoint that it was made from",
        subject.name, precision_name(model.precision));
  }
  model.context_tokens =
      resolve_context_tokens(subject.config, options.model.context_tokens.value_or(0));
  model.cache_choice = arithmetic.kv_cache;
  model.sequences = options.batch;
  return model;
}

// ---- how fast ----------------------------------------------------------------------------------

// At best, by the roof of the device.
struct Speed {
  double empty_seconds = 0;  // of a decode step
  double full_seconds = 0;   // of one behind a full context
  std::int64_t prompt_tokens = 0;
  double prefill_seconds = 0;
};

Speed predict(const MemoryPlan& plan) {
  constexpr std::int64_t kPromptTokens = 2048;
  const PlannedModel& m = plan.model;
  const RooflineModel model{m.config, m.precision, m.kv_cache, m.weights};
  const Roof& roof = *plan.budget.roof;
  Speed speed;
  speed.empty_seconds = decode_step_seconds(model, roof, m.sequences, 0);
  speed.full_seconds = decode_step_seconds(model, roof, m.sequences, m.context_tokens - 1);
  speed.prompt_tokens = std::min<std::int64_t>(kPromptTokens, m.context_tokens - 1);
  speed.prefill_seconds = prefill_seconds(model, roof, speed.prompt_tokens);
  return speed;
}

std::string speed_text(const MemoryPlan& plan) {
  if (plan.budget.owner == MemoryOwner::Cpu) {
    return "Speed on the CPU, the reference, is not predicted: fut bench measures it.\n";
  }
  if (!plan.budget.roof) {
    return fmt::format("For what its speed could be: --gpu NAME ({}).\n", gpu_names());
  }
  const Speed s = predict(plan);
  const int batch = plan.model.sequences;
  return fmt::format(
      "At best, by the roofline: a decode step {:.3f} ms with empty caches ({:.0f} tokens/s), "
      "{:.3f} "
      "ms with full ones\n({:.0f} tokens/s); prefill of {} tokens {:.2f} ms ({:.0f} tokens/s).\n",
      s.empty_seconds * kMilliseconds, batch / s.empty_seconds, s.full_seconds * kMilliseconds,
      batch / s.full_seconds, s.prompt_tokens, s.prefill_seconds * kMilliseconds,
      static_cast<double>(s.prompt_tokens) / s.prefill_seconds);
}

Json speed_document(const MemoryPlan& plan) {
  if (plan.budget.owner == MemoryOwner::Cpu || !plan.budget.roof) return nullptr;
  const Speed s = predict(plan);
  return {{"decode_ms_empty", s.empty_seconds * kMilliseconds},
          {"decode_ms_full", s.full_seconds * kMilliseconds},
          {"prompt_tokens", s.prompt_tokens},
          {"prefill_ms", s.prefill_seconds * kMilliseconds}};
}

// ---- what it takes elsewhere --------------------------------------------------------------------

// Of the copy that fut run keeps; 0: it makes none.
std::uint64_t copy_bytes(const PlannedModel& model) {
  if (model.is_packed || !is_quantized(model.precision)) return 0;
  std::uint64_t sum = 0;
  for (const PackedTensor& tensor : packed_tensors(model.config, model.group_size, true)) {
    sum += tensor_bytes(tensor);
  }
  return sum;
}

std::string prefill_text(const PlannedModel& model) {
  if (model.prefill == PrefillWeights::Fp8) return "";
  return "Prefill has its weights from the INT4 copy, expanded for each product: a little slower "
         "and "
         "one more rounding.\n";
}

std::string elsewhere_text(const MemoryPlan& plan) {
  std::string text = fmt::format("Loading takes {} of the host's memory in passing",
                                 size_text(plan.model.weights.passing));
  if (const std::uint64_t copy = copy_bytes(plan.model); copy > 0) {
    text += fmt::format("; the quantised copy takes {} of disk", size_text(copy));
  }
  return text + ".\n";
}

}  // namespace

int plan(const PlanOptions& options, Reporter& reporter) {
  const Subject subject = find_subject(options.model.model);
  // The device first where one is needed: a model is looked at closely only for one that is there.
  const MemoryBudget budget = find_budget(options, subject.config);
  const MemoryPlan plan =
      make_plan(plan_subject(options, subject), budget, options.model.arithmetic.prefill_weights);
  const PlannedModel& model = plan.model;
  Json& document = reporter.document();
  document["model"] = model.name;
  document["device"] = budget.device;
  document["precision"] = precision_name(model.precision);
  document["kv_cache"] = kv_cache_dtype_name(model.kv_cache.dtype);
  document["context_tokens"] = model.context_tokens;
  document["batch"] = model.sequences;
  add_plan(document, plan);
  document["roofline"] = speed_document(plan);
  document["loading_host_bytes"] = model.weights.passing;
  document["copy_bytes"] = copy_bytes(model);
  reporter.text(fmt::format("{} on {}: {}, cache {}, context {}, batch {}\n{}{}{}{}{}", model.name,
                            budget.device, precision_name(model.precision),
                            kv_cache_dtype_name(model.kv_cache.dtype), model.context_tokens,
                            model.sequences, plan_table(plan), plan_verdict(plan),
                            prefill_text(model), speed_text(plan), elsewhere_text(plan)));
  reporter.finish();
  return plan.fits() ? 0 : static_cast<int>(ErrorKind::Capacity);
}

}  // namespace fut::app
