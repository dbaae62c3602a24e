// Tensors of a quantised folder of several chunks in a backend's memory: the same bytes as read one by one,
// whoever reads them, and nothing where the file is damaged.
#include "engine/packed_upload.h"

#include <fstream>
#include <gtest/gtest.h>

#include "engine/parallel.h"
#include "loader/packed_checksums.h"
#include "tests/support/expect_error.h"
#include "tests/support/shape_models.h"
#include "tests/support/temp_folder.h"

namespace fut::test {
namespace {

class PackedUploads : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder = std::make_unique<TempFolder>();
    write_file(*folder / "shape.json", R"({
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
      "intermediate_size": 384, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 50000,
      "max_position_embeddings": 2048, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
      "hidden_act": "silu", "tie_word_embeddings": false, "torch_dtype": "bfloat16",
      "bos_token_id": 49744, "eos_token_id": 49745})");
    ShapeModelOptions options;
    options.shape = *folder / "shape.json";
    (void)write_shape_packed(*folder / "p", options);
  }
  static void TearDownTestSuite() { folder.reset(); }

  PackedUploads() {
    std::string notice;
    backend_ = make_backend({.kind = DeviceRequest::Kind::Cpu, .cpu_threads = 1}, notice);
  }

  [[nodiscard]] static PackedModel open(const std::filesystem::path& path) {
    ModelConfig config = load_model_config(path);
    return PackedModel::open(path, config);
  }
  // Those of layer 1 and the head, out of order.
  [[nodiscard]] static std::vector<const TensorInfo*> some_tensors(const PackedModel& packed) {
    std::vector<const TensorInfo*> tensors = {&packed.global(PackedGlobalTensor::LmHead),
                                              &packed.global(PackedGlobalTensor::LmHeadInt8)};
    for (int i = 0; i < kNumPackedLayerTensors; ++i) {
      tensors.push_back(&packed.layer(1, static_cast<PackedLayerTensor>(i)));
    }
    return tensors;
  }

  struct Destination {
    const TensorInfo* info;
    DeviceBuffer device;
    std::vector<std::byte> host;
  };
  // Every tensor to the device, every second one to the host, too.
  std::vector<Destination> upload(const PackedModel& packed, const Progress& progress,
                                  const ParallelFor& parallel_for, LoadTimes* times = nullptr) {
    std::vector<Destination> all;
    PackedUpload upload(*backend_, packed, progress);
    for (const TensorInfo* info : some_tensors(packed)) {
      all.push_back({info, backend_->allocate(info->bytes), {}});
      if (all.size() % 2 == 0) all.back().host.resize(info->bytes);
      upload.add(*info, all.back().device.as<std::byte>(),
                 all.back().host.empty() ? nullptr : all.back().host.data());
    }
    const LoadTimes taken = upload.run(parallel_for);
    if (times != nullptr) *times = taken;
    return all;
  }

  std::unique_ptr<Backend> backend_;
  static std::unique_ptr<TempFolder> folder;
};
std::unique_ptr<TempFolder> PackedUploads::folder;

TEST_F(PackedUploads, GiveTheBytesOfTheFileWhateverTheThreads) {
  const PackedModel reference = open(*folder / "p");
  for (const int threads : {1, 2, 5, 40}) {
    const PackedModel packed = open(*folder / "p");
    std::uint64_t last = 0, total = 0;
    LoadTimes times;
    const auto all = upload(
        packed,
        [&](std::uint64_t done, std::uint64_t of) {
          EXPECT_GT(done, last);
          last = done;
          total = of;
        },
        parallel_for_on_threads(threads), &times);
    EXPECT_EQ(last, total);
    EXPECT_EQ(times.bytes, total);
    EXPECT_GT(total, 2 * kChecksumChunk);
    for (const Destination& d : all) {
      std::vector<std::byte> expected(d.info->bytes), actual(d.info->bytes);
      reference.read(*d.info, expected, {});
      backend_->download(actual, d.device.as<std::byte>());
      EXPECT_EQ(actual, expected) << d.info->name;
      if (d.host.empty()) continue;
      EXPECT_EQ(d.host, expected) << d.info->name;
    }
  }
}

TEST_F(PackedUploads, ReadOnlyTheChunksThatAreWanted) {
  const PackedModel packed = open(*folder / "p");
  LoadTimes times;
  (void)upload(packed, {}, {}, &times);
  EXPECT_LT(times.bytes + kChecksumChunk,
            packed.info().file_bytes);  // the embedding's are left out
}

TEST_F(PackedUploads, OfADamagedChunkAreAnErrorThatNamesIt) {
  const std::filesystem::path copy = *folder / "damaged";
  std::filesystem::copy(*folder / "p", copy);
  const std::uint64_t place =
      open(copy).global(PackedGlobalTensor::LmHeadInt8).offset + kChecksumChunk / 2;
  {
    std::fstream file(copy / "model.safetensors", std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(place));
    file.put('\x55');
    file.put('\xAA');
  }
  for (const int threads : {1, 3}) {
    const PackedModel packed = open(copy);
    const std::size_t before = backend_->memory().free_bytes;
    const std::string message = error_message(
        ErrorKind::Data, [&] { (void)upload(packed, {}, parallel_for_on_threads(threads)); });
    expect_mentions(message, {"lm_head.int8", "checksum", "damaged"});
    EXPECT_EQ(backend_->memory().free_bytes, before);
  }
}

TEST_F(PackedUploads, EndWhereTheProgressThrows) {
  struct Stop {};
  const PackedModel packed = open(*folder / "p");
  int calls = 0;
  EXPECT_THROW((void)upload(
                   packed,
                   [&](std::uint64_t, std::uint64_t) {
                     ++calls;
                     throw Stop{};
                   },
                   parallel_for_on_threads(1)),
               Stop);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace fut::test
