// A folder's weights as a whole: which files count, what may lie beside them, and what a tied
// output head does. Folders that must not load are in checkpoint_errors_test.cpp.
#include "loader/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>

#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"
#include "tests/support/toy_models.h"

namespace fut {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::error_message;
using test::expect_mentions;
using test::NamedTensor;
using test::TempFolder;
using test::tensor_named;
using test::ToyModelOptions;
using test::write_file;
using test::zero_tensor;

constexpr char kIndex[] = "model.safetensors.index.json";

Checkpoint open(const fs::path& folder) {
  ModelConfig config = load_model_config(folder);
  return Checkpoint::open(folder, config);
}

std::string open_error(const fs::path& folder) {
  return error_message(ErrorKind::Data, [&] { (void)open(folder); });
}

std::string bytes_of(const Checkpoint& checkpoint, const TensorInfo& info) {
  std::string bytes(info.bytes, '\0');
  checkpoint.read(info, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

ToyModelOptions in_shards(int num_shards) {
  ToyModelOptions options;
  options.files.num_shards = num_shards;
  return options;
}

// ---- good folders -------------------------------------------------------------------------------

TEST(Checkpoint, FindsEveryTensorAndReadsItsBytes) {
  const ToyModelOptions options;
  const std::vector<NamedTensor> tensors = test::toy_tensors(options);
  for (const int num_shards : {0, 1, 3, 7}) {
    SCOPED_TRACE(num_shards);
    const TempFolder folder;
    const Checkpoint checkpoint = open(test::write_toy_model(folder.path(), in_shards(num_shards)));
    EXPECT_TRUE(checkpoint.notices().empty());
    EXPECT_EQ(checkpoint.files().size(), static_cast<std::size_t>(std::max(1, num_shards)));

    std::vector<const TensorInfo*> all = {&checkpoint.global(GlobalTensor::EmbedTokens),
                                          &checkpoint.global(GlobalTensor::FinalNorm),
                                          &checkpoint.global(GlobalTensor::LmHead)};
    for (int layer = 0; layer < options.num_layers; ++layer) {
      for (int which = 0; which < kNumLayerTensors; ++which) {
        all.push_back(&checkpoint.layer(layer, static_cast<LayerTensor>(which)));
      }
    }
    ASSERT_EQ(all.size(), tensors.size());
    std::uint64_t total = 0;
    for (const NamedTensor& tensor : tensors) {
      const auto it = std::find_if(all.begin(), all.end(),
                                   [&](const TensorInfo* i) { return i->name == tensor.name; });
      ASSERT_NE(it, all.end()) << tensor.name;
      EXPECT_EQ((*it)->shape, tensor.shape);
      EXPECT_EQ(bytes_of(checkpoint, **it), tensor.bytes);
      total += tensor.bytes.size();
    }
    EXPECT_EQ(checkpoint.total_bytes(), total);
  }
}

TEST(Checkpoint, PurposesAndNamesBelongTogether) {
  const TempFolder folder;
  const Checkpoint checkpoint = open(test::write_toy_model(folder.path()));
  const auto name = [&](LayerTensor which) { return checkpoint.layer(1, which).name; };
  EXPECT_EQ(name(LayerTensor::InputLayernorm), "model.layers.1.input_layernorm.weight");
  EXPECT_EQ(name(LayerTensor::QProj), "model.layers.1.self_attn.q_proj.weight");
  EXPECT_EQ(name(LayerTensor::KProj), "model.layers.1.self_attn.k_proj.weight");
  EXPECT_EQ(name(LayerTensor::VProj), "model.layers.1.self_attn.v_proj.weight");
  EXPECT_EQ(name(LayerTensor::OProj), "model.layers.1.self_attn.o_proj.weight");
  EXPECT_EQ(name(LayerTensor::PostAttentionLayernorm),
            "model.layers.1.post_attention_layernorm.weight");
  EXPECT_EQ(name(LayerTensor::GateProj), "model.layers.1.mlp.gate_proj.weight");
  EXPECT_EQ(name(LayerTensor::UpProj), "model.layers.1.mlp.up_proj.weight");
  EXPECT_EQ(name(LayerTensor::DownProj), "model.layers.1.mlp.down_proj.weight");
  EXPECT_EQ(checkpoint.global(GlobalTensor::EmbedTokens).name, "model.embed_tokens.weight");
  EXPECT_EQ(checkpoint.global(GlobalTensor::FinalNorm).name, "model.norm.weight");
  EXPECT_EQ(checkpoint.global(GlobalTensor::LmHead).name, "lm_head.weight");
}

TEST(Checkpoint, TypesMayBeMixedFromTensorToTensor) {
  const TempFolder folder;
  const ToyModelOptions options;
  const Checkpoint checkpoint = open(
      test::write_changed_toy_model(folder.path(), options, [](std::vector<NamedTensor>& tensors) {
        tensor_named(tensors, "model.norm.weight") =
            test::make_tensor("model.norm.weight", DType::F32, {64}, std::vector<float>(64, 1));
        tensor_named(tensors, "lm_head.weight") =
            test::make_tensor("lm_head.weight", DType::F16, {512, 64}, std::vector<float>(32768));
      }));
  EXPECT_EQ(checkpoint.global(GlobalTensor::FinalNorm).dtype, DType::F32);
  EXPECT_EQ(checkpoint.global(GlobalTensor::LmHead).dtype, DType::F16);
  EXPECT_EQ(checkpoint.global(GlobalTensor::EmbedTokens).dtype, DType::BF16);
}

TEST(Checkpoint, LeftoverBuffersOfOldProgramsAreIgnored) {
  const TempFolder folder;
  const Checkpoint checkpoint =
      open(test::write_changed_toy_model(folder.path(), {}, [](std::vector<NamedTensor>& tensors) {
        tensors.push_back(zero_tensor("model.layers.0.self_attn.rotary_emb.inv_freq", {8}));
        tensors.push_back(zero_tensor("model.rotary_emb.inv_freq", {8}));
        tensors.push_back(
            zero_tensor("model.layers.1.self_attn.rotary_emb.cos_cached", {1, 1, 4, 8}));
        tensors.push_back(
            zero_tensor("model.layers.1.self_attn.rotary_emb.sin_cached", {1, 1, 4, 8}));
        tensors.push_back({"rope.freqs", "F64", {1}, std::string(8, '\0')});
      }));
  EXPECT_TRUE(checkpoint.notices().empty());
}

TEST(Checkpoint, TheVocabularyFollowsTheEmbedding) {
  for (const int said : {500, 640}) {
    const TempFolder folder;
    ToyModelOptions options;
    options.files.config_patch["vocab_size"] = said;
    test::write_toy_model(folder.path(), options);
    ModelConfig config = load_model_config(folder.path());
    const Checkpoint checkpoint = Checkpoint::open(folder.path(), config);
    EXPECT_EQ(config.vocab_size, 512);
    ASSERT_EQ(checkpoint.notices().size(), 1U);
    expect_mentions(checkpoint.notices()[0], {"vocab_size", std::to_string(said), "512"});
  }
}

TEST(Checkpoint, OneFileWithAnotherNameServesWhenThereIsNoIndex) {
  const TempFolder folder;
  test::write_toy_model(folder.path());
  fs::rename(folder / "model.safetensors", folder / "weights.safetensors");
  fs::create_directory(folder / "extra.safetensors");
  const Checkpoint checkpoint = open(folder.path());
  ASSERT_EQ(checkpoint.notices().size(), 1U);
  expect_mentions(checkpoint.notices()[0], {"weights.safetensors"});
}

TEST(Checkpoint, FilesThatTheIndexDoesNotNameAreIgnored) {
  const TempFolder folder;
  test::write_toy_model(folder.path(), in_shards(2));
  fs::create_directory(folder / "extra.safetensors");
  write_file(folder / "consolidated.safetensors", "not even a safetensors file");
  write_file(folder / "model.safetensors", "stale");
  EXPECT_EQ(open(folder.path()).files().size(), 2U);
}

TEST(Checkpoint, LinksOutOfTheFolderAreFollowed) {
  const TempFolder cache;
  fs::create_directory(cache / "blobs");
  fs::create_directory(cache / "snapshot");
  test::write_toy_model(cache / "snapshot", in_shards(2));
  for (const int shard : {0, 1}) {
    const std::string name = test::shard_name(shard, 2);
    const std::string blob = fmt::format("{}", shard);
    fs::rename(cache / "snapshot" / name, cache / "blobs" / blob);
    fs::create_symlink(fs::path("../blobs") / blob, cache / "snapshot" / name);
  }
  EXPECT_EQ(open(cache / "snapshot").files().size(), 2U);
}

TEST(Checkpoint, AWrongTotalSizeIsNoMoreThanANotice) {
  const TempFolder folder;
  test::write_toy_model(folder.path(), in_shards(2));
  json index = json::parse(test::read_file(folder / kIndex));
  const auto total = index["metadata"]["total_size"].get<std::uint64_t>();
  index["metadata"]["total_size"] = total + 1;
  write_file(folder / kIndex, index.dump());
  const Checkpoint checkpoint = open(folder.path());
  ASSERT_EQ(checkpoint.notices().size(), 1U);
  expect_mentions(checkpoint.notices()[0], {"total_size", std::to_string(total)});
  index.erase("metadata");
  write_file(folder / kIndex, index.dump());
  EXPECT_TRUE(open(folder.path()).notices().empty());
}

TEST(Checkpoint, ATensorThatTheIndexLeavesOutIsIgnoredWhenItIsNotNeeded) {
  const TempFolder folder;
  const ToyModelOptions options;
  test::write_toy_model(folder.path(), options);
  std::vector<NamedTensor> tensors = test::toy_tensors(options);
  tensors.push_back(zero_tensor("model.layers.9.strange.weight", {3}));
  json index = test::write_shards(folder.path(), tensors, 2);
  index["weight_map"].erase("model.layers.9.strange.weight");
  index.erase("metadata");
  write_file(folder / kIndex, index.dump());
  const Checkpoint checkpoint = open(folder.path());
  ASSERT_EQ(checkpoint.notices().size(), 1U);
  expect_mentions(checkpoint.notices()[0], {"model.layers.9.strange.weight", "ignored"});
}

// ---- tied output head ---------------------------------------------------------------------------

ToyModelOptions head_options(std::optional<bool> tied, bool embedding, bool head) {
  ToyModelOptions options;
  options.files.tie_word_embeddings = tied;
  options.files.write_embedding = embedding;
  options.files.write_head = head;
  return options;
}

TEST(OutputHead, TiedWithoutAHeadUsesTheEmbedding) {
  const TempFolder folder;
  const Checkpoint checkpoint =
      open(test::write_toy_model(folder.path(), head_options(true, true, false)));
  EXPECT_TRUE(checkpoint.head_is_tied());
  EXPECT_EQ(checkpoint.global(GlobalTensor::LmHead).name, "model.embed_tokens.weight");
  EXPECT_TRUE(checkpoint.notices().empty());
}

TEST(OutputHead, TiedWithoutAnEmbeddingUsesTheHeadForBoth) {
  const TempFolder folder;
  const Checkpoint checkpoint =
      open(test::write_toy_model(folder.path(), head_options(true, false, true)));
  EXPECT_TRUE(checkpoint.head_is_tied());
  EXPECT_EQ(checkpoint.global(GlobalTensor::EmbedTokens).name, "lm_head.weight");
  EXPECT_EQ(checkpoint.global(GlobalTensor::LmHead).name, "lm_head.weight");
  EXPECT_TRUE(checkpoint.notices().empty());
}

TEST(OutputHead, TiedWithBothUsesTheEmbeddingAndSaysSoIfTheyDiffer) {
  const TempFolder folder;
  const ToyModelOptions options = head_options(true, true, true);
  const Checkpoint different = open(test::write_toy_model(folder / "different", options));
  EXPECT_TRUE(different.head_is_tied());
  EXPECT_EQ(different.global(GlobalTensor::LmHead).name, "model.embed_tokens.weight");
  ASSERT_EQ(different.notices().size(), 1U);
  expect_mentions(different.notices()[0], {"lm_head.weight", "tie_word_embeddings"});

  const Checkpoint same = open(test::write_changed_toy_model(
      folder / "same", options, [](std::vector<NamedTensor>& tensors) {
        tensor_named(tensors, "lm_head.weight").bytes =
            tensor_named(tensors, "model.embed_tokens.weight").bytes;
      }));
  EXPECT_TRUE(same.notices().empty());
  // The ignored tensor does not count.
  const Checkpoint without =
      open(test::write_toy_model(folder / "without", head_options(true, true, false)));
  EXPECT_EQ(different.total_bytes(), without.total_bytes());
  EXPECT_EQ(same.total_bytes(), without.total_bytes());
}

TEST(OutputHead, AnIgnoredHeadMayHaveAnyTypeAndShape) {
  const TempFolder folder;
  const Checkpoint checkpoint = open(test::write_changed_toy_model(
      folder.path(), head_options(true, true, true), [](std::vector<NamedTensor>& tensors) {
        tensor_named(tensors, "lm_head.weight") = {
            "lm_head.weight", "I8", {3, 5}, std::string(15, 'x')};
      }));
  EXPECT_EQ(checkpoint.notices().size(), 1U);
}

TEST(OutputHead, UntiedUsesItsOwn) {
  const TempFolder folder;
  const Checkpoint checkpoint =
      open(test::write_toy_model(folder.path(), head_options(false, true, true)));
  EXPECT_FALSE(checkpoint.head_is_tied());
  EXPECT_EQ(checkpoint.global(GlobalTensor::LmHead).name, "lm_head.weight");
}

TEST(OutputHead, UntiedOrUnsaidWithoutAHeadIsRefused) {
  for (const std::optional<bool> tied : {std::optional<bool>(false), std::optional<bool>()}) {
    const TempFolder folder;
    test::write_toy_model(folder.path(), head_options(tied, true, false));
    expect_mentions(open_error(folder.path()), {"tie_word_embeddings", "lm_head.weight"});
  }
}

TEST(OutputHead, AMissingEmbeddingIsRefused) {
  const TempFolder folder;
  test::write_toy_model(folder / "untied", head_options(false, false, true));
  expect_mentions(open_error(folder / "untied"), {"'model.embed_tokens.weight'"});
  test::write_toy_model(folder / "tied", head_options(true, false, false));
  expect_mentions(open_error(folder / "tied"), {"'model.embed_tokens.weight'"});
}

TEST(OutputHead, OneThatHasOtherRowsThanTheEmbeddingIsRefused) {
  const TempFolder folder;
  test::write_changed_toy_model(folder.path(), {}, [](std::vector<NamedTensor>& tensors) {
    tensor_named(tensors, "lm_head.weight") = zero_tensor("lm_head.weight", {513, 64});
  });
  expect_mentions(open_error(folder.path()),
                  {"'lm_head.weight'", "[513, 64]", "[512, 64]", "vocab_size"});
}

// ---- real models --------------------------------------------------------------------------------

TEST(RealModels, TheDemonstrationModelLoads) {
  const Checkpoint checkpoint = open(test::source_path("configs/demo-6m"));
  EXPECT_TRUE(checkpoint.head_is_tied());
  EXPECT_TRUE(checkpoint.notices().empty());
  EXPECT_EQ(checkpoint.layer(5, LayerTensor::QProj).shape, (std::vector<std::int64_t>{256, 256}));
}

TEST(RealModels, AnUntiedModelInThreeShardsLoads) {
  const fs::path folder = test::test_data("models/novels-19m");
  FUT_REQUIRE_TEST_DATA(folder);
  const Checkpoint checkpoint = open(folder);
  EXPECT_FALSE(checkpoint.head_is_tied());
  EXPECT_TRUE(checkpoint.notices().empty());
  EXPECT_EQ(checkpoint.files().size(), 3U);
  EXPECT_EQ(checkpoint.layer(7, LayerTensor::QProj).shape, (std::vector<std::int64_t>{512, 384}));
}

TEST(RealModels, OneThatIsTiedTheOtherWayRoundLoads) {
  const fs::path folder = test::test_data("models/tinystories-656k");
  FUT_REQUIRE_TEST_DATA(folder);
  const Checkpoint checkpoint = open(folder);
  EXPECT_TRUE(checkpoint.head_is_tied());
  EXPECT_EQ(checkpoint.global(GlobalTensor::EmbedTokens).name, "lm_head.weight");
  EXPECT_EQ(checkpoint.global(GlobalTensor::EmbedTokens).dtype, DType::F32);
}

TEST(RealModels, APublishedIndexNamesItsMissingShards) {
  const fs::path published = test::test_data("configs/Llama-3.1-8B-Instruct");
  FUT_REQUIRE_TEST_DATA(published);
  expect_mentions(open_error(published),
                  {"4 of the 4", "model-00001-of-00004.safetensors", "missing"});
}

}  // namespace
}  // namespace fut
