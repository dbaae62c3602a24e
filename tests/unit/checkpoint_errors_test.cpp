// Checkpoints that must not load: a change to a good folder and the facts that the message has to
// name. What does load is in checkpoint_test.cpp.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>

#include "loader/checkpoint.h"
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

const auto case_name = [](const auto& info) { return info.param.name; };

// ---- bad tensors --------------------------------------------------------------------------------

struct BadTensors {
  std::string name;
  std::function<void(std::vector<NamedTensor>&)> change;
  std::vector<std::string> facts;
};

std::function<void(std::vector<NamedTensor>&)> with(NamedTensor tensor) {
  return [tensor](std::vector<NamedTensor>& tensors) { tensors.push_back(tensor); };
}
std::function<void(std::vector<NamedTensor>&)> reshaped(std::string name,
                                                        std::vector<std::int64_t> shape) {
  return [=](std::vector<NamedTensor>& tensors) {
    tensor_named(tensors, name) = zero_tensor(name, shape);
  };
}
std::function<void(std::vector<NamedTensor>&)> renamed(
    const std::function<std::string(std::string)>& rename) {
  return [=](std::vector<NamedTensor>& tensors) {
    for (NamedTensor& tensor : tensors) tensor.name = rename(tensor.name);
  };
}

std::vector<BadTensors> bad_tensors() {
  const std::string q = "model.layers.1.self_attn.q_proj";
  return {
      {"none",
       [](auto& tensors) { tensors.clear(); },
       {"'model.layers.0.input_layernorm.weight'", "21 of the 21"}},
      {"one_missing",
       [](auto& tensors) {
         std::erase_if(tensors, [](auto& t) { return t.name == "model.norm.weight"; });
       },
       {"'model.norm.weight'", "1 of the 21"}},
      {"q_shape",
       reshaped(q + ".weight", {64, 32}),
       {"'" + q + ".weight'", "[64, 32]", "[64, 64]", "num_attention_heads 4 x head_dim 16"}},
      {"k_shape",
       reshaped("model.layers.0.self_attn.k_proj.weight", {64, 64}),
       {"[64, 64]", "[32, 64]", "num_key_value_heads 2 x head_dim 16"}},
      {"o_shape", reshaped("model.layers.0.self_attn.o_proj.weight", {64, 32}), {"[64, 32]"}},
      {"down_shape",
       reshaped("model.layers.0.mlp.down_proj.weight", {128, 64}),
       {"[128, 64]", "[64, 128]", "intermediate_size 128"}},
      {"norm_shape", reshaped("model.norm.weight", {64, 1}), {"[64, 1]", "[64]", "hidden_size 64"}},
      {"embedding_width", reshaped("model.embed_tokens.weight", {512, 32}), {"[512, 32]"}},
      {"embedding_rank", reshaped("model.embed_tokens.weight", {512, 64, 1}), {"[512, 64, 1]"}},
      {"embedding_empty", reshaped("model.embed_tokens.weight", {0, 64}), {"[0, 64]"}},
      {"type",
       [](auto& tensors) {
         tensor_named(tensors, "model.norm.weight") = {
             "model.norm.weight", "F64", {64}, std::string(512, '\0')};
       },
       {"'model.norm.weight'", "F64", "BF16"}},
      {"bias", with(zero_tensor(q + ".bias", {64})), {q + ".bias", "bias"}},
      {"gptq",
       with({q + ".qweight", "I32", {8, 64}, std::string(2048, 'x')}),
       {q + ".qweight", "quantised"}},
      {"compressed",
       with({q + ".weight_packed", "I32", {64, 8}, std::string(2048, 'x')}),
       {q + ".weight_packed", "quantised"}},
      {"fp8", with(zero_tensor(q + ".weight_scale", {64, 1})), {q + ".weight_scale", "quantised"}},
      {"nf4",
       with({q + ".weight.quant_state.bitsandbytes__nf4", "U8", {4}, std::string(4, 'x')}),
       {"quantised"}},
      {"adapter", with(zero_tensor("base_model.model." + q + ".lora_A.weight", {4, 64})), {"LoRA"}},
      {"unknown",
       with(zero_tensor("model.layers.0.self_attn.q_norm.weight", {16})),
       {"'model.layers.0.self_attn.q_norm.weight'", "unknown"}},
      {"more_layers",
       with(zero_tensor("model.layers.2.input_layernorm.weight", {64})),
       {"model.layers.2", "num_hidden_layers is 2"}},
      {"no_prefix",
       renamed([](const std::string& n) { return n.starts_with("model.") ? n.substr(6) : n; }),
       {"'model.layers.0.input_layernorm.weight'", "'model.'"}},
      {"meta_names",
       renamed([](const std::string& n) {
         return n == "model.embed_tokens.weight" ? "tok_embeddings.weight" : n;
       }),
       {"Meta", "Hugging Face"}},
  };
}

