// A whole folder: what lies in it, what it depends on, and what is left of it where it fails.
#include <algorithm>
#include <csignal>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/quantize.h"
#include "engine/quantize_layer.h"
#include "kernels/numeric/activation_scales.h"
#include "kernels/numeric/formats.h"
#include "loader/packed_model.h"
#include "loader/packers.h"
#include "tests/support/expect_error.h"
#include "tests/support/opened_folder.h"
#include "tests/unit/quantize_case.h"

namespace fut::test {
namespace {

constexpr std::int64_t kTokens = 96;

PackedOptions folder_options(QuantMethod method = QuantMethod::Rtn) {
  PackedOptions options;
  options.method = method;
  options.rotate = method == QuantMethod::Gptq;
  options.calibration = {"text.txt", 1000, 0x12345678U};
  options.calibration_tokens = kTokens;
  return options;
}

// The toy model's context in one window.
ToyModelOptions short_toy_model() {
  ToyModelOptions options = quantizable_toy_model();
  options.files.max_position_embeddings = 32;
  return options;
}

ReportCard quantize(const std::filesystem::path& source, const std::filesystem::path& target,
                    const PackedOptions& options, int threads = 1,
                    const QuantizeProgress& progress = {}, std::int64_t num_ids = 500,
                    bool overwrite = false, const QuantizeResume& resume = {}) {
  std::string notice;
  const auto backend =
      make_backend({.kind = DeviceRequest::Kind::Cpu, .cpu_threads = threads}, notice);
  return quantize_folder(*backend, source, target, options, random_ids(num_ids), overwrite,
                         progress, threads, resume);
}

std::map<std::string, std::string> files_in(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files[entry.path().filename()] = read_file(entry.path());
  }
  return files;
}

class QuantizeFolder : public testing::Test {
 protected:
  void SetUp() override { write_toy_model(source_, short_toy_model()); }
  TempFolder folder_;
  std::filesystem::path source_ = folder_ / "toy";
  std::filesystem::path target_ = folder_ / "packed";
};

// ---- what lies in it ----------------------------------------------------------------------------

TEST_F(QuantizeFolder, HoldsRoundedWeightsAndTheStatisticsTheyCameFrom) {
  const PackedOptions options = folder_options();
  const ReportCard card = quantize(source_, target_, options);
  QuantizeCase toy(source_, options);
  const auto layers = toy.calibrate(choose_windows(random_ids(500), 32, kTokens));
  const OpenedFolder folder(target_);
  for (int i = 0; i < toy.config.num_layers; ++i) {
    const CalibratedLayer& calibrated = layers[static_cast<std::size_t>(i)];
    expect_statistics(folder.statistics(i), calibrated.statistics);
    const StackedLayer layer = stack_layer(calibrated.weights, i);
    // From the file's own statistics: nothing else went in.
    const QuantizedLayer rounded = quantize_layer_rtn(layer, folder.statistics(i), options, {});
    for (int m = 0; m < kNumPackedMatrices; ++m) {
      const auto index = static_cast<std::size_t>(m);
      const auto order = packed_matrix_shape(toy.config, static_cast<PackedMatrix>(m)).order;
      EXPECT_EQ(folder.part<std::uint8_t>(i, m, PackedPart::Int4),
                pack_int4(rounded.matrices[index], order, {}));
      const auto& report = card.matrices[static_cast<std::size_t>(4 * i + m)];
      EXPECT_EQ(report.name, layer[index].name);
      EXPECT_EQ(report.relative_error, rounded.reports[index].relative_error);
    }
  }
  EXPECT_EQ(folder.info().options, options);
  EXPECT_EQ(folder.info().report, report_card_json(card));
  EXPECT_EQ(card.calibration_tokens, kTokens);
  EXPECT_TRUE(card.notices.empty());
}

TEST_F(QuantizeFolder, HoldsFp8CopiesOfTheWeightsThemselves) {
  const PackedOptions options = folder_options();
  quantize(source_, target_, options);
  QuantizeCase toy(source_, options);
  const auto layers = toy.calibrate(choose_windows(random_ids(500), 32, kTokens));
  const OpenedFolder folder(target_);
  for (int i = 0; i < toy.config.num_layers; ++i) {
    const CalibratedLayer& calibrated = layers[static_cast<std::size_t>(i)];
    StackedLayer layer = stack_layer(calibrated.weights, i);
    std::vector<float> scales;
    for (const float amax : calibrated.statistics.value_amax) {
      scales.push_back(attention_output_scale(amax));
    }
    HostMatrix& o_proj = layer[1];
    for (std::int64_t r = 0; r < o_proj.rows; ++r) {
      // Query heads 0 and 1 read KV head 0, the other two KV head 1.
      for (std::int64_t c = 0; c < 256; ++c) o_proj.row(r)[c] /= scales[c < 128 ? 0 : 1];
    }
    for (int m = 0; m < kNumPackedMatrices; ++m) {
      const PackedE4m3 expected = pack_e4m3(layer[static_cast<std::size_t>(m)], {});
      EXPECT_EQ(folder.part<std::uint8_t>(i, m, PackedPart::E4m3), expected.codes);
      EXPECT_EQ(folder.part<float>(i, m, PackedPart::E4m3Scale), expected.scales);
    }
    EXPECT_EQ(folder.layer<float>(i, PackedLayerTensor::AttentionOutputScale), scales);
    EXPECT_EQ(folder.layer<float>(i, PackedLayerTensor::SwigluOutputScale),
              std::vector<float>{swiglu_output_scale(calibrated.statistics.swiglu_rms,
                                                     calibrated.statistics.swiglu_amax)});
  }
}

TEST_F(QuantizeFolder, HoldsEmbeddingAndHead) {
  PackedOptions options = folder_options();
  options.rotate = true;
  quantize(source_, target_, options);
  const QuantizeCase toy(source_, options);
  const OpenedFolder folder(target_);
  const auto rounded = [](const HostMatrix& w) {
    std::vector<std::uint16_t> bits;
    for (const float value : w.values) bits.push_back(f32_to_bf16(value));
    return bits;
  };
  const HostMatrix head = toy.weights.head(0, 512);
  const PackedInt8 int8 = pack_int8(head, {});
  EXPECT_EQ(folder.global<std::int8_t>(PackedGlobalTensor::LmHeadInt8), int8.codes);
  EXPECT_EQ(folder.global<float>(PackedGlobalTensor::LmHeadInt8Scale), int8.scales);
  EXPECT_EQ(folder.global<std::uint16_t>(PackedGlobalTensor::LmHead), rounded(head));
  EXPECT_EQ(folder.global<std::uint16_t>(PackedGlobalTensor::EmbedTokens),
            rounded(toy.weights.embedding(0, 512)));
}

TEST_F(QuantizeFolder, MethodsShareEverythingButTheCodes) {
  PackedOptions options = folder_options(QuantMethod::Gptq);
  const ReportCard card = quantize(source_, target_, options);
  options.method = QuantMethod::Rtn;
  quantize(source_, folder_ / "rounded", options);
  const OpenedFolder gptq(target_), rtn(folder_ / "rounded");
  for (int i = 0; i < 2; ++i) {
    expect_statistics(gptq.statistics(i), rtn.statistics(i));
    for (int m = 0; m < kNumPackedMatrices; ++m) {
      EXPECT_EQ(gptq.part<std::uint8_t>(i, m, PackedPart::E4m3),
                rtn.part<std::uint8_t>(i, m, PackedPart::E4m3));
      EXPECT_NE(gptq.part<std::uint8_t>(i, m, PackedPart::Int4),
                rtn.part<std::uint8_t>(i, m, PackedPart::Int4));
    }
  }
  for (const MatrixReport& report : card.matrices) {
    EXPECT_GE(report.relative_loss, 0) << report.name;
    EXPECT_LE(report.relative_loss, report.rtn_loss) << report.name;
  }
}

// ---- what it depends on -------------------------------------------------------------------------

// Stands in another working folder for as long as it lives.
class WorkingFolder {
 public:
  explicit WorkingFolder(const std::filesystem::path& folder)
      : before_(std::filesystem::current_path()) {
    std::filesystem::current_path(folder);
  }
  WorkingFolder(const WorkingFolder&) = delete;
  WorkingFolder& operator=(const WorkingFolder&) = delete;
  ~WorkingFolder() { std::filesystem::current_path(before_); }

