// fut bench: how long a decode step takes, and how much of that memory alone would take; or the same of
// prompts and arithmetic.
#include "apps/bench/compare_reports.h"
#include "apps/bench/decode_steps.h"
#include "apps/bench/latency.h"
#include "apps/bench/latency_flags.h"
#include "apps/bench/machine_watch.h"
#include "apps/bench/prompts.h"
#include "apps/bench/serve.h"
#include "apps/commands.h"
#include "apps/input_files.h"
#include "apps/logging.h"
#include "apps/model_lookup.h"
#include "apps/model_session.h"
#include "apps/output.h"
#include "apps/sampling_settings.h"
#include "engine/decode_bench.h"
#include "engine/roofline.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

// What is measured: a model of a folder, or one of random weights.
struct Subject {
  std::string name;
  std::unique_ptr<Backend> backend;
  ModelConfig config;
  Precision precision = Precision::Int4;
  KvCacheOptions kv_cache;
  PrefillWeights prefill = PrefillWeights::Fp8;
  std::optional<Model> model;
  std::optional<ModelFolder> folder;
};

void fit_depths(std::vector<int>& depths, const ModelConfig& config) {
  constexpr int kDefaultDepth = 2048;
  const int most = config.max_position_embeddings - 1;  // the step's own token comes behind
  if (depths.empty()) depths = {std::min(kDefaultDepth, most)};
  for (const int depth : depths) {
    if (depth <= most) continue;
    throw usage_error(
        "--depth {}: this model has {} positions (max_position_embeddings); the largest depth is "
        "{}",
        depth, config.max_position_embeddings, most);
  }
}

// Before weights are read: what nobody asked for by number becomes what the model has positions for.
void fit_lengths(BenchOptions& options, const ModelConfig& config) {
  if (options.latency.end_to_end) {
    if (options.depths.empty()) options.depths = {0};
    check_latency_lengths(options, config);
  } else if (!options.prompts.empty()) {
    options.prompts = fitting_prompts(options.prompts, options.all_prompts, config);
  } else {
    fit_depths(options.depths, config);
  }
}

Subject open_dummy(BenchOptions& options) {
  Subject s;
  s.name = "random weights, " + options.dummy;
  const std::filesystem::path preset = find_preset(options.dummy);
  std::error_code error;
  if (preset.empty() && !std::filesystem::exists(options.dummy, error)) {
    throw data_error(
        "--dummy {}: there is no such file; a config.json is one, and llama-3.1-8b and "
        "llama-3.1-70b are shapes that need none",
        options.dummy);
  }
  s.config = load_model_config_file(preset.empty() ? std::filesystem::path(options.dummy) : preset);
  if (options.layers > 0) s.config.num_layers = options.layers;
  fit_lengths(options, s.config);
  std::string notice;
  s.backend = make_backend(options.model.device, notice);
  if (!notice.empty()) log_warning("{}", notice);
  s.precision = options.model.arithmetic.precision;
  s.kv_cache = resolve_kv_cache(s.config, s.precision, options.model.arithmetic.kv_cache);
  const std::string fault = s.backend->fault(sizes_of(s.config, s.precision));
  if (!fault.empty()) throw device_error("{}: {}", s.backend->description(), fault);
  s.prefill = options.model.arithmetic.prefill_weights.value_or(PrefillWeights::Fp8);
  const RandomFor steps = options.latency.end_to_end ? RandomFor::Both
                          : options.prompts.empty()  ? RandomFor::Decode
                                                     : RandomFor::Prefill;
  s.model.emplace(Model::make_random(*s.backend, s.config, s.precision, steps, s.prefill));
  return s;
}

// The lengths in the options fit the subject then.
Subject open_subject(BenchOptions& options) {
  if (!options.dummy.empty()) return open_dummy(options);
  OpenedModel opened = open_model(options.model);
  fit_lengths(options, opened.folder.config);
  Subject s;
  s.name = opened.folder.path.string();
  s.model.emplace(load_weights(*opened.backend, opened, options.model, NoRoom::Fail));
  s.backend = std::move(opened.backend);
  s.config = opened.folder.config;
  s.precision = opened.precision;
  s.kv_cache = opened.kv_cache;
  s.prefill = opened.prefill;
  s.folder.emplace(std::move(opened.folder));
  return s;
}

void describe(const Subject& s, Json& document) {
  document["model"] = s.name;
  document["device"] = s.backend->description();
  document["precision"] = precision_name(s.precision);
  if (s.precision == Precision::Int4) document["prefill_weights"] = prefill_weights_name(s.prefill);
  document["kv_cache"] = kv_cache_dtype_name(s.kv_cache.dtype);
}

