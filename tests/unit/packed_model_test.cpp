// Packed folders read back: what comes out, and that a byte, a size or a version that is not what it
// should be is named and refused.
#include "loader/packed_model.h"

#include <algorithm>
#include <fstream>
#include <gtest/gtest.h>

#include "loader/checkpoint.h"
#include "loader/crc32c.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"
#include "tests/support/toy_models.h"
#include "tests/unit/packed_case.h"

namespace fut {
namespace {

using test::error_message;
using test::expect_mentions;
using test::in_three_threads;
using test::packable_config;
using test::read_file;
using test::TempFolder;
using test::write_file;
using test::write_packed;

std::filesystem::path file_of(const std::filesystem::path& folder) {
  return folder / "model.safetensors";
}

void flip(const std::filesystem::path& file, std::uint64_t at) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(at));
  const int byte = stream.get();
  stream.seekp(static_cast<std::streamoff>(at));
  stream.put(static_cast<char>(byte ^ 0x04));
  if (!stream) throw std::runtime_error("cannot change " + file.string());
}

std::string open_error(const std::filesystem::path& folder, ModelConfig config) {
  return error_message(ErrorKind::Data, [&] { (void)PackedModel::open(folder, config); });
}

std::vector<std::byte> read_tensor(const PackedModel& model, const TensorInfo& info,
                                   const ParallelFor& parallel_for = {}) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(info.bytes));
  model.read(info, bytes, parallel_for);
  return bytes;
}

// A file whose checksums say that a change was meant: of the header, in place.
std::string resealed(std::string image, const std::string& from, const std::string& to) {
  const std::size_t at = image.find(from);
  if (at == image.npos || from.size() != to.size()) throw std::runtime_error("no " + from);
  image.replace(at, to.size(), to);
  const auto* bytes = reinterpret_cast<const std::byte*>(image.data());
  std::uint64_t header_bytes = 0;
  for (std::size_t i = 8; i-- > 0;) {
    header_bytes = header_bytes << 8 | static_cast<unsigned char>(image[i]);
  }
  const auto put = [&](std::size_t position, std::uint32_t number) {
    for (std::size_t i = 0; i < 4; ++i) {
      image[position + i] = static_cast<char>(number >> (8 * i) & 0xFFU);
    }
  };
  const std::size_t table = 4 * 3;  // one chunk
  put(image.size() - 8, crc32c(std::span(bytes, 8 + static_cast<std::size_t>(header_bytes))));
  put(image.size() - 4, crc32c(std::span(bytes + image.size() - table, table - 4)));
  return image;
}

// ---- what is there ------------------------------------------------------------------------------

TEST(IsPacked, TellsPackedFoldersFromOthers) {
  const TempFolder folder;
  EXPECT_FALSE(PackedModel::is_packed(folder / "nothing"));
  EXPECT_FALSE(PackedModel::is_packed(folder.path()));
  EXPECT_FALSE(PackedModel::is_packed(test::source_path("configs/demo-6m")));
  write_file(folder / "model.safetensors", "");
  EXPECT_FALSE(PackedModel::is_packed(folder.path()));
  write_packed(folder / "out", packable_config());
  EXPECT_TRUE(PackedModel::is_packed(folder / "out"));
}

TEST(PackedModel, SaysHowItWasMade) {
  const TempFolder folder;
  ModelConfig config = packable_config();
  write_packed(folder / "out", config);
  const PackedModel model = PackedModel::open(folder / "out", config);
  const PackedMetadata made = test::packed_metadata();
  EXPECT_EQ(model.info().version, kPackedVersion);
  EXPECT_EQ(model.info().options, made.options);
  EXPECT_EQ(model.info().report, test::kReport);
  ASSERT_EQ(model.info().source.files.size(), 1U);
  EXPECT_EQ(model.info().source.files[0].modified_ns, 0);  // times are no part of the file
  EXPECT_FALSE(compare_identity(model.info().source, made.source).has_value());
  EXPECT_EQ(model.info().file_bytes, std::filesystem::file_size(file_of(folder / "out")));
  EXPECT_TRUE(model.notices().empty());
}