 private:
  std::filesystem::path before_;
};

TEST_F(QuantizeFolder, GivesTheSameBytesOnAnyThreadsAndFromAnyFolder) {
  for (const QuantMethod method : {QuantMethod::Rtn, QuantMethod::Gptq}) {
    SCOPED_TRACE(method_name(method));
    const auto options = folder_options(method);
    const auto one = folder_ / fmt::format("{}-1", method_name(method));
    const auto three = fmt::format("{}-3", method_name(method));
    quantize(source_, one, options);
    {
      const WorkingFolder there(folder_.path());
      quantize("toy", three, options, 3);
    }
    const auto expected = files_in(one);
    const auto found = files_in(folder_ / three);
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [name, bytes] : expected) {
      ASSERT_TRUE(found.contains(name)) << name;
      EXPECT_TRUE(found.at(name) == bytes) << name;
    }
  }
}

TEST_F(QuantizeFolder, SaysThatTheTextIsShort) {
  const ReportCard card = quantize(source_, target_, folder_options(), 1, {}, 70);
  EXPECT_EQ(card.calibration_tokens, 64);
  ASSERT_EQ(card.notices.size(), 1U);
  expect_mentions(card.notices.front(), {"70 tokens", "96", "64 are used"});
  EXPECT_EQ(parse_report_card(OpenedFolder(target_).info().report).notices, card.notices);
}

