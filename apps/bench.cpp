// fut bench: how long a decode step takes, and how much of that memory alone would take; or the same of
// prompts and arithmetic.
#include "apps/bench/compare_reports.h"
#include "apps/bench/latency.h"
#include "apps/bench/latency_flags.h"
#include "apps/bench/prompts.h"
#include "apps/bench/serve.h"
#include "apps/bench/statistics.h"
#include "apps/commands.h"
#include "apps/input_files.h"
#include "apps/logging.h"
#include "apps/model_lookup.h"
#include "apps/model_session.h"
#include "apps/output.h"
#include "apps/sampling_settings.h"
#include "apps/signals.h"
#include "apps/words.h"
#include "engine/decode_bench.h"
#include "engine/roofline.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

constexpr double kMicroseconds = 1e6;  // of a second

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

// Before weights are read.
void check_lengths(const BenchOptions& options, const ModelConfig& config) {
  if (options.latency.end_to_end) {
    check_latency_lengths(options.latency, config);
  } else if (!options.prompts.empty()) {
    check_prompts(options.prompts, config);
  } else if (options.depth >= config.max_position_embeddings) {
    throw usage_error("--depth {}: this model has {} positions (max_position_embeddings)",
                      options.depth, config.max_position_embeddings);
  }
}

Subject open_dummy(const BenchOptions& options) {
  Subject s;
  s.name = "random weights, " + options.dummy;
  const std::filesystem::path preset = find_preset(options.dummy);
  s.config = load_model_config_file(preset.empty() ? std::filesystem::path(options.dummy) : preset);
  if (options.layers > 0) s.config.num_layers = options.layers;
  check_lengths(options, s.config);
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

Subject open_subject(const BenchOptions& options) {
  if (!options.dummy.empty()) return open_dummy(options);
  OpenedModel opened = open_model(options.model);
  check_lengths(options, opened.folder.config);
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
int measure_prompts(const BenchOptions& options, Subject& s, Reporter& reporter) {
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
  bench_prompts(*s.backend, *s.model, options.prompts, s.kv_cache, sampling, reporter);
  reporter.finish(false);
  return 0;
}

Summary time_of(Backend& backend, const Backend::Procedure& body, int warm_up, int repetitions) {
  for (int i = 0; i < warm_up; ++i) body();
  backend.synchronize();
  throw_if_interrupted();
  return summarise(backend.time_runs(body, repetitions));
}

Json row_of(std::string_view name, int calls, std::int64_t bytes, const Summary& us, double roof) {
  const double floor_us = static_cast<double>(bytes) / roof * kMicroseconds;
  return {{"name", name},
          {"calls", calls},
          {"bytes", bytes},
          {"us", us.median},
          {"us_p99", us.p99},
          {"floor_us", floor_us},
          {"of_roof", floor_us / us.median}};
}

std::string line_of(const Json& row) {
  const double us = row["us"].get<double>();
  const int calls = row["calls"].get<int>();
  return fmt::format("  {:<18} {:>4} {:>9.3f} MB {:>9.2f} us {:>9.2f} us each {:>6.1f} %\n",
                     row["name"].get<std::string>(), calls, row["bytes"].get<double>() / 1e6, us,
                     us / calls, 100 * row["of_roof"].get<double>());
}

}  // namespace

int bench(const BenchOptions& options, Reporter& reporter) {
  if (options.serve && reporter.format() != OutputFormat::JsonLines) {
    throw usage_error("--serve answers in lines of JSON: -o jsonl goes with it");
  }
  if (options.serve && options.prompts.size() > 1) {
    throw usage_error("--serve stays with one pack of --prompts, not {}", options.prompts.size());
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
    plot.emplace(options.latency.plot_file);
  }
  Subject s = open_subject(options);
  describe(s, reporter.document());
  if (options.latency.end_to_end) {
    return latency_bench(
        {s.name, *s.backend, std::move(*s.model), s.kv_cache, s.folder ? &*s.folder : nullptr},
        options, plot ? &*plot : nullptr, reporter);
  }
  if (!options.prompts.empty()) return measure_prompts(options, s, reporter);
  Backend& backend = *s.backend;
  Json& document = reporter.document();
  document["batch"] = options.batch;
  document["depth"] = options.depth;

  DecodeBenchOptions wanted;
  wanted.sequences = options.batch;
  wanted.depth_tokens = options.depth;
  wanted.kv_cache = s.kv_cache;
  wanted.sampling = resolve_sampling(options.sampling, {}).params;
  if (options.serve) {
    DecodeBench decode(backend, *s.model, wanted);
    serve_bench(
        backend,
        {[&] { return decode.step(); }, [&] { return decode.layers(); }, s.config.num_layers, 0},
        reporter);
    return 0;
  }
  const double roof = backend.measure_read_roof();
  DecodeBench decode(backend, *s.model, wanted);
  const Summary step = time_of(backend, decode.step(), options.warm_up, options.repetitions);
  document["read_roof_bytes_per_second"] = roof;
  document["step"] = row_of("step", 1, decode.bytes_per_step(), step, roof);
  document["tokens_per_second"] = options.batch / step.median * kMicroseconds;

  const Json& row = document["step"];
  reporter.text(fmt::format(
      "{}\n{}, {}, cache {}, batch {}, depth {}\n"
      "step {:.4f} ms (p99 {:.4f}), {:.0f} tokens/s, {:.3f} GB to read, {:.1f} % of {:.2f} TB/s\n",
      s.name, backend.description(), precision_name(s.precision),
      kv_cache_dtype_name(s.kv_cache.dtype), options.batch, options.depth, step.median / 1e3,
      step.p99 / 1e3, document["tokens_per_second"].get<double>(),
      static_cast<double>(decode.bytes_per_step()) / 1e9, 100 * row["of_roof"].get<double>(),
      roof / 1e12));
  if (options.log.verbosity >= kInfoVerbosity) {
    document["ops"] = Json::array();
    for (const DecodePart& part : decode.parts()) {
      const Summary t = time_of(backend, part.run, options.warm_up, options.repetitions);
      document["ops"].push_back(row_of(part.name, part.calls, part.bytes, t, roof));
      reporter.text(line_of(document["ops"].back()));
    }
  }
  reporter.finish();
  return 0;
}

}  // namespace fut::app
