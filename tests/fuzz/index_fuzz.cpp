// model.safetensors.index.json as any bytes, beside two good shards: whatever it says, no file outside the
// folder is opened, and a checkpoint that opens has every tensor in the file that the index names.
#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "loader/checkpoint.h"
#include "loader/expected_tensors.h"
#include "loader/weight_files.h"
#include "tests/fuzz/memory_folder.h"

namespace {

using namespace fut;

// The least Llama: every width 2, one layer.
ModelConfig smallest_config() {
  ModelConfig config;
  config.hidden_size = config.intermediate_size = config.head_dim = 2;
  config.num_layers = config.num_q_heads = config.num_kv_heads = 1;
  config.vocab_size = 2;
  return config;
}

// A file of F32 zeros of these shapes.
std::string shard_image(const std::vector<ExpectedTensor>& tensors) {
  std::string header = "{";
  std::size_t offset = 0;
  for (const ExpectedTensor& tensor : tensors) {
    std::size_t bytes = 4;
    for (const std::int64_t extent : tensor.shape) bytes *= static_cast<std::size_t>(extent);
    header += fmt::format(R"({}"{}":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}})",
                          header.size() > 1 ? "," : "", tensor.name, fmt::join(tensor.shape, ","),
                          offset, offset + bytes);
    offset += bytes;
  }
  header += "}";
  std::string image(8, '\0');
  image[0] = static_cast<char>(header.size() & 0xFFU);
  image[1] = static_cast<char>(header.size() >> 8);
  return image + header + std::string(offset, '\0');
}

// Shards "a" (the layer) and "b" (embedding, norm and head).
test::MemoryFolder& folder_with_shards() {
  static test::MemoryFolder folder;
  static const bool is_filled = [] {
    const ModelConfig config = smallest_config();
    std::vector<ExpectedTensor> layer;
    for (int i = 0; i < kNumLayerTensors; ++i) {
      layer.push_back(expected_layer_tensor(config, 0, static_cast<LayerTensor>(i)));
    }
    std::vector<ExpectedTensor> global;
    for (const auto which :
         {GlobalTensor::EmbedTokens, GlobalTensor::FinalNorm, GlobalTensor::LmHead}) {
      global.push_back(expected_global_tensor(config, which));
    }
    folder.put("a", shard_image(layer));
    folder.put("b", shard_image(global));
    return true;
  }();
  static_cast<void>(is_filled);
  return folder;
}

void check_files(const WeightFiles& files) {
  const std::set<std::string> there = {"a", "b", kIndexName};
  test::require(files.has_index && !files.names.empty(), "an index that names nothing");
  test::require(std::is_sorted(files.names.begin(), files.names.end()), "names out of order");
  for (const std::string& name : files.names) {
    test::require(there.contains(name), "a file that is not in the folder");
  }
  for (const auto& [tensor, name] : files.weight_map) {
    test::require(std::binary_search(files.names.begin(), files.names.end(), name),
                  "a tensor in a file that is not listed");
  }
}

void check_checkpoint(const Checkpoint& checkpoint, const std::filesystem::path& folder,
                      const WeightFiles& files) {
  test::require(checkpoint.files().size() == files.names.size(), "files that nobody named");
  for (const Safetensors& file : checkpoint.files()) {
    test::require(file.path().parent_path() == folder, "a file outside the folder");
  }
  std::vector<std::byte> bytes;
  for (int i = 0; i < kNumLayerTensors; ++i) {
    const TensorInfo& info = checkpoint.layer(0, static_cast<LayerTensor>(i));
    test::require(files.weight_map.at(info.name) == "a", "a tensor from another file");
    bytes.resize(info.bytes);
    checkpoint.read(info, bytes);
  }
  for (const auto which :
       {GlobalTensor::EmbedTokens, GlobalTensor::FinalNorm, GlobalTensor::LmHead}) {
    test::require(files.weight_map.at(checkpoint.global(which).name) == "b",
                  "a tensor from another file");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  test::MemoryFolder& folder = folder_with_shards();
  folder.put(kIndexName, test::as_text(data, size));
  WeightFiles files;
  std::vector<std::string> notices;
  if (!test::accepted([&] { files = find_weight_files(folder.path(), notices); })) return 0;
  check_files(files);
  test::accepted([&] {
    ModelConfig config = smallest_config();
    check_checkpoint(Checkpoint::open(folder.path(), config), folder.path(), files);
  });
  return 0;
}
