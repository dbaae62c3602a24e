// See the header.
#include "apps/model_session.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <future>
#include <limits>
#include <utility>

#include "apps/logging.h"
#include "apps/memory_plan.h"
#include "apps/model_lookup.h"
#include "apps/progress.h"
#include "apps/quantized_copy.h"
#include "apps/values.h"
#include "apps/version.h"
#include "apps/words.h"
#include "engine/parallel.h"
#include "kernels/error.h"
#include "loader/checkpoint.h"
#include "loader/packed_model.h"
#include "loader/source_identity.h"
#include "tokenizer/sha256.h"

namespace fut::app {
namespace {

void tell(const std::vector<std::string>& notices) {
  for (const std::string& notice : notices) log_warning("{}", notice);
}

// The precision has to suit the folder before anything expensive happens.
void check_precision(const OpenedModel& model, const std::string& model_flag) {
  constexpr int kSmallestGroup = 64;
  if (is_quantized(model.precision)) {
    require_packable(model.folder, kSmallestGroup);
  } else if (model.is_packed) {
    throw no_original_weights(model.folder.path, model.folder.config, model.precision, model_flag);
  }
}

// A typed flag that would do nothing is a mistake.
void check_flags_act(const ArithmeticOptions& options, const OpenedModel& model) {
  if (!options.typed_head_flag.empty() && !is_quantized(model.precision)) {
    throw usage_error("{} is about the output head of int4 and fp8, and {} has none of its own",
                      options.typed_head_flag, precision_name(model.precision));
  }
  if (options.prefill_weights && model.precision != Precision::Int4) {
    throw usage_error("--prefill-weights is about int4, and this is {}",
                      precision_name(model.precision));
  }
  if (!options.typed_int4_cache_flag.empty() && model.kv_cache.dtype != KvCacheDtype::Int4) {
    throw usage_error(
        "{} is about an INT4 cache, and this one is in {}; {}", options.typed_int4_cache_flag,
        kv_cache_dtype_name(model.kv_cache.dtype),
        model.precision == Precision::F32 ? "f32 has no other" : "add --kv-cache-dtype int4");
  }
}

// Shown under -q too: the run computes in something else than it would have.
void warn_in_any_case(std::string_view message) {
  if (is_logged(LogLevel::Warning)) {
    log_warning("{}", message);
  } else {
    write_to_standard_error(fmt::format("warning: {}\n", message));
  }
}

Model load_checkpoint(Backend& backend, OpenedModel& model, bool check_finite) {
  const Checkpoint checkpoint = Checkpoint::open(model.folder.path, model.folder.config);
  tell(checkpoint.notices());
  Model weights = Model::load(backend, checkpoint, model.folder.config, model.precision,
                              rate_progress("loading"), check_finite);
  model.startup.lap("weights");
  return weights;
}

Model load_packed(Backend& backend, const std::filesystem::path& folder, OpenedModel& model,
                  const ModelOptions& options) {
  const ParallelFor threads = parallel_for_on_threads(options.device.cpu_threads);
  const PackedModel packed = PackedModel::open(folder, model.folder.config);
  tell(packed.notices());
  if (const std::string change = config_difference(packed.info().source, folder, sha256_hex);
      !change.empty()) {
    warn_in_any_case(fmt::format(
        "{}: {} when the weights were quantised: replies may be wrong; restore it, or change the "
        "original and quantise that",
        folder.string(), change));
  }
  model.startup.lap("file of weights");
  LoadTimes times;
  Model weights = Model::load_packed(backend, packed, model.folder.config, model.precision,
                                     options.arithmetic.head, rate_progress("loading"), threads,
                                     &times, model.prefill);
  model.startup.lap("weights", load_text(times));
  return weights;
}

Model load_copy(Backend& backend, OpenedModel& model, const ModelOptions& options) {
  const QuantizedCopy copy = find_or_make_copy(model.folder, options, backend);
  model.startup.lap("quantised copy");
  try {
    return load_packed(backend, copy.folder(), model, options);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::Data) throw;
    log_warning("{}; making the quantised copy anew", e.what());
  }
  const QuantizedCopy fresh = remake_copy(model.folder, options, backend);
  return load_packed(backend, fresh.folder(), model, options);
}

Model load_any(Backend& backend, OpenedModel& model, const ModelOptions& options, NoRoom no_room) {
  if (!is_quantized(model.precision)) {
    return load_checkpoint(backend, model, options.check_tensors);
  }
  if (model.is_packed) return load_packed(backend, model.folder.path, model, options);
  try {
    return load_copy(backend, model, options);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::Runtime || no_room == NoRoom::Fail) throw;
    warn_in_any_case(
        fmt::format("{}; without a quantised copy this run computes in bf16", e.what()));
  }
  model.precision = Precision::Bf16;
  model.kv_cache =
      resolve_kv_cache(model.folder.config, model.precision, options.arithmetic.kv_cache);
  return load_checkpoint(backend, model, options.check_tensors);
}

