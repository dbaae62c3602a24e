// How long the offline mathematics takes on one core, at the shapes of a small model and of an 8B
// one, and a whole folder on all of them. Multiply-adds count as two operations; rates are for
// comparing builds and machines.
#include <benchmark/benchmark.h>
#include <random>
#include <vector>

#include "engine/quantize.h"
#include "loader/gptq.h"
#include "loader/int4_grid.h"
#include "loader/transforms.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"
#include "tokenizer/tokenizer.h"

namespace fut {
namespace {

std::vector<float> gaussian(std::int64_t count) {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(engine);
  return values;
}

HostMatrix matrix(std::int64_t rows, std::int64_t cols) {
  HostMatrix w("benchmark", rows, cols);
  w.values = gaussian(rows * cols);
  return w;
}

SquareMatrix hessian(std::int64_t size) {
  const std::int64_t tokens = 2 * size;
  const std::vector<float> x = gaussian(tokens * size);
  SquareMatrix h(size);
  accumulate_hessian(h, {x.data(), tokens, size, size}, {});
  mirror_lower(h);
  return h;
}

void report(benchmark::State& state, const char* what, double each) {
  state.counters[what] = benchmark::Counter(each * static_cast<double>(state.iterations()),
                                            benchmark::Counter::kIsRate);
}

void round_to_nearest(benchmark::State& state) {
  const HostMatrix w = matrix(1152, 384);
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        quantize_rtn(w, {}, static_cast<int>(state.range(0)), ScaleRule::Searched, {}));
  }
  report(state, "weights", static_cast<double>(w.rows * w.cols));
}
BENCHMARK(round_to_nearest)->ArgName("group")->Arg(128)->Arg(64)->Unit(benchmark::kMillisecond);

void accumulate(benchmark::State& state) {
  const std::int64_t n = state.range(0), tokens = 512;
  const std::vector<float> x = gaussian(tokens * n);
  SquareMatrix h(n);
  for (auto _ : state) accumulate_hessian(h, {x.data(), tokens, n, n}, {});
  report(state, "flops", static_cast<double>(tokens * n * n));  // one triangle
}
BENCHMARK(accumulate)->ArgName("size")->Arg(1152)->Arg(4096)->Unit(benchmark::kMillisecond);

void factor(benchmark::State& state) {
  const std::int64_t n = state.range(0);
  const SquareMatrix h = hessian(n);
  for (auto _ : state) {
    SquareMatrix u = h;
    benchmark::DoNotOptimize(inverse_upper_factor(u, {}));
  }
  const auto size = static_cast<double>(n);
  report(state, "flops", size * size * size * 2 / 3);
}
BENCHMARK(factor)->ArgName("size")->Arg(384)->Arg(1152)->Unit(benchmark::kMillisecond);

void gptq(benchmark::State& state) {
  const std::int64_t n = 1152;
  const HostMatrix w = matrix(384, n);
  const SquareMatrix h = hessian(n);
  const GptqOptions options{.descent_rounds = static_cast<int>(state.range(0))};
  const GptqFactor shared = factor_hessian("benchmark", h, options, {});
  for (auto _ : state) {
    benchmark::DoNotOptimize(quantize_gptq(w, h, shared, options, {}));
  }
  report(state, "weights", static_cast<double>(w.rows * w.cols));
}
BENCHMARK(gptq)->ArgName("descent")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

void rotate(benchmark::State& state) {
  const HostMatrix w = matrix(256, state.range(0));
  const Rotation rotation(state.range(0), 1);
  for (auto _ : state) {
    HostMatrix rotated = w;
    rotate_inputs(rotated, rotation, {});
    benchmark::DoNotOptimize(rotated);
  }
  report(state, "weights", static_cast<double>(w.rows * w.cols));
}
BENCHMARK(rotate)->ArgName("size")->Arg(384)->Arg(4096)->Unit(benchmark::kMillisecond);

// The demonstration model from checkpoint to packed folder.
void folder(benchmark::State& state) {
  const auto source = test::source_path("configs/demo-6m");
  const auto text = test::read_file(test::source_path("configs/calibration.txt"));
  const std::vector<std::int32_t> ids = Tokenizer::load(source).encode(text, {});
  std::string notice;
  const auto backend = make_backend({.kind = DeviceRequest::Kind::Cpu}, notice);
  PackedOptions options;
  options.method = state.range(0) == 0 ? QuantMethod::Rtn : QuantMethod::Gptq;
  options.rotate = options.method == QuantMethod::Gptq;
  options.calibration_tokens = state.range(1);
  const test::TempFolder target;
  for (auto _ : state) {
    quantize_folder(*backend, source, target / "packed", options, ids, true);
  }
  report(state, "tokens", static_cast<double>(options.calibration_tokens));
}
BENCHMARK(folder)
    ->ArgNames({"gptq", "tokens"})
    ->Args({0, kRtnCalibrationTokens})
    ->Args({1, 32768})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace fut

BENCHMARK_MAIN();