class CheckpointWithBadTensors : public testing::TestWithParam<BadTensors> {};

TEST_P(CheckpointWithBadTensors, IsRefusedWithWhatIsWrong) {
  const TempFolder folder;
  test::write_changed_toy_model(folder.path(), {}, GetParam().change);
  const std::string message = open_error(folder.path());
  expect_mentions(message, {folder.path().string()});
  expect_mentions(message, GetParam().facts);
}

INSTANTIATE_TEST_SUITE_P(Tensors, CheckpointWithBadTensors, testing::ValuesIn(bad_tensors()),
                         case_name);

// ---- bad folders --------------------------------------------------------------------------------

// Changes a folder that holds three shards and an index.
struct BadFolder {
  std::string name;
  std::function<void(const fs::path&)> change;
  std::vector<std::string> facts;
};

void change_index(const fs::path& folder, const std::function<void(json&)>& change) {
  json index = json::parse(test::read_file(folder / kIndex));
  change(index);
  write_file(folder / kIndex, index.dump());
}
std::function<void(const fs::path&)> mapped_to(const std::string& file) {
  return [=](const fs::path& folder) {
    fs::copy_file(folder / test::shard_name(0, 3), folder.parent_path() / "x.safetensors",
                  fs::copy_options::overwrite_existing);
    change_index(folder, [&](json& index) { index["weight_map"]["lm_head.weight"] = file; });
  };
}
std::function<void(const fs::path&)> index_is(const std::string& text) {
  return [=](const fs::path& folder) { write_file(folder / kIndex, text); };
}

// Without the index and with only the files given.
std::function<void(const fs::path&)> only(const std::vector<std::string>& names) {
  return [=](const fs::path& folder) {
    for (const int shard : {0, 1, 2}) fs::remove(folder / test::shard_name(shard, 3));
    fs::remove(folder / kIndex);
    for (const std::string& name : names) write_file(folder / name, "x");
  };
}

std::vector<BadFolder> bad_indexes() {
  return {
      {"shard_missing",
       [](auto& f) { fs::remove(f / test::shard_name(1, 3)); },
       {"model-00002-of-00003.safetensors", "missing", "1 of the 3"}},
      {"all_shards_missing",
       [](auto& f) {
         for (const int shard : {0, 1, 2}) fs::remove(f / test::shard_name(shard, 3));
       },
       {"3 of the 3", "model-00001-of-00003", "model-00002-of-00003", "model-00003-of-00003"}},
      {"dangling_link",
       [](auto& f) {
         fs::remove(f / test::shard_name(2, 3));
         fs::create_symlink("../blobs/gone", f / test::shard_name(2, 3));
       },
       {"model-00003-of-00003.safetensors", "link"}},
      {"shard_is_a_folder",
       [](auto& f) {
         fs::remove(f / test::shard_name(2, 3));
         fs::create_directory(f / test::shard_name(2, 3));
       },
       {"model-00003-of-00003.safetensors", "folder"}},
      {"shard_cut",
       [](auto& f) {
         const fs::path shard = f / test::shard_name(1, 3);
         fs::resize_file(shard, fs::file_size(shard) - 1);
       },
       {"model-00002-of-00003.safetensors", "cut short"}},
      {"shard_with_junk",
       [](auto& f) {
         const fs::path shard = f / test::shard_name(0, 3);
         write_file(shard, test::read_file(shard) + std::string(16, 'j'));
       },
       {"model-00001-of-00003.safetensors", "16 bytes too many"}},
      {"tensor_dropped",
       [](auto& f) {
         std::vector<NamedTensor> tensors = test::toy_tensors(in_shards(3));
         test::write_safetensors(f / test::shard_name(0, 3), std::span(tensors).subspan(1, 6));
       },
       {"'lm_head.weight' is not in model-00001-of-00003.safetensors"}},
      {"wrong_shard",
       [](auto& f) {
         change_index(f, [](json& index) {
           index["weight_map"]["lm_head.weight"] = test::shard_name(2, 3);
         });
       },
       {"'lm_head.weight' is in model-00001-of-00003.safetensors, not in "
        "model-00003-of-00003.safetensors"}},
      {"tensor_in_two_shards",
       [](auto& f) {
         std::vector<NamedTensor> tensors = test::toy_tensors(in_shards(3));
         std::vector<NamedTensor> last(tensors.begin() + 14, tensors.end());
         last.push_back(tensors.front());
         test::write_safetensors(f / test::shard_name(2, 3), last);
       },
       {"'lm_head.weight'", "two files", "00001-of", "00003-of"}},
      {"needed_tensor_left_out",
       [](auto& f) {
         change_index(f, [](json& index) { index["weight_map"].erase("model.norm.weight"); });
       },
       {"'model.norm.weight'", "model-00003-of-00003.safetensors", "does not list"}},
      {"needed_head_left_out",
       [](auto& f) {
         change_index(f, [](json& index) { index["weight_map"].erase("lm_head.weight"); });
       },
       {"'lm_head.weight'", "does not list"}},
      {"empty_object", index_is("{}"), {kIndex, "weight_map"}},
      {"empty_map", index_is(R"({"weight_map":{}})"), {kIndex, "weight_map"}},
      {"map_is_list", index_is(R"({"weight_map":[]})"), {kIndex, "weight_map"}},
      {"value_is_number", index_is(R"({"weight_map":{"a":1}})"), {kIndex, "'a'"}},
      {"cut", index_is(R"({"weight_map":{"a")"), {kIndex, "byte"}},
      {"empty_file", index_is(""), {kIndex, "empty"}},
      {"parent_path", mapped_to("../x.safetensors"), {"../x.safetensors", "same folder"}},
      {"absolute_path", mapped_to("/etc/passwd"), {"/etc/passwd", "same folder"}},
      {"sub_folder", mapped_to("sub/x.safetensors"), {"sub/x.safetensors"}},
      {"dots", mapped_to(".."), {"'\"..\"'"}},
      {"empty_name", mapped_to(""), {"same folder"}},
  };
}

