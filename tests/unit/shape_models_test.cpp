// Models of real shapes, written small: the program's own readers take them, and what they compute is
// finite.
#include "tests/support/shape_models.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <set>

#include "engine/engine.h"
#include "engine/model_folder.h"
#include "engine/parallel.h"
#include "kernels/numeric/formats.h"
#include "tests/support/temp_folder.h"
#include "tokenizer/sha256.h"

namespace fut::test {
namespace {

constexpr int kVocab = 6000;

class ShapeModels : public ::testing::Test {
 protected:
  // Llama's proportions, two layers.
  [[nodiscard]] ShapeModelOptions options() const {
    write_file(folder_ / "shape.json", R"({
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
      "intermediate_size": 768, "num_hidden_layers": 5, "num_attention_heads": 4,
      "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 6000,
      "max_position_embeddings": 2048, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
      "hidden_act": "silu", "tie_word_embeddings": false, "torch_dtype": "bfloat16",
      "bos_token_id": 5744, "eos_token_id": [5745, 5752, 5753]})");
    ShapeModelOptions o;
    o.shape = folder_ / "shape.json";
    o.num_layers = 2;
    o.threads = 3;
    return o;
  }

  // Ids of a greedy reply.
  static std::vector<std::int32_t> reply(Backend& backend, Model model, Precision precision) {
    EngineOptions engine_options;
    engine_options.context_tokens = 128;
    engine_options.kv_cache = resolve_kv_cache(model.config(), precision, {});
    Engine engine(backend, std::move(model), engine_options);
    Request request;
    request.prompt = {5744, 17, 900};
    request.max_new_tokens = 8;
    engine.submit(std::move(request));
    std::vector<std::int32_t> ids;
    while (!engine.idle()) {
      for (const TokenEvent& event : engine.step()) ids.push_back(event.token);
    }
    return ids;
  }

  static std::unique_ptr<Backend> cpu() {
    std::string notice;
    return make_backend({.kind = DeviceRequest::Kind::Cpu, .cpu_threads = 2}, notice);
  }

  TempFolder folder_;
};

TEST_F(ShapeModels, ACheckpointIsReadInAsManyShardsAndComputesFiniteLogits) {
  const WrittenBytes written = write_shape_checkpoint(folder_ / "c", options());
  ModelConfig config = load_model_config(folder_ / "c");
  EXPECT_EQ(config.num_layers, 2);
  const Checkpoint checkpoint = Checkpoint::open(folder_ / "c", config);
  ASSERT_EQ(checkpoint.files().size(), 4U);
  EXPECT_EQ(checkpoint.total_bytes(), written.bytes);
  for (const Safetensors& file : checkpoint.files()) EXPECT_FALSE(file.tensors().empty());
  const TensorInfo& gate = checkpoint.layer(1, LayerTensor::GateProj);
  std::vector<std::byte> bytes(gate.bytes);
  checkpoint.read(gate, bytes);
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < bytes.size(); i += 2) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + i, sizeof(bits));
    const double value = bf16_to_f32(bits);
    sum += value;
    squares += value * value;
  }
  const auto count = static_cast<double>(bytes.size() / 2);
  EXPECT_NEAR(sum / count, 0, 0.001);
  EXPECT_NEAR(std::sqrt(squares / count), 0.02, 0.001);
  const auto backend = cpu();
  for (const Precision precision : {Precision::F32, Precision::Bf16}) {
    const auto ids =
        reply(*backend, Model::load(*backend, checkpoint, config, precision, {}, true), precision);
    EXPECT_EQ(ids.size(), 8U);
    EXPECT_EQ(std::ranges::count(ids, kNoToken), 0);
  }
}

TEST_F(ShapeModels, AQuantisedFolderMeetsItsChecksumsAndComputesFiniteLogits) {
  (void)write_shape_packed(folder_ / "p", options());
  ModelConfig config = load_model_config(folder_ / "p");
  const PackedModel packed = PackedModel::open(folder_ / "p", config);
  packed.verify(parallel_for_on_threads(2), {});
  EXPECT_EQ(config_difference(packed.info().source, folder_ / "p", sha256_hex), "");
  const auto backend = cpu();
  for (const Precision precision : {Precision::Fp8, Precision::Int4}) {
    const auto ids =
        reply(*backend, Model::load_packed(*backend, packed, config, precision), precision);
    EXPECT_EQ(ids.size(), 8U);
    EXPECT_EQ(std::ranges::count(ids, kNoToken), 0);
    EXPECT_GT(std::set<std::int32_t>(ids.begin(), ids.end()).size(), 1U);
  }
  const SaturationCounts clipped = backend->saturations();
  EXPECT_EQ(clipped.attention_outputs + clipped.swiglu_outputs, 0U);
}

TEST_F(ShapeModels, EqualSeedsGiveEqualFilesWhateverTheThreads) {
  ShapeModelOptions o = options();
  (void)write_shape_packed(folder_ / "a", o);
  o.threads = 1;
  (void)write_shape_packed(folder_ / "b", o);
  EXPECT_EQ(read_file(folder_ / "a/model.safetensors"), read_file(folder_ / "b/model.safetensors"));
  o.seed = 2;
  (void)write_shape_packed(folder_ / "c", o);
  EXPECT_NE(read_file(folder_ / "a/model.safetensors"), read_file(folder_ / "c/model.safetensors"));
}

TEST_F(ShapeModels, TheTokenizerGivesTextBackAndKnowsLlamasSpecialTokens) {
  (void)write_shape_packed(folder_ / "p", options());
  const ModelFolder model = read_model_folder(folder_ / "p");
  EXPECT_EQ(model.tokenizer.vocab_size(), kVocab);
  EXPECT_EQ(model.end_ids, (std::vector<TokenId>{kVocab - 255, kVocab - 248, kVocab - 247}));
  std::string text;
  for (const TokenId id : model.tokenizer.encode("hello world", {})) {
    text += model.tokenizer.is_special(id) ? "" : model.tokenizer.piece(id);
  }
  EXPECT_EQ(text, "hello world");
}

}  // namespace
}  // namespace fut::test