TEST(PackedModel, HandsOutEveryTensorWholeAndInParts) {
  const TempFolder folder;
  ModelConfig config = packable_config();
  config.num_layers = 2;
  write_packed(folder / "out", config);
  const PackedModel model = PackedModel::open(folder / "out", config);
  const test::TensorBytes made = test::made_up_bytes(packed_tensors(config, 128, true));
  for (int layer = 0; layer < 2; ++layer) {
    for (int i = 0; i < kNumPackedLayerTensors; ++i) {
      const auto which = static_cast<PackedLayerTensor>(i);
      const TensorInfo& info = model.layer(layer, which);
      EXPECT_EQ(info.name, packed_layer_tensor(config, 128, layer, which).name);
      EXPECT_EQ(read_tensor(model, info), made.at(info.name));
    }
  }
  for (int i = 0; i < kNumPackedGlobalTensors; ++i) {
    const auto which = static_cast<PackedGlobalTensor>(i);
    ASSERT_TRUE(model.has(which));
    const TensorInfo& info = model.global(which);
    EXPECT_EQ(info.name, packed_global_tensor(config, which).name);
    EXPECT_EQ(read_tensor(model, info, in_three_threads), made.at(info.name));
  }
  const TensorInfo& scales = model.layer(1, PackedMatrix::OProj, PackedPart::E4m3Scale);
  EXPECT_EQ(scales.name, "layers.1.o_proj.e4m3_scale");
  std::vector<std::byte> part(5);
  model.read_part(scales, 3, part, {});
  EXPECT_TRUE(std::equal(part.begin(), part.end(), made.at(scales.name).begin() + 3));
  model.read_part(scales, scales.bytes, {}, {});
}

TEST(PackedModel, CanBeWithoutABf16Head) {
  const TempFolder folder;
  ModelConfig config = packable_config();
  const std::vector<PackedTensor> tensors = packed_tensors(config, 64, false);
  PackedMetadata metadata = test::packed_metadata();
  metadata.options.group_size = 64;
  PackedWriter writer(folder / "out", metadata, tensors, false);
  test::append_all(writer, tensors);
  writer.finish("");
  const PackedModel model = PackedModel::open(folder / "out", config);
  EXPECT_FALSE(model.has(PackedGlobalTensor::LmHead));
  EXPECT_TRUE(model.has(PackedGlobalTensor::LmHeadInt8));
  EXPECT_THROW((void)model.global(PackedGlobalTensor::LmHead), Error);
}

TEST(PackedModel, HasAsManyTokensAsItsEmbeddingHasRows) {
  const TempFolder folder;
  write_packed(folder / "out", packable_config());
  ModelConfig config = packable_config();
  config.vocab_size = 5;
  const PackedModel model = PackedModel::open(folder / "out", config);
  EXPECT_EQ(config.vocab_size, 7);
  ASSERT_EQ(model.notices().size(), 1U);
  expect_mentions(model.notices()[0], {"vocab_size is 5", "7 rows"});
}

// The files of a tied source, whose packed head stands alone.
TEST(PackedModel, OpensBesideTheSourcesOwnConfiguration) {
  const TempFolder folder;
  test::ToyModelOptions options;
  options.hidden_size = 128;
  options.head_dim = 64;
  options.num_q_heads = 2;
  options.num_kv_heads = 1;
  options.files.tie_word_embeddings = true;
  options.files.write_head = false;
  options.files.config_patch = {{"torch_dtype", "bfloat16"}};
  test::write_toy_model(folder / "source", options);
  const ModelConfig source = load_model_config(folder / "source");
  const std::vector<PackedTensor> tensors = packed_tensors(source, 128, true);
  PackedWriter writer(folder / "out", test::packed_metadata(), tensors, false);
  writer.copy_companions(folder / "source");
  test::append_all(writer, tensors);
  writer.finish("");

  ModelConfig config = load_model_config(folder / "out");
  EXPECT_EQ(config.torch_dtype, "bfloat16");
  const PackedModel model = PackedModel::open(folder / "out", config);
  EXPECT_TRUE(model.notices().empty());
  EXPECT_EQ(model.global(PackedGlobalTensor::LmHead).shape,
            (std::vector<std::int64_t>{source.vocab_size, 128}));
  EXPECT_NO_THROW((void)load_generation_defaults(folder / "out"));
  // It is no checkpoint.
  EXPECT_THROW((void)Checkpoint::open(folder / "out", config), Error);
}