std::vector<BadFolder> folders_without_an_index() {
  return {
      {"shards_alone",
       [](auto& f) { fs::remove(f / kIndex); },
       {"3 safetensors files", "model-00001-of-00003.safetensors", kIndex}},
      {"nothing", only({}), {"model.safetensors", kIndex}},
      {"gguf", only({"model-q4.gguf"}), {"GGUF", "model-q4.gguf", "safetensors"}},
      {"pytorch", only({"pytorch_model.bin"}), {"PyTorch", "pytorch_model.bin", "save_pretrained"}},
      {"meta", only({"consolidated.00.pth"}), {"Meta", "consolidated.00.pth"}},
      {"dangling_model",
       [](auto& f) {
         only({})(f);
         fs::create_symlink("../blobs/gone", f / "model.safetensors");
       },
       {"model.safetensors", "../blobs/gone"}},
      {"model_is_a_folder",
       [](auto& f) {
         only({})(f);
         fs::create_directory(f / "model.safetensors");
       },
       {"model.safetensors", "folder"}},
  };
}

class BadCheckpointFolder : public testing::TestWithParam<BadFolder> {};

TEST_P(BadCheckpointFolder, IsRefusedWithWhatIsWrong) {
  const TempFolder folder;
  test::write_toy_model(folder / "model", in_shards(3));
  GetParam().change(folder / "model");
  const std::string message = open_error(folder / "model");
  expect_mentions(message, {(folder / "model").string()});
  expect_mentions(message, GetParam().facts);
}

INSTANTIATE_TEST_SUITE_P(Index, BadCheckpointFolder, testing::ValuesIn(bad_indexes()), case_name);
INSTANTIATE_TEST_SUITE_P(NoIndex, BadCheckpointFolder,
                         testing::ValuesIn(folders_without_an_index()), case_name);

TEST(Checkpoint, ListsTheFirstMissingFilesAndACount) {
  const TempFolder folder;
  test::write_toy_model(folder.path(), in_shards(20));
  for (int shard = 2; shard < 20; ++shard) fs::remove(folder / test::shard_name(shard, 20));
  expect_mentions(open_error(folder.path()),
                  {"18 of the 20", "model-00003-of-00020", "model-00005-of-00020", "15 more"});
}

TEST(Checkpoint, AShardThatShrinksWhileItIsOpenIsAnErrorOnReading) {
  const TempFolder folder;
  const Checkpoint checkpoint = open(test::write_toy_model(folder.path(), in_shards(2)));
  fs::resize_file(folder / test::shard_name(1, 2), 4096);
  const TensorInfo& norm = checkpoint.global(GlobalTensor::FinalNorm);
  expect_mentions(error_message(ErrorKind::Runtime, [&] { (void)bytes_of(checkpoint, norm); }),
                  {"model-00002-of-00002.safetensors", "4096"});
}

}  // namespace
}  // namespace fut
