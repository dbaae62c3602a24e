// fut bench: how long a decode step takes, and how much of that memory alone would take.
#include <algorithm>
#include <cmath>

#include "apps/bench_serve.h"
#include "apps/commands.h"
#include "apps/logging.h"
#include "apps/model_lookup.h"
#include "apps/model_session.h"
#include "apps/sampling_settings.h"
#include "apps/signals.h"
#include "apps/words.h"
#include "engine/decode_bench.h"
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
  std::optional<Model> model;
};

Subject open_dummy(const BenchOptions& options) {
  Subject s;
  s.name = "random weights, " + options.dummy;
  const std::filesystem::path preset = find_preset(options.dummy);
  s.config = load_model_config_file(preset.empty() ? std::filesystem::path(options.dummy) : preset);
  std::string notice;
  s.backend = make_backend(options.model.device, notice);
  if (!notice.empty()) log_warning("{}", notice);
  s.precision = options.model.arithmetic.precision;
  s.kv_cache = resolve_kv_cache(s.config, s.precision, options.model.arithmetic.kv_cache);
  const std::string fault = s.backend->fault(sizes_of(s.config, s.precision));
  if (!fault.empty()) throw device_error("{}: {}", s.backend->description(), fault);
  s.model.emplace(Model::make_random(*s.backend, s.config, s.precision));
  return s;
}

Subject open_subject(const BenchOptions& options) {
  if (!options.dummy.empty()) return open_dummy(options);
  OpenedModel opened = open_model(options.model);
  Subject s;
  s.name = opened.folder.path.string();
  s.model.emplace(load_weights(*opened.backend, opened, options.model, NoRoom::Fail));
  s.backend = std::move(opened.backend);
  s.config = opened.folder.config;
  s.precision = opened.precision;
  s.kv_cache = opened.kv_cache;
  return s;
}

struct Timing {
  double median_us = 0;
  double p99_us = 0;
};

Timing summarise(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const auto at = [&](double share) {
    const double last = static_cast<double>(times.size() - 1);
    return times[static_cast<std::size_t>(std::lround(share * last))];
  };
  return {at(0.5), at(0.99)};
}

Timing time_of(Backend& backend, const Backend::Procedure& body, int warm_up, int repetitions) {
  for (int i = 0; i < warm_up; ++i) body();
  backend.synchronize();
  throw_if_interrupted();
  return summarise(backend.time_runs(body, repetitions));
}

Json row_of(std::string_view name, int calls, std::int64_t bytes, const Timing& t, double roof) {
  const double floor_us = static_cast<double>(bytes) / roof * kMicroseconds;
  return {{"name", name},
          {"calls", calls},
          {"bytes", bytes},
          {"us", t.median_us},
          {"us_p99", t.p99_us},
          {"floor_us", floor_us},
          {"of_roof", floor_us / t.median_us}};
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
  Subject s = open_subject(options);
  if (options.depth >= s.config.max_position_embeddings) {
    throw usage_error("--depth {}: this model has {} positions (max_position_embeddings)",
                      options.depth, s.config.max_position_embeddings);
  }
  Backend& backend = *s.backend;
  Json& document = reporter.document();
  document["model"] = s.name;
  document["device"] = backend.description();
  document["precision"] = precision_name(s.precision);
  document["kv_cache"] = kv_cache_dtype_name(s.kv_cache.dtype);
  document["batch"] = options.batch;
  document["depth"] = options.depth;

  DecodeBenchOptions wanted;
  wanted.sequences = options.batch;
  wanted.depth_tokens = options.depth;
  wanted.kv_cache = s.kv_cache;
  wanted.sampling = resolve_sampling(options.sampling, {}).params;
  if (options.serve) {
    DecodeBench decode(backend, *s.model, wanted);
    serve_bench(backend, decode, s.config.num_layers, reporter);
    return 0;
  }
  const double roof = backend.measure_read_roof();
  DecodeBench decode(backend, *s.model, wanted);
  const Timing step = time_of(backend, decode.step(), options.warm_up, options.repetitions);
  document["read_roof_bytes_per_second"] = roof;
  document["step"] = row_of("step", 1, decode.bytes_per_step(), step, roof);
  document["tokens_per_second"] = options.batch / step.median_us * kMicroseconds;

  const Json& row = document["step"];
  reporter.text(fmt::format(
      "{}\n{}, {}, cache {}, batch {}, depth {}\n"
      "step {:.4f} ms (p99 {:.4f}), {:.0f} tokens/s, {:.3f} GB to read, {:.1f} % of {:.2f} TB/s\n",
      s.name, backend.description(), precision_name(s.precision),
      kv_cache_dtype_name(s.kv_cache.dtype), options.batch, options.depth, step.median_us / 1e3,
      step.p99_us / 1e3, document["tokens_per_second"].get<double>(),
      static_cast<double>(decode.bytes_per_step()) / 1e9, 100 * row["of_roof"].get<double>(),
      roof / 1e12));
  if (options.log.verbosity >= kInfoVerbosity) {
    document["ops"] = Json::array();
    for (const DecodePart& part : decode.parts()) {
      const Timing t = time_of(backend, part.run, options.warm_up, options.repetitions);
      document["ops"].push_back(row_of(part.name, part.calls, part.bytes, t, roof));
      reporter.text(line_of(document["ops"].back()));
    }
  }
  reporter.finish();
  return 0;
}

}  // namespace fut::app