// Prompts in place of decode steps.
int measure_prompts(const BenchOptions& options, Subject& s, MachineWatch& watch,
                    Reporter& reporter) {
  const SamplingParams sampling = resolve_sampling(options.sampling, {}).params;
  if (options.serve) {
    const PromptPack& pack = options.prompts.front();
    PrefillBench bench(*s.backend, *s.model, {pack, s.kv_cache, sampling});
    const double flops = prefill_flops(s.config, pack.lengths).total();
    serve_bench(*s.backend,
                {[&] { return bench.step(); }, [&] { return bench.layers(); }, s.config.num_layers,
                 flops / s.config.num_layers},
                reporter);
    return 0;
  }
  reporter.text(fmt::format("{}\n{}, {}{}, cache {}\n", s.name, s.backend->description(),
                            precision_name(s.precision),
                            s.prefill == PrefillWeights::Int4 ? " with prefill from INT4" : "",
                            kv_cache_dtype_name(s.kv_cache.dtype)));
  bench_prompts(*s.backend, *s.model, options.prompts, s.kv_cache, sampling, watch, reporter);
  reporter.finish(false);
  return 0;
}

std::vector<DecodeBenchOptions> steps_of(const BenchOptions& options, const Subject& s) {
  const SamplingParams sampling = resolve_sampling(options.sampling, {}).params;
  std::vector<DecodeBenchOptions> settings;
  for (const int batch : options.batches) {
    for (const int depth : options.depths) settings.push_back({batch, depth, s.kv_cache, sampling});
  }
  return settings;
}

// Decode steps, and the report about them.
int measure_decode(const BenchOptions& options, Subject& s, MachineWatch& watch, Output* plot,
                   Reporter& reporter) {
  std::vector<DecodeBenchOptions> settings = steps_of(options, s);
  if (options.serve) {
    reporter.document()["batch"] = settings.front().sequences;
    reporter.document()["depth"] = settings.front().depth_tokens;
    DecodeBench decode(*s.backend, *s.model, settings.front());
    serve_bench(
        *s.backend,
        {[&] { return decode.step(); }, [&] { return decode.layers(); }, s.config.num_layers, 0},
        reporter);
    return 0;
  }
  measure_steps({s.name, *s.backend, *s.model, std::move(settings)}, options, watch, plot,
                reporter);
  return 0;
}

// What was on the GPUs before this process was, where it may be on one.
nvml::Report look_before(const BenchOptions& options) {
  return options.model.device.kind == DeviceRequest::Kind::Cpu ? nvml::Report() : nvml::look();
}

std::string watched_gpu(const BenchOptions& options, const Backend& backend) {
  if (options.model.device.kind == DeviceRequest::Kind::Cpu) return {};
  return gpu_of(backend.description(), survey_gpus());
}

}  // namespace

int bench(const BenchOptions& typed, Reporter& reporter) {
  BenchOptions options = typed;
  if (options.serve && reporter.format() != OutputFormat::JsonLines) {
    throw usage_error("--serve answers in lines of JSON: -o jsonl goes with it");
  }
  if (options.serve && options.prompts.size() > 1) {
    throw usage_error("--serve stays with one pack of --prompts, not {}", options.prompts.size());
  }
  if (options.serve && std::max(options.batches.size(), options.depths.size()) > 1) {
    throw usage_error("--serve stays with one setting; give one number with -b and one with -d");
  }
  if (options.layers > 0 && options.dummy.empty()) {
    throw usage_error("--layers goes with --dummy: a model has its own");
  }
  check_latency_flags(options);
  if (!options.latency.compare_old.empty()) {
    return compare_reports(options.latency.compare_old, options.latency.compare_new, reporter);
  }
  std::optional<Output> plot;  // opened first: what cannot be written is found before measuring
  if (!options.latency.plot_file.empty()) {
    refuse_input_as_output(options.latency.plot_file, input_files(options), "--plot");
    refuse_same_output(options.latency.plot_file, "--plot", options.output.file, "--output-file");
    plot.emplace(options.latency.plot_file);
  }
  nvml::Report before = look_before(options);
  Subject s = open_subject(options);
  MachineWatch watch(watched_gpu(options, *s.backend), std::move(before));
  describe(s, reporter.document());
  Output* picture = plot ? &*plot : nullptr;
  if (options.latency.end_to_end) {
    return latency_bench(
        {s.name, *s.backend, std::move(*s.model), s.kv_cache, s.folder ? &*s.folder : nullptr},
        options, watch, picture, reporter);
  }
  if (!options.prompts.empty()) return measure_prompts(options, s, watch, reporter);
  return measure_decode(options, s, watch, picture, reporter);
}

}  // namespace fut::app
