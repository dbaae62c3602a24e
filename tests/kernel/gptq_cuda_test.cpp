// What GPTQ asks of the GPU. Ops on rows give the bits of plain loops (tests/support/gptq_on_host.h); products
// and the factor, which libraries compute, are as near as their sums of float64 are; and a model's losses are
// the host quantiser's within 1 %.
#include <cmath>
#include <gtest/gtest.h>

#include "engine/quantize.h"
#include "kernels/numeric/formats.h"
#include "loader/packed_tensors.h"
#include "tests/kernel/gptq_cases.h"
#include "tests/support/backends.h"
#include "tests/support/gptq_on_host.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"
#include "tokenizer/tokenizer.h"

namespace fut::test {
namespace {

std::vector<GptqCase> all_cases() {
  std::vector<GptqCase> cases = gptq_cases();
  cases.push_back({77, 1152, 128});
  cases.push_back({33, 1152, 64});
  return cases;
}

// A case's arrays on the GPU.
struct OnGpu {
  OnGpu(Backend& backend, const GptqRows& rows)
      : h(backend, rows.h.values),
        upper(backend, rows.factor.upper.values),
        permuted(backend, rows.permuted),
        residual(backend, rows.residual),
        product(backend, rows.product),
        negated(backend, rows.room_for_block()),
        order(backend, rows.order),
        codes(backend, rows.codes),
        scales(backend, rows.scales),
        q{rows.rows, rows.cols, rows.group_size, codes.data(), scales.data()} {}

  Guarded<double> h, upper, permuted, residual, product, negated;
  Guarded<std::int32_t> order;
  Guarded<std::int8_t> codes;
  Guarded<std::uint16_t> scales;
  Int4Rows q;
};

TEST(GptqCuda, SweptBlocksAreTheHosts) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto backend = gpu_backend();
  HostGptqOps host;
  for (const GptqCase& problem : all_cases()) {
    GptqRows expected(problem);
    const OnGpu gpu(*backend, expected);
    for (std::int64_t begin = 0; begin < problem.cols; begin += kGptqBlockColumns) {
      std::vector<double> wanted = expected.room_for_block();
      host.sweep_block({expected.q(), begin, expected.permuted.data(),
                        expected.factor.upper.values.data(), expected.order.data(), wanted.data()});
      backend->offline_ops()->gptq().sweep_block({gpu.q, begin, gpu.permuted.data(),
                                                  gpu.upper.data(), gpu.order.data(),
                                                  gpu.negated.data()});
      EXPECT_TRUE(gpu.negated.values() == wanted) << begin;
    }
    EXPECT_TRUE(gpu.codes.values() == expected.codes);
  }
}

TEST(GptqCuda, BlocksOnTheirWayDownAreTheHosts) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto backend = gpu_backend();
  HostGptqOps host;
  for (const GptqCase& problem : all_cases()) {
    GptqRows expected(problem);
    const OnGpu gpu(*backend, expected);
    for (const bool fits_scales : {false, true}) {
      for (std::int64_t begin = 0; begin < problem.cols; begin += kGptqBlockColumns) {
        std::vector<double> wanted = expected.room_for_block();
        host.descend_block({expected.q(), begin, fits_scales, expected.h.values.data(),
                            expected.ridge, expected.residual.data(), expected.product.data(),
                            wanted.data()});
        backend->offline_ops()->gptq().descend_block({gpu.q, begin, fits_scales, gpu.h.data(),
                                                      expected.ridge, gpu.residual.data(),
                                                      gpu.product.data(), gpu.negated.data()});
        EXPECT_TRUE(gpu.negated.values() == wanted) << begin;
      }
      EXPECT_TRUE(gpu.codes.values() == expected.codes);
      EXPECT_TRUE(gpu.scales.values() == expected.scales);
      EXPECT_TRUE(gpu.residual.values() == expected.residual);
    }
    const Guarded<double> dots(*backend,
                               std::vector<double>(static_cast<std::size_t>(problem.rows), -1));
    std::vector<double> wanted(static_cast<std::size_t>(problem.rows));
    host.row_dots({problem.rows, problem.cols, expected.residual.data(), expected.product.data(),
                   wanted.data()});
    backend->offline_ops()->gptq().row_dots(
        {problem.rows, problem.cols, gpu.residual.data(), gpu.product.data(), dots.data()});
    EXPECT_EQ(dots.values(), wanted);
  }
}

