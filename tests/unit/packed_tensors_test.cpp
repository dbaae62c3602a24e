// The table of a packed file's tensors: names, types, shapes, sizes, and what is refused.
#include "loader/packed_tensors.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <set>

#include "tests/support/expect_error.h"
#include "tests/unit/packed_case.h"

namespace fut {
namespace {

using test::error_message;
using test::expect_mentions;

ModelConfig uneven_config() {
  ModelConfig config = test::packable_config();
  config.hidden_size = 384;
  config.intermediate_size = 896;
  config.num_q_heads = 6;
  config.num_kv_heads = 2;
  config.vocab_size = 515;
  config.num_layers = 2;
  return config;
}

PackedTensor tensor_named(const std::vector<PackedTensor>& tensors, const std::string& name) {
  const auto it = std::find_if(tensors.begin(), tensors.end(),
                               [&](const PackedTensor& tensor) { return tensor.name == name; });
  if (it == tensors.end()) {
    ADD_FAILURE() << name << " is not in the table";
    return {};
  }
  return *it;
}

using Shape = std::vector<std::int64_t>;

TEST(PackedTensors, AreThoseOfTheTable) {
  const std::vector<PackedTensor> tensors = packed_tensors(uneven_config(), 128, true);
  EXPECT_EQ(std::ssize(tensors), 2 * kNumPackedLayerTensors + kNumPackedGlobalTensors);
  const auto expect = [&](const std::string& name, DType dtype, const Shape& shape) {
    const PackedTensor tensor = tensor_named(tensors, name);
    EXPECT_EQ(tensor.dtype, dtype) << name;
    EXPECT_EQ(tensor.shape, shape) << name;
  };
  const std::string l = "layers.1.";
  expect("model.embed_tokens.weight", DType::BF16, {515, 384});
  expect("lm_head.weight", DType::BF16, {515, 384});
  expect("lm_head.int8", DType::U8, {515, 384});
  expect("lm_head.int8_scale", DType::F32, {515});
  // Strips of 16 rows, records of 1056 bytes for each 128 columns.
  expect(l + "qkv_proj.int4", DType::U8, {40 * 3 * 1056});
  expect(l + "o_proj.int4", DType::U8, {24 * 3 * 1056});
  expect(l + "gate_up_proj.int4", DType::U8, {112 * 3 * 1056});
  expect(l + "down_proj.int4", DType::U8, {24 * 7 * 1056});
  expect(l + "qkv_proj.e4m3", DType::U8, {640, 384});
  expect(l + "o_proj.e4m3", DType::U8, {384, 384});
  expect(l + "gate_up_proj.e4m3", DType::U8, {1792, 384});
  expect(l + "down_proj.e4m3", DType::U8, {384, 896});
  expect(l + "qkv_proj.e4m3_scale", DType::F32, {640});
  expect(l + "down_proj.e4m3_scale", DType::F32, {384});
  expect(l + "attention_output_scale", DType::F32, {2});
  expect(l + "swiglu_output_scale", DType::F32, {1});
  expect(l + "stats.qkv_input", DType::F32, {384});
  expect(l + "stats.o_input", DType::F32, {384});
  expect(l + "stats.gate_up_input", DType::F32, {384});
  expect(l + "stats.down_input", DType::F32, {896});
  expect(l + "stats.swiglu", DType::F32, {2});
  expect(l + "stats.value_amax", DType::F32, {2});
}

TEST(PackedTensors, HaveDifferentNamesAndTheSizeOfTheirShape) {
  const std::vector<PackedTensor> tensors = packed_tensors(uneven_config(), 64, false);
  std::set<std::string> names = {std::string(kChecksumTensor)};
  for (const PackedTensor& tensor : tensors) {
    EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
    EXPECT_FALSE(tensor.name.starts_with("lm_head.weight"));
  }
  EXPECT_EQ(tensor_bytes(tensor_named(tensors, "model.embed_tokens.weight")), 515U * 384 * 2);
  EXPECT_EQ(tensor_bytes(tensor_named(tensors, "layers.0.qkv_proj.e4m3_scale")), 640U * 4);
}

TEST(PackedTensors, OneByOneAreThoseOfTheList) {
  const ModelConfig config = uneven_config();
  const std::vector<PackedTensor> all = packed_tensors(config, 64, true);
  EXPECT_EQ(all.front().name, packed_global_tensor(config, PackedGlobalTensor::EmbedTokens).name);
  EXPECT_EQ(all.back().name, packed_global_tensor(config, PackedGlobalTensor::LmHead).name);
  EXPECT_EQ(all[1].name, packed_layer_tensor(config, 64, 0, PackedLayerTensor::FirstPart).name);
  const PackedLayerTensor part = packed_part(PackedMatrix::DownProj, PackedPart::E4m3Scale);
  EXPECT_EQ(static_cast<int>(part) + 1, static_cast<int>(PackedLayerTensor::AttentionOutputScale));
  EXPECT_EQ(packed_layer_tensor(config, 64, 1, part).name, "layers.1.down_proj.e4m3_scale");
}

TEST(CheckPackable, AcceptsAnyWidthThatIsAMultipleOf128) {
  EXPECT_NO_THROW(check_packable(test::packable_config(), 64));
  EXPECT_NO_THROW(check_packable(test::packable_config(), 128));
  EXPECT_NO_THROW(check_packable(uneven_config(), 128));
}

TEST(CheckPackable, NamesTensorSizeGroupAndTheWayOut) {
  ModelConfig config = test::packable_config();
  config.intermediate_size = 344;
  expect_mentions(error_message(ErrorKind::Data, [&] { check_packable(config, 128); }),
                  {"down_proj", "128 x 344", "groups of 128", "--precision f32"});
  config = test::packable_config();
  config.hidden_size = 192;
  expect_mentions(error_message(ErrorKind::Data, [&] { check_packable(config, 64); }),
                  {"qkv_proj", "256 x 192", "groups of 64", "--precision f32"});
  config = test::packable_config();
  config.num_q_heads = 3;
  expect_mentions(error_message(ErrorKind::Data, [&] { check_packable(config, 64); }),
                  {"o_proj", "128 x 192"});
  config = test::packable_config();
  config.head_dim = 32;
  expect_mentions(error_message(ErrorKind::Data, [&] { check_packable(config, 64); }),
                  {"head_dim", "32", "64 or 128", "--precision f32"});
}

TEST(CheckPackable, RefusesOtherGroups) {
  for (const int group : {0, 7, 32, 192, 1'000'000'000}) {
    expect_mentions(
        error_message(ErrorKind::Usage, [&] { check_packable(test::packable_config(), group); }),
        {std::to_string(group), "64 or 128"});
  }
}

}  // namespace
}  // namespace fut
