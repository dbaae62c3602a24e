// GPTQ on a device, with a device whose ops are the host's: of one matrix every bit is quantize_gptq's,
// given the same moments; of a model losses are near the host's, which calibrates in float32.
#include "engine/gptq_on_device.h"

#include <csignal>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/quantize.h"
#include "engine/quantize_device.h"
#include "engine/quantize_memory.h"
#include "kernels/numeric/formats.h"
#include "tests/support/expect_error.h"
#include "tests/support/offline_on_host.h"
#include "tests/support/test_data.h"
#include "tests/unit/quantize_case.h"

namespace fut::test {
namespace {

// Tokens of small whole numbers: every sum of their products is exact.
HostRows whole_tokens(std::int64_t tokens, std::int64_t cols, std::uint32_t seed) {
  std::mt19937 engine(seed);
  std::uniform_int_distribution<int> any(-6, 6);
  HostRows rows{tokens, cols, std::vector<float>(static_cast<std::size_t>(tokens * cols))};
  for (std::int64_t i = 0; i < tokens * cols; ++i) {
    const std::int64_t c = i % cols;
    const int value = any(engine);
    // Columns of three sizes, some that go with their neighbour, two that are always zero.
    rows.values[static_cast<std::size_t>(i)] =
        c % 3 == 1 && i > 0
            ? rows.values[static_cast<std::size_t>(i - 1)] + static_cast<float>(value % 2)
            : static_cast<float>(value * (1 + static_cast<int>(c % 5)));
    if (c == 17 || c == cols - 1) rows.values[static_cast<std::size_t>(i)] = 0;
  }
  return rows;
}

HostMatrix normal_matrix(std::int64_t rows, std::int64_t cols) {
  std::mt19937 engine(3);
  std::normal_distribution<float> normal;
  HostMatrix w("layers.0.w", rows, cols);
  for (float& value : w.values) value = normal(engine);
  return w;
}

// Values as a backend keeps them.
class Bf16Rows {
 public:
  Bf16Rows(Backend& backend, const HostRows& rows)
      : rows_(rows.rows), cols_(rows.cols), buffer_(backend.allocate(rows.values.size() * 2)) {
    std::vector<std::uint16_t> values;
    for (const float v : rows.values) values.push_back(f32_to_bf16(v));
    backend.upload(buffer_.as<void>(), std::as_bytes(std::span(values)));
  }
  [[nodiscard]] ConstActivationView view() const {
    return {buffer_.as<void>(), DType::BF16, rows_, cols_, cols_};
  }

 private:
  std::int64_t rows_, cols_;
  DeviceBuffer buffer_;
};

struct OneMatrix {
  HostMatrix w = normal_matrix(150, 384);
  std::vector<HostRows> seen = {whole_tokens(200, 384, 1), whole_tokens(77, 384, 2)};
  std::vector<HostRows> meant = {whole_tokens(200, 384, 1), whole_tokens(77, 384, 2)};

  OneMatrix() {
    for (HostRows& rows : meant) {
      for (std::size_t i = 0; i < rows.values.size(); i += 7) rows.values[i] += 1;
    }
  }
};

struct Outcome {
  QuantizedMatrix matrix;
  MatrixReport report;
};

Outcome on_device(const OneMatrix& one, const GptqOptions& options, std::int64_t slab_rows) {
  const auto backend = offline_cpu_backend();
  const HostMatrix& w = one.w;
  GptqOnDevice device(*backend, {w.rows, w.cols}, options, {});
  device.begin(w.cols);
  for (std::size_t i = 0; i < one.seen.size(); ++i) {
    device.add(Bf16Rows(*backend, one.seen[i]).view(), Bf16Rows(*backend, one.meant[i]).view());
  }
  Outcome out{QuantizedMatrix(w.rows, w.cols, options.group_size), {}};
  out.report = device.quantize(
      w.name, {w.values.data(), w.rows, w.cols, w.cols},
      {w.rows, w.cols, options.group_size, out.matrix.codes.data(), out.matrix.scales.data()},
      slab_rows);
  return out;
}

Outcome on_host(const OneMatrix& one, const GptqOptions& options) {
  const std::int64_t n = one.w.cols;
  SquareMatrix h(n), g(n);
  for (std::size_t i = 0; i < one.seen.size(); ++i) {
    accumulate_hessian(h, one.seen[i].view(), {});
    HostRows off = one.meant[i];
    for (std::size_t v = 0; v < off.values.size(); ++v) off.values[v] -= one.seen[i].values[v];
    accumulate_products(g, off.view(), one.seen[i].view(), {});
  }
  mirror_lower(h);
  const GptqFactor factor = factor_hessian(one.w.name, h, options, {});
  const HostMatrix target = options.upstream_share > 0
                                ? upstream_target(one.w, g, factor, options.upstream_share, {})
                                : one.w;
  GptqResult result = quantize_gptq(target, h, factor, options, {});
  Outcome out{std::move(result.matrix), {}};
  out.report.relative_loss = result.report.loss / result.report.output_energy;
  out.report.rtn_loss = result.report.rtn_loss / result.report.output_energy;
  return out;
}

TEST(GptqOnDevice, EveryBitOfAMatrixIsTheHosts) {
  const OneMatrix one;
  for (const GptqOptions& options :
       {GptqOptions{}, GptqOptions{.group_size = 64}, GptqOptions{.upstream_share = 0},
        GptqOptions{.act_order = false, .descent_rounds = 2}, GptqOptions{.descent_rounds = 0}}) {
    const Outcome expected = on_host(one, options);
    for (const std::int64_t slab_rows : {64, 150, 512}) {
      const Outcome found = on_device(one, options, slab_rows);
      EXPECT_TRUE(found.matrix.codes == expected.matrix.codes);
      EXPECT_TRUE(found.matrix.scales == expected.matrix.scales);
      EXPECT_EQ(found.report.relative_loss, expected.report.relative_loss);
      EXPECT_EQ(found.report.rtn_loss, expected.report.rtn_loss);
      EXPECT_EQ(found.report.note, "2 inputs are always zero");
    }
  }
}

TEST(GptqOnDevice, SaysWhatTheHostSaysOfInputsThatNoFactorServes) {
  OneMatrix one;
  for (HostRows& rows : one.seen) std::ranges::fill(rows.values, 0.0F);
  expect_mentions(error_message(ErrorKind::Data, [&] { (void)on_device(one, {}, 64); }),
                  {"layers.0.w", "all 384 inputs are zero"});
  one.seen[1].values[5 * 384 + 9] = std::numeric_limits<float>::infinity();
  expect_mentions(error_message(ErrorKind::Data, [&] { (void)on_device(one, {}, 64); }),
                  {"layers.0.w", "inputs 9 and 0 sum to", "--precision f32"});
}

// ---- a model ------------------------------------------------------------------------------------

PackedOptions gptq_folder_options() {
  PackedOptions options;
  options.method = QuantMethod::Gptq;
  options.calibration = {"text.txt", 1000, 0x12345678U};
  options.calibration_tokens = 1024;
  return options;
}

class GptqFolderOnDevice : public testing::Test {
 protected:
  void SetUp() override {
    ToyModelOptions model = quantizable_toy_model();
    model.num_layers = 2;
    write_toy_model(source_, model);
  }
  ReportCard quantize(const std::filesystem::path& target, const QuantizeProgress& progress = {}) {
    const auto device = offline_cpu_backend();
    return quantize_folder(*device, source_, target, options_, ids_, false, progress);
  }