TEST(GptqCuda, RowsAreGatheredCorrectedAndCodedAsTheHostsAre) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto backend = gpu_backend();
  GptqOps& ops = backend->offline_ops()->gptq();
  HostGptqOps host;
  GptqRows rows({33, 1152, 64});
  const OnGpu gpu(*backend, rows);
  const Guarded<float> weights(*backend, rows.weights);
  const Guarded<double> out(*backend, rows.residual);
  std::vector<double> expected(rows.residual.size());
  host.gather_columns({33, 1152, rows.weights.data(), nullptr, rows.order.data(), expected.data()});
  ops.gather_columns({33, 1152, weights.data(), nullptr, gpu.order.data(), out.data()});
  EXPECT_TRUE(out.values() == expected);
  host.gather_columns({33, 1152, nullptr, rows.product.data(), nullptr, expected.data()});
  ops.gather_columns({33, 1152, nullptr, gpu.product.data(), nullptr, out.data()});
  EXPECT_TRUE(out.values() == expected);
  host.residuals({rows.q(), rows.weights.data(), expected.data()});
  ops.residuals({gpu.q, weights.data(), out.data()});
  EXPECT_TRUE(out.values() == expected);

  const std::vector<double> diagonal = diagonal_of(rows.h);
  const Guarded<double> diagonal_there(*backend, diagonal);
  std::vector<float> target(rows.weights.size());
  const Guarded<float> target_there(*backend, target);
  host.correct_rows({33, 1152, rows.weights.data(), rows.residual.data(), 0.37, rows.order.data(),
                     diagonal.data(), target.data()});
  ops.correct_rows({33, 1152, weights.data(), gpu.residual.data(), 0.37, gpu.order.data(),
                    diagonal_there.data(), target_there.data()});
  EXPECT_TRUE(target_there.values() == target);

  std::vector<std::uint16_t> bf16(rows.weights.size());
  const Guarded<std::uint16_t> bf16_there(*backend, bf16);
  host.dequantise({rows.q(), bf16.data()});
  ops.dequantise({gpu.q, bf16_there.data()});
  EXPECT_TRUE(bf16_there.values() == bf16);

  GptqRows other({33, 1152, 64}, 8);
  const OnGpu other_there(*backend, other);
  std::vector<double> losses, rounded;
  for (int r = 0; r < 33; ++r) {
    losses.push_back(r % 5);
    rounded.push_back(r % 3 + 0.5);
  }
  const Guarded<double> losses_there(*backend, losses), rounded_there(*backend, rounded);
  host.keep_better({rows.q(), other.q(), losses.data(), rounded.data()});
  ops.keep_better({gpu.q, other_there.q, losses_there.data(), rounded_there.data()});
  EXPECT_TRUE(gpu.codes.values() == rows.codes);
  EXPECT_TRUE(gpu.scales.values() == rows.scales);
}