// For the tests: the n-th allocation of the device's memory fails.
constexpr const char* kFailingAllocationVariable = "FUT_TEST_FAILING_ALLOCATION";

// What the engine would take, before anything of it is there.
MemoryPlan plan_engine(const OpenedModel& model, const ModelOptions& options, int sequences) {
  PlannedModel planned = plan_folder(model.folder.path, model.folder.config, model.precision,
                                     model.kv_cache, options.arithmetic.head);
  planned.context_tokens = model.context_tokens;
  planned.sequences = sequences;
  planned.cache_choice = options.arithmetic.kv_cache;
  return make_plan(planned, budget_of(*model.backend), options.arithmetic.prefill_weights);
}

Engine load_planned(OpenedModel& model, const ModelOptions& options, int sequences) {
  const NoRoom no_room = options.arithmetic.precision_given ? NoRoom::Fail : NoRoom::ComputeInBf16;
  Model weights = load_weights(*model.backend, model, options, no_room);
  EngineOptions engine_options;
  engine_options.context_tokens = model.context_tokens;
  engine_options.max_sequences = sequences;
  engine_options.kv_cache = model.kv_cache;
  log_info("context {}, cache in {}",
           counted(static_cast<std::uint64_t>(model.context_tokens), "token"),
           kv_cache_dtype_name(model.kv_cache.dtype));
  return Engine(*model.backend, std::move(weights), engine_options);
}

// How long `make` takes, in seconds.
template <class Make>
auto timed(double& seconds, const Make& make) {
  const auto start = std::chrono::steady_clock::now();
  auto made = make();
  seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return made;
}

}  // namespace

std::unique_ptr<Backend> open_backend(DeviceRequest request) {
  if (const char* failing = std::getenv(kFailingAllocationVariable)) {
    request.failing_allocation = static_cast<int>(
        parse_integer({failing, kFailingAllocationVariable}, 1, std::numeric_limits<int>::max()));
  }
  std::string notice;
  auto backend = make_backend(request, notice);
  // That a build without GPU kernels computes on the CPU is no news.
  if (!notice.empty()) {
    log_message(built_with_cuda() ? LogLevel::Warning : LogLevel::Info, notice);
  }
  return backend;
}

void require_able(std::unique_ptr<Backend>& backend, const ModelConfig& config, Precision precision,
                  const DeviceRequest& request) {
  const std::string fault = backend->fault(sizes_of(config, precision));
  if (fault.empty()) return;
  if (request.kind != DeviceRequest::Kind::Auto) {
    throw device_error("{}: {}; use --device cpu", backend->description(), fault);
  }
  // float32 was asked for by name, and where it runs is no news.
  log_message(precision == Precision::F32 ? LogLevel::Info : LogLevel::Warning,
              fmt::format("running on the CPU: {}: {}", backend->description(), fault));
  DeviceRequest cpu = request;
  cpu.kind = DeviceRequest::Kind::Cpu;
  std::string notice;
  backend = make_backend(cpu, notice);
}