TEST(Checkpoint, StillRefusesWeightsThatAreBytes) {
  const TempFolder folder;
  test::write_changed_toy_model(folder.path(), {}, [](std::vector<test::NamedTensor>& tensors) {
    test::NamedTensor& tensor = test::tensor_named(tensors, "model.norm.weight");
    tensor = {tensor.name, "U8", tensor.shape, std::string(tensor.bytes.size() / 2, 'x')};
  });
  ModelConfig config = load_model_config(folder.path());
  expect_mentions(
      error_message(ErrorKind::Data, [&] { (void)Checkpoint::open(folder.path(), config); }),
      {"'model.norm.weight'", "has the type U8", "only F32, F16 and BF16"});
}

// ---- damage -------------------------------------------------------------------------------------

TEST(FlippedByte, OfTheHeaderIsNoticedAtOpening) {
  const TempFolder folder;
  const ModelConfig config = packable_config();
  write_packed(folder / "out", config);
  const std::filesystem::path file = file_of(folder / "out");
  const std::uint64_t header_end = 8 + Safetensors::open(file).header_bytes();
  const std::uint64_t text_end = read_file(file).find("}}  ") + 2;
  ASSERT_LT(text_end, header_end);
  std::vector<std::uint64_t> places = {text_end, header_end - 1};
  for (std::uint64_t at = 0; at < text_end; at += at < 300 ? 1 : 7) places.push_back(at);
  for (const std::uint64_t at : places) {
    flip(file, at);
    // Most change the JSON or its meaning, the rest meet the checksum; all are seen for what they
    // are.
    EXPECT_TRUE(PackedModel::is_packed(folder / "out")) << at;
    expect_mentions(open_error(folder / "out", config), {file.string(), "run fut quantize again"});
    flip(file, at);
  }
  const auto message_of = [&](std::uint64_t at) {
    flip(file, at);
    const std::string message = open_error(folder / "out", config);
    flip(file, at);
    return message;
  };
  const std::string range = fmt::format("bytes 0 to {}", header_end);
  expect_mentions(message_of(header_end - 1), {"not valid JSON"});
  const std::uint64_t in_report = read_file(file).find("down_proj");
  expect_mentions(message_of(in_report), {"the header", range, "it was written with"});
}

TEST(FlippedByte, OfTheChecksumsIsNoticedAtOpening) {
  const TempFolder folder;
  const ModelConfig config = packable_config();
  write_packed(folder / "out", config);
  const std::filesystem::path file = file_of(folder / "out");
  const std::uint64_t size = std::filesystem::file_size(file);
  for (std::uint64_t at = size - 12; at < size; ++at) {
    flip(file, at);
    expect_mentions(open_error(folder / "out", config),
                    {file.string(), fmt::format("bytes {} to {}", size - 12, size),
                     "their own checksum", "run fut quantize again"});
    flip(file, at);
  }
}

TEST(FlippedByte, OfATensorIsNoticedWhenItIsReadAndWhenAllIsVerified) {
  const TempFolder folder;
  ModelConfig config = packable_config();
  write_packed(folder / "out", config);
  const std::filesystem::path file = file_of(folder / "out");
  const Safetensors tensors = Safetensors::open(file);
  for (const TensorInfo& info : tensors.tensors()) {
    if (info.name == kChecksumTensor) continue;
    for (const std::uint64_t at : {info.offset, info.offset + info.bytes - 1}) {
      flip(file, at);
      const PackedModel model = PackedModel::open(folder / "out", config);
      const std::vector<std::string> facts = {file.string(), "checksum", "written with",
                                              "run fut quantize again"};
      const TensorInfo& first = model.layer(0, PackedLayerTensor::FirstPart);
      expect_mentions(error_message(ErrorKind::Data, [&] { (void)read_tensor(model, first); }),
                      facts);
      expect_mentions(error_message(ErrorKind::Data, [&] { model.verify({}, {}); }), facts);
      flip(file, at);
    }
  }
  EXPECT_NO_THROW(PackedModel::open(folder / "out", config).verify({}, {}));
}