// Whole numbers: every sum is exact in float32.
TEST(GptqCuda, MomentsAreExactWhereTheyCanBe) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto backend = gpu_backend();
  GptqOps& ops = backend->offline_ops()->gptq();
  HostGptqOps host;
  constexpr std::int64_t kTokens = 300, kSize = 384;
  std::mt19937 engine(4);
  std::uniform_int_distribution<int> any(-9, 9);
  std::vector<std::uint16_t> x, x0;
  for (std::int64_t i = 0; i < kTokens * kSize; ++i) {
    x.push_back(f32_to_bf16(static_cast<float>(any(engine))));
    x0.push_back(f32_to_bf16(static_cast<float>(any(engine))));
  }
  const Guarded<std::uint16_t> x_there(*backend, x), x0_there(*backend, x0);
  std::vector<double> h(kSize * kSize, 7), g = h, diagonal(kSize);
  std::vector<float> partial(h.size());
  const Guarded<double> h_there(*backend, h), g_there(*backend, g),
      diagonal_there(*backend, diagonal);
  const Guarded<float> partial_there(*backend, partial);
  std::uint64_t bad = ~std::uint64_t{0};
  const Guarded<std::uint64_t> bad_there(*backend, {bad});
  const auto view = [](const std::uint16_t* data) {
    return ConstActivationView{data, DType::BF16, kTokens, kSize, kSize};
  };
  for (const bool adds : {false, true}) {
    host.add_token_products({view(x.data()), view(x.data()), adds, h.data(), partial.data()});
    host.add_token_products({view(x0.data()), view(x.data()), adds, g.data(), partial.data()});
    ops.add_token_products(
        {view(x_there.data()), view(x_there.data()), adds, h_there.data(), partial_there.data()});
    ops.add_token_products(
        {view(x0_there.data()), view(x_there.data()), adds, g_there.data(), partial_there.data()});
  }
  host.finish_moments({kSize, h.data(), g.data(), diagonal.data(), &bad});
  ops.finish_moments(
      {kSize, h_there.data(), g_there.data(), diagonal_there.data(), bad_there.data()});
  EXPECT_TRUE(h_there.values() == h);
  EXPECT_TRUE(g_there.values() == g);
  EXPECT_EQ(diagonal_there.values(), diagonal);
  EXPECT_EQ(bad_there.values()[0], bad);
}

// Errors of a factor grow with the condition of the matrix, which damping keeps below the largest diagonal
// element's hundredfold of the mean one.
TEST(GptqCuda, FactorsAndProductsAreNearTheHosts) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto backend = gpu_backend();
  GptqOps& ops = backend->offline_ops()->gptq();
  for (const GptqCase& problem : all_cases()) {
    const GptqRows rows(problem);
    const std::int64_t n = problem.cols;
    const OnGpu gpu(*backend, rows);
    const Guarded<double> upper(*backend, std::vector<double>(rows.h.values.size(), kPoison));
    const Guarded<std::int32_t> failed(*backend, {-1});
    ops.inverse_factor(
        {n, gpu.h.data(), gpu.order.data(), rows.ridge, upper.data(), failed.data()});
    EXPECT_EQ(failed.values()[0], 0);
    const std::vector<double> found = upper.values();
    double trace = 0;
    for (const double d : diagonal_of(rows.h)) trace += d + rows.ridge;
    const double condition = trace / rows.ridge;
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        const double wanted = rows.factor.upper.row(i)[j];
        const double value = found[static_cast<std::size_t>(i * n + j)];
        if (j < i) {
          ASSERT_EQ(value, 0) << i << " " << j;
        } else {
          ASSERT_NEAR(value, wanted,
                      static_cast<double>(n) * 0x1p-52 * condition / std::sqrt(rows.ridge));
        }
      }
    }
    // A product of whole numbers, added to some.
    std::vector<double> a, b, c;
    for (std::int64_t i = 0; i < problem.rows * n; ++i)
      a.push_back(static_cast<double>(i % 13 - 6));
    for (std::int64_t i = 0; i < n * n; ++i) b.push_back(static_cast<double>(i % 17 - 8));
    for (std::int64_t i = 0; i < problem.rows * n; ++i) c.push_back(static_cast<double>(i % 5));
    const Guarded<double> a_there(*backend, a), b_there(*backend, b), c_there(*backend, c);
    HostGptqOps host;
    for (const bool transposed : {false, true}) {
      host.add_product({{c.data(), problem.rows, n, n},
                        {a.data(), problem.rows, n, n},
                        {b.data(), n, n, n},
                        transposed,
                        !transposed});
      ops.add_product({{c_there.data(), problem.rows, n, n},
                       {a_there.data(), problem.rows, n, n},
                       {b_there.data(), n, n, n},
                       transposed,
                       !transposed});
      EXPECT_TRUE(c_there.values() == c);
    }
  }
}

