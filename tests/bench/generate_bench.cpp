// Whole replies on the CPU reference: decode and prefill tokens a second, and load to first token.
// What one op costs is in ops_bench.
//
//   build/cpu/tests/generate_bench
//
// Counters: tokens/s; bytes_read/s is the weights' bytes times the passes over them, to be held
// against the machine's read bandwidth (ops_bench measures it).
#include <benchmark/benchmark.h>

#include "tests/support/model_runner.h"
#include "tests/support/test_data.h"

namespace fut::test {
namespace {

constexpr int kPromptTokens = 64;
constexpr int kReplyTokens = 128;

Request request(const ModelConfig& config, int prompt_tokens, int reply_tokens) {
  Request r;
  for (int i = 0; i < prompt_tokens; ++i)
    r.prompt.push_back((i * 37 + 11) % (config.vocab_size - 16));
  r.max_new_tokens = reply_tokens;
  r.sampling.sample.temperature = 0;
  return r;
}

// Runs one request; returns at its end. The first token's step is the prefill.
void drain(Engine& engine) {
  while (!engine.idle()) benchmark::DoNotOptimize(engine.step().data());
}

void decode(benchmark::State& state, const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder)) return state.SkipWithError("model not found");
  ModelRunner runner(folder);
  Engine engine(runner.backend(), runner.load_model(), {});
  for (auto _ : state) {
    state.PauseTiming();
    engine.submit(request(runner.config(), kPromptTokens, kReplyTokens + 1));
    while (engine.step().empty()) {
    }
    state.ResumeTiming();
    drain(engine);
  }
  const auto tokens = static_cast<double>(state.iterations()) * kReplyTokens;
  state.counters["tokens/s"] = benchmark::Counter(tokens, benchmark::Counter::kIsRate);
  state.counters["bytes_read/s"] = benchmark::Counter(
      tokens * static_cast<double>(engine.model().bytes()), benchmark::Counter::kIsRate);
}

void prefill(benchmark::State& state, const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder)) return state.SkipWithError("model not found");
  ModelRunner runner(folder);
  Engine engine(runner.backend(), runner.load_model(), {});
  const int tokens = runner.config().max_position_embeddings - 1;
  for (auto _ : state) {
    engine.submit(request(runner.config(), tokens, 1));
    drain(engine);
  }
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(state.iterations()) * tokens,
                                                  benchmark::Counter::kIsRate);
}

void load_to_first_token(benchmark::State& state, const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder)) return state.SkipWithError("model not found");
  for (auto _ : state) {
    ModelRunner runner(folder);
    Engine engine(runner.backend(), runner.load_model(), {});
    engine.submit(request(runner.config(), 6, 1));
    drain(engine);
  }
}

std::filesystem::path demo() {
  return source_path("configs/demo-6m");
}
std::filesystem::path novels() {
  return test_data("models/novels-19m");
}

BENCHMARK_CAPTURE(decode, demo_6m, demo())->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(decode, novels_19m, novels())->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(prefill, demo_6m, demo())->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(prefill, novels_19m, novels())->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(load_to_first_token, demo_6m, demo())
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace fut::test

BENCHMARK_MAIN();