ModelSizes sizes_of(const ModelConfig& config, Precision precision) {
  return {config.hidden_size,  config.intermediate_size, config.num_q_heads,
          config.num_kv_heads, config.head_dim,          precision == Precision::F32};
}

void require_packable(const ModelFolder& folder, int group_size) {
  try {
    check_packable(folder.config, group_size);
  } catch (const Error& e) {
    throw Error(e.kind(), fmt::format("{}: {}", folder.path.string(), e.what()));
  }
}

OpenedModel open_model(const ModelOptions& options) {
  const FoundFolder found = find_model_folder(options.model, Wanted::Model, options.model_flag);
  for (const std::string& place : found.tried) log_info("looked for the model in {}", place);
  if (!found.notice.empty()) log_warning("{}", found.notice);
  // Making the device ready and reading a tokenizer take a good part of a second each.
  StartupTimes startup;
  double files_seconds = 0;
  auto files = std::async(std::launch::async, [&] {
    return timed(files_seconds, [&] { return read_model_folder(found.path); });
  });
  double device_seconds = 0;
  auto backend = timed(device_seconds, [&] { return open_backend(options.device); });
  OpenedModel model{std::move(backend), files.get(), false, {}, {}, {}, 0, std::move(startup)};
  model.startup.lap("program, device, files");
  model.startup.add_part("device", device_seconds, model.backend->description());
  model.startup.add_part("files", files_seconds, "tokenizer, config.json");
  tell(model.folder.notices);
  model.is_packed = PackedModel::is_packed(found.path);
  model.precision = options.arithmetic.precision;
  check_precision(model, options.model_flag);
  model.kv_cache =
      resolve_kv_cache(model.folder.config, model.precision, options.arithmetic.kv_cache);
  check_flags_act(options.arithmetic, model);
  require_able(model.backend, model.folder.config, model.precision, options.device);
  model.prefill = options.arithmetic.prefill_weights.value_or(PrefillWeights::Fp8);
  model.context_tokens =
      resolve_context_tokens(model.folder.config, options.context_tokens.value_or(0));
  return model;
}

Model load_weights(Backend& backend, OpenedModel& model, const ModelOptions& options,
                   NoRoom no_room) {
  const auto start = std::chrono::steady_clock::now();
  Model weights = load_any(backend, model, options, no_room);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  log_info("{}: {} of weights for {} in {} on {}", model.folder.path.string(),
           size_text(weights.bytes()), precision_name(model.precision),
           seconds_text(seconds.count()), backend.description());
  return weights;
}

Engine load_engine(OpenedModel& model, const ModelOptions& options, int sequences) {
  const MemoryPlan plan = plan_engine(model, options, sequences);
  require_fit(plan);
  model.prefill = plan.model.prefill;
  if (model.prefill == PrefillWeights::Int4 && !options.arithmetic.prefill_weights) {
    log_info(
        "a copy of the weights for prefill does not fit beside: it has them from the INT4 ones");
  }
  log_info("memory, {} on {}:\n{}", precision_name(model.precision), plan.budget.device,
           plan_table(plan));
  try {
    return load_planned(model, options, sequences);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::Capacity) throw;
    // Somebody else took memory meanwhile, or it lies in pieces.
    throw capacity_error("{}; what was planned:\n{}", e.what(), plan_table(plan));
  }
}

void add_arithmetic(Json& document, const OpenedModel& model) {
  document["precision"] = precision_name(model.precision);
  document.erase("prefill_weights");  // of an earlier answer
  if (model.precision == Precision::Int4) {
    document["prefill_weights"] = prefill_weights_name(model.prefill);
  }
  Json& cache = document["kv_cache"];
  cache = {{"dtype", kv_cache_dtype_name(model.kv_cache.dtype)}};  // nothing of an earlier answer
  if (model.kv_cache.dtype == KvCacheDtype::Int4) {
    cache["rotation_block"] = model.kv_cache.rotation_block;
    cache["group"] = model.kv_cache.group;
  }
}

}  // namespace fut::app
