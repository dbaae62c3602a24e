// A quantised folder in other hands: damaged, cut, of another version, asked for what it lacks, looked
// at.
#include <cstring>

#include "loader/crc32c.h"
#include "tests/cli/quantized_case.h"

namespace fut::test {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLengthBytes = 8;  // in front of a safetensors header
constexpr std::size_t kNumberBytes = 4;  // of a checksum

std::uint64_t header_bytes(const std::string& file) {
  std::uint64_t bytes = 0;
  std::memcpy(&bytes, file.data(), sizeof bytes);
  return kLengthBytes + bytes;
}

std::uint32_t checksum(std::string_view bytes) {
  return crc32c(std::as_bytes(std::span(bytes)));
}

// The checksum table ends with that of the header and that of the table itself. The table of a small
// file has one more number, that of its only chunk.
void renew_header_checksums(std::string& file) {
  constexpr std::size_t kTableBytes = 3 * kNumberBytes;
  const std::size_t table = file.size() - kTableBytes;
  const std::uint32_t header = checksum(std::string_view(file).substr(0, header_bytes(file)));
  std::memcpy(file.data() + table + kNumberBytes, &header, sizeof header);
  const std::uint32_t own = checksum(std::string_view(file).substr(table, 2 * kNumberBytes));
  std::memcpy(file.data() + table + 2 * kNumberBytes, &own, sizeof own);
}

class PackedFolder : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder = std::make_unique<TempFolder>();
    source = write_toy_model(*folder / "toy", small_quantizable_model());
    model = *folder / "q";
    ASSERT_EQ(fut({"quantize", "-m", source.string(), "-o", model.string(), "-q"}).exit_code, 0);
    weights = read_file(model / "model.safetensors");
  }
  static void TearDownTestSuite() { folder.reset(); }

  void TearDown() override { write_file(model / "model.safetensors", weights); }

  static ProcessResult run(std::vector<std::string> more = {}) {
    std::vector<std::string> words = {"run", "-m", model.string(), "--raw", "-p", "x", "-n", "2"};
    words.insert(words.end(), more.begin(), more.end());
    return fut(words, in_default_precision(folder->path()));
  }
  static ProcessResult run_with(const std::string& file) {
    write_file(model / "model.safetensors", file);
    return run();
  }

  static std::unique_ptr<TempFolder> folder;
  static fs::path source, model;
  static std::string weights;
};
std::unique_ptr<TempFolder> PackedFolder::folder;
fs::path PackedFolder::source, PackedFolder::model;
std::string PackedFolder::weights;

TEST_F(PackedFolder, RunsInBothQuantisedPrecisions) {
  EXPECT_EQ(run({"--precision", "int4"}).exit_code, 0);
  EXPECT_EQ(run({"--precision", "fp8", "--kv-cache-dtype", "int4", "--head", "bf16"}).exit_code, 0);
  EXPECT_EQ(run({"--no-kv-rotation", "--kv-group", "32", "--rescore-head"}).exit_code, 0);
  EXPECT_EQ(run({"--kv-rotation-block", "16", "--kv-cache-dtype", "int4"}).exit_code, 0);
}

TEST_F(PackedFolder, AFlippedBitAnywhereIsNamedWithItsFile) {
  const std::size_t header = header_bytes(weights);
  for (const std::size_t at : {std::size_t{20}, header + 5, (header + weights.size()) / 2,
                               weights.size() - 2 * kNumberBytes, weights.size() - 1}) {
    std::string damaged = weights;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    expect_failure(run_with(damaged), 3, {"q/model.safetensors"});
  }
}

TEST_F(PackedFolder, ACutFileIsNamedWithBothSizes) {
  for (const std::size_t bytes :
       {weights.size() - 1, weights.size() / 2, std::size_t{100}, std::size_t{0}}) {
    expect_failure(run_with(weights.substr(0, bytes)), 3,
                   {"q/model.safetensors", std::to_string(bytes)});
  }
}

TEST_F(PackedFolder, AnotherVersionIsToldFromDamage) {
  const std::string key = "\"version\":\"";
  const std::size_t at = weights.find(key);
  ASSERT_NE(at, std::string::npos);
  std::string other = weights;
  char& digit = other[at + key.size()];
  digit = digit == '9' ? '8' : '9';
  renew_header_checksums(other);
  const ProcessResult result = run_with(other);
  expect_failure(result, 3, {"q/model.safetensors", "version", "quantise"});
}

TEST_F(PackedFolder, AConfigurationThatWasEditedIsPointedOut) {
  const std::string config = read_file(model / "config.json");
  EXPECT_EQ(run({"-q"}).err, "");
  write_file(model / "config.json", config + "\n");
  const ProcessResult result = run({"-q"});
  write_file(model / "config.json", config);
  EXPECT_EQ(result.exit_code, 0);
  for (const std::string& fact : {model.string(), std::string("config.json"),
                                  std::to_string(config.size()), std::string("may be wrong")}) {
    EXPECT_NE(result.err.find(fact), std::string::npos) << fact << " in: " << result.err;
  }
}

TEST_F(PackedFolder, HasNothingToComputeInFullPrecisionWith) {
  for (const char* precision : {"f32", "bf16"}) {
    expect_failure(run({"--precision", precision}), 3,
                   {"q", precision, "model.safetensors", "-m", "int4"});
  }
  // A cache that the precision cannot have is a matter of the command line.
  expect_failure(run({"--kv-rotation-block", "48"}), 2, {"--kv-rotation-block", "48", "64"});
  expect_failure(run({"--kv-group", "128"}), 2, {"--kv-group", "128", "64"});
}

// ---- inspect -----------------------------------------------------------------------------------

TEST_F(PackedFolder, InspectShowsHowItWasMade) {
  const auto report = json_of(fut({"inspect", "-m", model.string(), "-o", "json"}));
  const auto& packed = report.at("weights");
  EXPECT_EQ(packed.at("options").at("method"), "rtn");
  EXPECT_EQ(packed.at("options").at("group_size"), 128);
  EXPECT_EQ(packed.at("bytes"), weights.size());
  EXPECT_EQ(packed.at("report").at("matrices").size(), 8U);
  EXPECT_GT(packed.at("activation_scales").at("swiglu_output").at("least"), 0);
  expect_mentions(packed.at("source").dump(), {"model.safetensors", "config.json"});
  expect_mentions(packed.at("formats").dump(), {"INT4", "E4M3", "INT8", "BF16"});
  EXPECT_EQ(report.at("config").at("head_dim"), 64);
  expect_mentions(report.at("tokenizer").at("ends_a_reply").dump(), {"<|eot_id|>"});
  const ProcessResult text = fut({"inspect", "-m", model.string()});
  expect_mentions(text.out, {"INT4", "rtn", "rope", "not checked", "of the file's layout"});
  EXPECT_EQ(text.out.find('{'), std::string::npos) << text.out;
}

TEST_F(PackedFolder, InspectChecksEveryByteOnRequest) {
  const std::vector<std::string> check = {"inspect", "-m", model.string(), "--check-tensors"};
  const ProcessResult sound = fut(check);
  EXPECT_EQ(sound.exit_code, 0);
  expect_mentions(sound.out, {"all met"});
  std::string damaged = weights;
  char& byte = damaged[header_bytes(damaged) + 1000];
  byte = static_cast<char>(byte ^ 1);
  write_file(model / "model.safetensors", damaged);
  expect_failure(fut(check), 3, {"q/model.safetensors"});
}

}  // namespace
}  // namespace fut::test