// What has no factor is told by a number, and what comes after it is as if it had not been.
TEST(GptqCuda, AFactorThatThereIsNotIsToldAndLeavesNothing) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto backend = gpu_backend();
  GptqOps& ops = backend->offline_ops()->gptq();
  const GptqRows rows({4, 384, 128});
  const std::int64_t n = 384;
  const OnGpu gpu(*backend, rows);
  std::vector<double> indefinite = rows.h.values;
  indefinite[static_cast<std::size_t>(7 * n + 7)] = -1;
  const Guarded<double> broken(*backend, indefinite);
  const Guarded<std::int32_t> failed(*backend, {0});
  std::vector<std::vector<double>> factors;
  for (const Guarded<double>* h : {&gpu.h, &broken, &gpu.h}) {
    const Guarded<double> upper(*backend, std::vector<double>(rows.h.values.size(), kPoison));
    const double ridge = h == &broken ? 0 : rows.ridge;
    ops.inverse_factor({n, h->data(), gpu.order.data(), ridge, upper.data(), failed.data()});
    EXPECT_EQ(failed.values()[0] != 0, h == &broken);
    factors.push_back(upper.values());
  }
  EXPECT_TRUE(factors.front() == factors.back());

  std::vector<double> unfinished = rows.h.values, diagonal(static_cast<std::size_t>(n));
  unfinished[static_cast<std::size_t>(40 * n + 7)] = std::nan("");
  const Guarded<double> unfinished_there(*backend, unfinished), diagonal_there(*backend, diagonal);
  const Guarded<std::uint64_t> bad(*backend, {~std::uint64_t{0}});
  ops.finish_moments({n, unfinished_there.data(), nullptr, diagonal_there.data(), bad.data()});
  EXPECT_EQ(bad.values()[0], static_cast<std::uint64_t>(40 * n + 7));
}

// A layer's, for codes of one matrix that fall otherwise than the host's are noise of half a percent.
TEST(GptqCuda, LossesOfLayersAreTheHostsWithinAPercent) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto gpu = gpu_backend();
  const auto source = source_path("configs/demo-6m");
  const auto text = read_file(source_path("configs/calibration.txt"));
  const std::vector<std::int32_t> ids = Tokenizer::load(source).encode(text, {});
  PackedOptions options;
  options.method = QuantMethod::Gptq;
  options.rotate = true;
  options.calibration = {"text.txt", 1000, 0x12345678U};
  options.calibration_tokens = 16384;
  const TempFolder folder;
  std::string notice;
  const auto cpu = make_backend({.kind = DeviceRequest::Kind::Cpu}, notice);
  const ReportCard found = quantize_folder(*gpu, source, folder / "gpu", options, ids, false);
  const ReportCard expected = quantize_folder(*cpu, source, folder / "cpu", options, ids, false);
  ASSERT_EQ(found.matrices.size(), expected.matrices.size());
  ASSERT_EQ(found.matrices.size() % kNumPackedMatrices, 0U);
  for (std::size_t layer = 0; layer < found.matrices.size(); layer += kNumPackedMatrices) {
    double loss = 0, host_loss = 0;
    for (std::size_t m = layer; m < layer + kNumPackedMatrices; ++m) {
      const MatrixReport& matrix = found.matrices.at(m);
      EXPECT_EQ(matrix.name, expected.matrices[m].name);
      EXPECT_LE(matrix.relative_loss, matrix.rtn_loss) << matrix.name;
      loss += matrix.relative_loss;
      host_loss += expected.matrices[m].relative_loss;
    }
    EXPECT_NEAR(loss, host_loss, 0.01 * host_loss) << found.matrices[layer].name;  // asked for
  }
  // And the same bits once more.
  quantize_folder(*gpu, source, folder / "again", options, ids, false);
  EXPECT_TRUE(read_file(folder / "again" / "model.safetensors") ==
              read_file(folder / "gpu" / "model.safetensors"));
}

}  // namespace
}  // namespace fut::test