TEST(CutFile, IsRefusedWhereverItEnds) {
  const TempFolder folder;
  const ModelConfig config = packable_config();
  write_packed(folder / "out", config);
  const std::filesystem::path file = file_of(folder / "out");
  const std::uint64_t size = std::filesystem::file_size(file);
  for (const std::uint64_t left :
       {size - 1, size - 12, size / 2, std::uint64_t{5000}, std::uint64_t{100}}) {
    std::filesystem::resize_file(file, left);
    EXPECT_TRUE(PackedModel::is_packed(folder / "out"));
    expect_mentions(open_error(folder / "out", config),
                    {file.string(), std::to_string(left), "run fut quantize again"});
  }
}

TEST(LongerFile, IsRefused) {
  const TempFolder folder;
  const ModelConfig config = packable_config();
  write_packed(folder / "out", config);
  write_file(file_of(folder / "out"), read_file(file_of(folder / "out")) + "x");
  expect_mentions(open_error(folder / "out", config), {"1 bytes too many"});
}

// ---- files of more than one chunk ---------------------------------------------------------------

class LargeFile : public ::testing::Test {
 protected:
  static constexpr int kVocab = 70000;  // embedding and heads: 18, 9 and 18 MB

  void SetUp() override {
    config_ = packable_config();
    config_.vocab_size = kVocab;
    write_packed(folder_ / "out", config_);
    data_ = 8 + Safetensors::open(file()).header_bytes();
  }
  [[nodiscard]] std::filesystem::path file() const { return file_of(folder_ / "out"); }
  [[nodiscard]] PackedModel open() { return PackedModel::open(folder_ / "out", config_); }

  TempFolder folder_;
  ModelConfig config_;
  std::uint64_t data_ = 0;  // where the first chunk begins
};

TEST_F(LargeFile, IsReadRightInAnyOrderOfTensorsAndThreads) {
  const PackedModel model = open();
  const test::TensorBytes made = test::made_up_bytes(packed_tensors(config_, 128, true));
  for (const PackedGlobalTensor which :
       {PackedGlobalTensor::LmHead, PackedGlobalTensor::EmbedTokens, PackedGlobalTensor::LmHeadInt8,
        PackedGlobalTensor::LmHead}) {
    const TensorInfo& info = model.global(which);
    EXPECT_EQ(read_tensor(model, info, in_three_threads), made.at(info.name)) << info.name;
  }
}

TEST_F(LargeFile, OnlyTheTensorsOfADamagedChunkAreLost) {
  const std::uint64_t at = data_ + 2 * kChecksumChunk + 5;
  flip(file(), at);
  const PackedModel model = open();
  EXPECT_NO_THROW((void)read_tensor(model, model.global(PackedGlobalTensor::EmbedTokens)));
  EXPECT_NO_THROW((void)read_tensor(model, model.layer(0, PackedLayerTensor::StatsSwiglu)));
  const TensorInfo& head = model.global(PackedGlobalTensor::LmHead);
  const std::string message =
      error_message(ErrorKind::Data, [&] { (void)read_tensor(model, head, in_three_threads); });
  const std::uint64_t end = data_ + 2 * kChecksumChunk;
  expect_mentions(message, {fmt::format("bytes {} to ", end), "'lm_head.weight'"});
}

TEST_F(LargeFile, VerifyingNamesEveryDamagedChunkAndTellsItsProgress) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> told;
  const auto note = [&](std::uint64_t done, std::uint64_t total) {
    told.emplace_back(done, total);
  };
  const TensorInfo table = *Safetensors::open(file()).find(kChecksumTensor);
  open().verify(in_three_threads, note);
  ASSERT_EQ(told.size(), 3U);
  const std::uint64_t total = table.offset - data_;
  EXPECT_EQ(told.back(), (std::pair{total, total}));
  EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));

  flip(file(), data_);
  flip(file(), table.offset - 1);
  const std::string message =
      error_message(ErrorKind::Data, [&] { open().verify(in_three_threads, {}); });
  expect_mentions(
      message, {"2 of 3 checksums", fmt::format("bytes {} to {} (", data_, data_ + kChecksumChunk),
                fmt::format("bytes {} to {} (", data_ + 2 * kChecksumChunk, table.offset),
                "'model.embed_tokens.weight'", "'lm_head.weight'"});
}