// ---- progress -----------------------------------------------------------------------------------

TEST_F(QuantizeFolder, CountsEveryWeightOnce) {
  std::uint64_t last = 0, all = 0;
  std::vector<std::string> stages;
  quantize(source_, target_, folder_options(QuantMethod::Gptq), 1,
           [&](std::string_view stage, std::uint64_t done, std::uint64_t total) {
             EXPECT_GE(done, last);
             last = done;
             all = total;
             if (stages.empty() || stages.back() != stage) stages.emplace_back(stage);
           });
  EXPECT_EQ(last, all);
  EXPECT_EQ(all, 2U * 512 * 128 + 2U * (512 * 128 + 128 * 256 + 512 * 128 + 128 * 256));
  EXPECT_EQ(stages, (std::vector<std::string>{"reading the source", "embedding", "layer 1 of 2",
                                              "layer 2 of 2", "head"}));
}

// Ends a run when `where` begins.
template <class Exception>
QuantizeProgress stop_at(std::string_view where, Exception exception) {
  return [where, exception](std::string_view stage, std::uint64_t, std::uint64_t) {
    if (stage == where) throw exception;
  };
}

TEST_F(QuantizeFolder, LeavesNothingWhereItIsStoppedBeforeALayerIsDoneOrByAnError) {
  const auto left = [&] {
    return std::distance(std::filesystem::directory_iterator(folder_.path()), {});
  };
  EXPECT_THROW(quantize(source_, target_, folder_options(), 1,
                        stop_at("embedding", std::runtime_error("stop"))),
               std::runtime_error);
  EXPECT_EQ(left(), 1) << "the source alone";
  for (const char* where : {"embedding", "layer 2 of 2", "head"}) {
    EXPECT_THROW(quantize(source_, target_, folder_options(), 1, stop_at(where, data_error("bad"))),
                 Error);
    EXPECT_EQ(left(), 1) << "the source alone, stopped at " << where;
  }
}

// ---- a run that is killed or stopped ------------------------------------------------------------

// In a process of its own, which ends itself when `stage` begins.
void quantize_and_die(const std::filesystem::path& source, const std::filesystem::path& target,
                      const PackedOptions& options, std::string_view stage) {
  const pid_t child = ::fork();
  if (child == 0) {
    quantize(source, target, options, 1, [&](std::string_view now, std::uint64_t, std::uint64_t) {
      if (now == stage) ::raise(SIGKILL);
    });
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status)) << "was not killed when " << stage << " began";
}

// The stages of a run that is not stopped.
std::vector<std::string> stages_of(const std::filesystem::path& source,
                                   const std::filesystem::path& target,
                                   const PackedOptions& options) {
  std::vector<std::string> stages;
  quantize(source, target, options, 1, [&](std::string_view stage, std::uint64_t, std::uint64_t) {
    if (stages.empty() || stages.back() != stage) stages.emplace_back(stage);
  });
  return stages;
}

TEST_F(QuantizeFolder, GoesOnWhereAKilledRunWas) {
  for (const QuantMethod method : {QuantMethod::Rtn, QuantMethod::Gptq}) {
    const PackedOptions options = folder_options(method);
    const std::filesystem::path whole = folder_ / fmt::format("whole-{}", method_name(method));
    quantize(source_, whole, options);
    const auto expected = files_in(whole);
    for (const char* stage : {"layer 2 of 2", "head"}) {
      SCOPED_TRACE(stage);
      std::filesystem::remove_all(target_);
      quantize_and_die(source_, target_, options, stage);
      EXPECT_FALSE(std::filesystem::exists(target_));
      EXPECT_EQ(stages_of(source_, target_, options).at(1), stage) << "after the source was read";
      EXPECT_EQ(files_in(target_), expected);
    }
  }
}

