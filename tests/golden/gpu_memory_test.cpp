// The plan against the driver: a model of a real shape with random weights, a prompt and some steps, and
// what the GPU's memory lacks afterwards.
#include <gtest/gtest.h>

#include "engine/memory_needs.h"
#include "tests/support/backends.h"
#include "tests/support/test_data.h"

namespace fut::test {
namespace {

// What fut plan promises.
constexpr double kMostError = 0.03;

TEST(GpuMemory, IsPlannedWithinThreePercentOfWhatTheDriverSays) {
  FUT_REQUIRE_GPU_DEVICE();
  const ModelConfig config = load_model_config_file(source_path("configs/llama-3.1-8b.json"));
  constexpr Precision precision = Precision::Fp8;  // random weights of int4 have no prefill
  for (const int sequences : {1, 8}) {
    const auto backend = gpu_backend();
    const std::size_t before = backend->memory().free_bytes;
    EngineOptions options;
    options.context_tokens = 8192;
    options.max_sequences = sequences;
    options.kv_cache = resolve_kv_cache(config, precision, {});
    const MemoryNeeds needs =
        memory_needs(packed_weight_bytes(config, 128, precision, HeadChoice::Int8), config, options,
                     MemoryOwner::Gpu);
    Engine engine(*backend, Model::make_random(*backend, config, precision), options);
    const std::size_t loaded = backend->memory().free_bytes;
    for (int s = 0; s < sequences; ++s) {
      Request request;
      request.prompt.assign(600, 1000 + s);
      request.max_new_tokens = 8 + s;  // so that steps of every number of sequences are recorded
      engine.submit(std::move(request));
    }
    while (!engine.idle()) (void)engine.step();
    const std::size_t after = backend->memory().free_bytes;
    const double taken = static_cast<double>(before - after);
    std::printf(
        "%d sequences: planned %zu, taken %.0f, of which while running %zu (graphs and "
        "kernels planned: %zu, %zu)\n",
        sequences, needs.total, taken, loaded - after, needs.graphs, needs.driver);
    EXPECT_NEAR(static_cast<double>(needs.total), taken, kMostError * taken);
  }
}

}  // namespace
}  // namespace fut::test