  TempFolder folder_;
  std::filesystem::path source_ = folder_ / "toy";
  PackedOptions options_ = gptq_folder_options();
  std::vector<std::int32_t> ids_ = random_ids(4000);
};

// The host computes in float32, the device in BF16: losses are sums over whole matrices, in which the
// roundings average out.
TEST_F(GptqFolderOnDevice, LossesAreTheHostsWithinAPercent) {
  const ReportCard found = quantize(folder_ / "device");
  const QuantizeCase toy(source_);
  const ReportCard expected =
      quantize_folder(*toy.backend, source_, folder_ / "host", options_, ids_, false);
  ASSERT_EQ(found.matrices.size(), expected.matrices.size());
  for (std::size_t m = 0; m < found.matrices.size(); ++m) {
    const MatrixReport& report = found.matrices[m];
    const MatrixReport& host = expected.matrices[m];
    EXPECT_EQ(report.name, host.name);
    EXPECT_LE(report.relative_loss, report.rtn_loss);
    EXPECT_NEAR(report.relative_loss, host.relative_loss, 0.01 * host.relative_loss) << host.name;
  }
}

TEST_F(GptqFolderOnDevice, GoesOnWhereAKilledRunWas) {
  quantize(folder_ / "whole");
  const std::filesystem::path target = folder_ / "target";
  const pid_t child = ::fork();
  if (child == 0) {
    quantize(target, [](std::string_view stage, std::uint64_t, std::uint64_t) {
      if (stage == "head") ::raise(SIGKILL);
    });
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  std::vector<std::string> stages;
  quantize(target, [&](std::string_view stage, std::uint64_t, std::uint64_t) {
    if (stages.empty() || stages.back() != stage) stages.emplace_back(stage);
  });
  EXPECT_EQ(stages.at(1), "head");
  EXPECT_TRUE(read_file(target / "model.safetensors") ==
              read_file(folder_ / "whole" / "model.safetensors"));
}

// ---- memory -------------------------------------------------------------------------------------

// What is left out is of rows and columns: sums, exponents, indices.
TEST_F(GptqFolderOnDevice, TakesTheMemoryThatItsSizesSay) {
  const QuantizeCase toy(source_, options_);
  const CalibrationWindows statistics = choose_windows(ids_, 64, 512);
  const CalibrationWindows gptq = choose_windows(ids_, 128, 1024);
  for (const bool rounds : {true, false}) {
    std::uint64_t allocated = 0;
    const auto device = offline_cpu_backend(&allocated);
    const DeviceQuantizer quantizer(*device, toy.weights, toy.config, toy.options, statistics, {},
                                    rounds ? CalibrationWindows() : gptq);
    const std::uint64_t planned =
        quantizer_bytes(toy.config, toy.options, {512, rounds ? 0 : 1024, rounds ? 64 : 128});
    std::int64_t edges = 0;
    for (int m = 0; m < kNumPackedMatrices; ++m) {
      const PackedMatrixShape shape = packed_matrix_shape(toy.config, static_cast<PackedMatrix>(m));
      edges += shape.rows + shape.cols;
    }
    EXPECT_GE(allocated, planned);
    EXPECT_LE(allocated, planned + 64 * static_cast<std::uint64_t>(edges));
  }
}

TEST(QuantizerMemory, OfRealSizesIsWithinItsBounds) {
  const auto planned = [](const char* preset) {
    const ModelConfig config =
        load_model_config_file(source_path(std::string("configs/") + preset));
    PackedOptions options = gptq_folder_options();
    options.calibration_tokens = kGptqCalibrationTokens;
    return quantizer_bytes(config, options, calibration_size(config, options, 1 << 22));
  };
  EXPECT_LT(planned("llama-3.1-8b.json"), 12'000'000'000U);
  EXPECT_LT(planned("llama-3.1-70b.json"), 40'000'000'000U);
}

}  // namespace
}  // namespace fut::test