TEST_F(QuantizeFolder, AStoppedRunKeepsItsLayersAndTellsSo) {
  quantize(source_, folder_ / "whole", folder_options());
  const pid_t child = ::fork();  // another process than the one that goes on
  if (child == 0) {
    KeptLayers kept;
    try {
      quantize(source_, target_, folder_options(), 1,
               stop_at("layer 2 of 2", std::runtime_error("stop")), 500, false,
               {{}, [&](const KeptLayers& left) { kept = left; }});
    } catch (const std::runtime_error&) {
    }
    const bool told = kept.done == 1 && kept.all == 2 && std::filesystem::exists(kept.folder);
    ::_exit(told ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_FALSE(std::filesystem::exists(target_));
  int found = 0;
  quantize(source_, target_, folder_options(), 1, {}, 500, false,
           {[&](const KeptLayers& layers) { found = layers.done; }, {}});
  EXPECT_EQ(found, 1);
  EXPECT_EQ(files_in(target_), files_in(folder_ / "whole"));
}

TEST_F(QuantizeFolder, BeginsAnewWhereAKilledRunHadOtherOptionsOrIsDamaged) {
  PackedOptions other = folder_options();
  other.balance_qk = false;
  quantize_and_die(source_, target_, other, "head");
  EXPECT_EQ(stages_of(source_, target_, folder_options()).at(1), "embedding");
  std::filesystem::remove_all(target_);

  quantize_and_die(source_, target_, other, "head");
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    if (entry.path().filename().string().find(".partial-") == std::string::npos) continue;
    const std::filesystem::path damaged = entry.path() / "model.safetensors";
    std::fstream file(damaged, std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(std::filesystem::file_size(damaged) / 2));
    file << "another text than what was written here";
  }
  EXPECT_EQ(stages_of(source_, target_, other).at(1), "embedding");
  const auto left = std::distance(std::filesystem::directory_iterator(folder_.path()), {});
  EXPECT_EQ(left, 2) << "the source and the folder";
}

// ---- refusals -----------------------------------------------------------------------------------

// The message, after a look at whether anything was done.
std::string refusal(ErrorKind kind, const std::filesystem::path& source,
                    const std::filesystem::path& target, const PackedOptions& options,
                    std::int64_t num_ids = 500) {
  const std::string message = error_message(kind, [&] {
    quantize(
        source, target, options, 1,
        [](std::string_view, std::uint64_t, std::uint64_t) { ADD_FAILURE() << "work was begun"; },
        num_ids);
  });
  EXPECT_FALSE(std::filesystem::exists(target));
  return message;
}

TEST_F(QuantizeFolder, OtherWidthsAreRefusedBeforeAnythingIsDone) {
  ToyModelOptions narrow = short_toy_model();
  narrow.intermediate_size = 192;
  expect_mentions(refusal(ErrorKind::Data, write_toy_model(folder_ / "narrow", narrow), target_,
                          folder_options()),
                  {"down_proj", "128 x 192", "groups of 128", "--precision f32"});
  ToyModelOptions hidden = short_toy_model();
  hidden.hidden_size = 96;
  PackedOptions options = folder_options();
  options.group_size = 64;
  expect_mentions(
      refusal(ErrorKind::Data, write_toy_model(folder_ / "hidden", hidden), target_, options),
      {"qkv_proj", "512 x 96", "groups of 64", "--precision f32"});
}

TEST_F(QuantizeFolder, OtherHeadsAreRefused) {
  ToyModelOptions heads = short_toy_model();
  heads.head_dim = 32;
  expect_mentions(refusal(ErrorKind::Data, write_toy_model(folder_ / "heads", heads), target_,
                          folder_options()),
                  {"head_dim is 32", "64 or 128", "--precision f32"});
}

TEST_F(QuantizeFolder, NeedsCalibrationTokens) {
  PackedOptions options = folder_options();
  options.calibration_tokens = 0;
  expect_mentions(refusal(ErrorKind::Usage, source_, target_, options), {"--calib-tokens 0"});
  expect_mentions(refusal(ErrorKind::Data, source_, target_, folder_options(), 1), {"1 tokens"});
}

TEST_F(QuantizeFolder, AFolderThatIsThereIsKept) {
  quantize(source_, target_, folder_options());
  const auto before = files_in(target_);
  expect_mentions(
      error_message(ErrorKind::Data, [&] { quantize(source_, target_, folder_options()); }),
      {target_.string()});
  EXPECT_TRUE(files_in(target_) == before);
  quantize(source_, target_, folder_options(QuantMethod::Gptq), 1, {}, 500, true);
  EXPECT_EQ(OpenedFolder(target_).info().options.method, QuantMethod::Gptq);
}

}  // namespace
}  // namespace fut::test