// ---- files that are whole and do not fit --------------------------------------------------------

TEST(OtherVersion, IsRefusedWithBothNumbers) {
  const TempFolder folder;
  const ModelConfig config = packable_config();
  write_packed(folder / "out", config);
  const std::string ours = std::to_string(kPackedVersion);
  const std::string image = read_file(file_of(folder / "out"));
  for (const std::string other : {"9001", "1009", "1x01"}) {
    write_file(file_of(folder / "out"),
               resealed(image, "\"version\":\"" + ours + "\"", "\"version\":\"" + other + "\""));
    expect_mentions(open_error(folder / "out", config),
                    {"'" + other + "'", ours, "quantise the source again with this program"});
  }
}

TEST(OtherOptions, ThatMakeNoSenseAreRefused) {
  const TempFolder folder;
  const ModelConfig config = packable_config();
  write_packed(folder / "out", config);
  const std::string image = read_file(file_of(folder / "out"));
  const auto message_with = [&](const std::string& from, const std::string& to) {
    write_file(file_of(folder / "out"), resealed(image, from, to));
    return open_error(folder / "out", config);
  };
  expect_mentions(message_with(R"(group_size\":128)", R"(group_size\": 96)"),
                  {"options.group_size", "96", "64 or 128"});
  expect_mentions(message_with(R"(\"gptq\")", R"(\"gptp\")"), {"options.method", "gptp"});
  expect_mentions(message_with(R"(\"rotate\")", R"(\"rotats\")"), {"options.rotate", "missing"});
}

TEST(OtherConfiguration, IsRefusedNamingTensorAndBothShapes) {
  const TempFolder folder;
  write_packed(folder / "out", packable_config());
  ModelConfig config = packable_config();
  config.intermediate_size = 256;
  expect_mentions(open_error(folder / "out", config),
                  {"'layers.0.gate_up_proj.int4'", "U8 [16896]", "U8 [33792]", "config.json"});
  config = packable_config();
  config.num_layers = 2;
  expect_mentions(open_error(folder / "out", config),
                  {"20 are missing", "'layers.1.qkv_proj.int4'", "config.json"});
  config = packable_config();
  config.hidden_size = 192;
  expect_mentions(open_error(folder / "out", config), {"192", "multiple of 128"});
}

TEST(OtherTensors, AreRefusedByName) {
  const TempFolder folder;
  const ModelConfig config = packable_config();
  const auto message_of = [&](const std::function<void(std::vector<PackedTensor>&)>& change) {
    std::vector<PackedTensor> tensors = packed_tensors(config, 128, true);
    change(tensors);
    PackedWriter writer(folder / "out", test::packed_metadata(), tensors, true);
    test::append_all(writer, tensors);
    writer.finish("");
    return open_error(folder / "out", config);
  };
  using Tensors = std::vector<PackedTensor>;
  expect_mentions(message_of([](Tensors& t) { t.erase(t.begin() + 3); }),
                  {"1 are missing", "'layers.0.qkv_proj.e4m3_scale'"});
  expect_mentions(message_of([](Tensors& t) {
                    t.push_back({"layers.1.x", DType::F32, {1}});
                  }),
                  {"1 are there that do not belong", "'layers.1.x'"});
  expect_mentions(message_of([](Tensors& t) { t.back().dtype = DType::F16; }),
                  {"'lm_head.weight'", "F16 [7, 128]", "BF16 [7, 128]"});
  expect_mentions(message_of([](Tensors& t) {
                    t[2].shape = {128, 256};
                  }),
                  {"'layers.0.qkv_proj.e4m3'", "[128, 256]", "[256, 128]"});
}

}  // namespace
}  // namespace fut
