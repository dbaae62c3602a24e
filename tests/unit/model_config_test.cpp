// config.json and generation_config.json: every spelling that has to load, and a table of those
// that must not, each with the key that the message has to name.
#include "loader/model_config.h"

#include <nlohmann/json.hpp>

#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"
#include "tests/support/toy_models.h"

namespace fut {
namespace {

using nlohmann::json;
using test::error_message;
using test::expect_mentions;
using test::TempFolder;
using test::write_file;

// A valid config.json, changed as `patch` says (null removes a key).
json config_with(const char* patch) {
  test::ToyModelOptions options;
  options.files.config_patch = json::parse(patch);
  return test::toy_config(options);
}

ModelConfig load(const json& config) {
  const TempFolder folder;
  write_file(folder / "config.json", config.dump(2));
  return load_model_config(folder.path());
}
ModelConfig load(const char* patch) {
  return load(config_with(patch));
}

std::string load_error_of_text(std::string_view text) {
  const TempFolder folder;
  write_file(folder / "config.json", text);
  const std::string message =
      error_message(ErrorKind::Data, [&] { (void)load_model_config(folder.path()); });
  expect_mentions(message, {(folder / "config.json").string()});
  return message;
}

bool same_rope(const RopeParams& a, const RopeParams& b) {
  return a.theta == b.theta && a.scaling == b.scaling && a.factor == b.factor &&
         a.low_freq_factor == b.low_freq_factor && a.high_freq_factor == b.high_freq_factor &&
         a.original_max_position_embeddings == b.original_max_position_embeddings;
}

// ---- what loads ---------------------------------------------------------------------------------

TEST(ModelConfig, ReadsEverySize) {
  const ModelConfig config = load("{}");
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.intermediate_size, 128);
  EXPECT_EQ(config.num_layers, 2);
  EXPECT_EQ(config.num_q_heads, 4);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.vocab_size, 512);
  EXPECT_EQ(config.max_position_embeddings, 1024);
  EXPECT_FLOAT_EQ(config.rms_norm_eps, 1e-5F);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_TRUE(config.notices.empty());
}

TEST(ModelConfig, HeadDimMayBeAbsentOrNullOrItsOwn) {
  EXPECT_EQ(load(R"({"head_dim":null})").head_dim, 16);
  json null_key = config_with("{}");
  null_key["head_dim"] = nullptr;
  EXPECT_EQ(load(null_key).head_dim, 16);
  EXPECT_EQ(load(R"({"head_dim":20})").head_dim, 20);
  // hidden_size need not be a multiple of the heads when head_dim is given.
  EXPECT_EQ(load(R"({"hidden_size":70,"head_dim":32})").head_dim, 32);
}

TEST(ModelConfig, KvHeadsDefaultToTheQueryHeads) {
  EXPECT_EQ(load(R"({"num_key_value_heads":null})").num_kv_heads, 4);
  json null_key = config_with("{}");
  null_key["num_key_value_heads"] = nullptr;
  EXPECT_EQ(load(null_key).num_kv_heads, 4);
}

TEST(ModelConfig, TheArchitectureMayBeGivenByModelTypeAlone) {
  EXPECT_EQ(load(R"({"architectures":null})").hidden_size, 64);
  EXPECT_EQ(load(R"({"model_type":null})").hidden_size, 64);
  EXPECT_EQ(load(R"({"architectures":["Other","LlamaForCausalLM"]})").hidden_size, 64);
}

TEST(ModelConfig, IntegersMayBeWrittenAsWholeFloats) {
  EXPECT_EQ(load(R"({"hidden_size":64.0})").hidden_size, 64);
}

TEST(ModelConfig, TypeOfTheWeightsHasTwoSpellings) {
  EXPECT_EQ(load(R"({"torch_dtype":"bfloat16"})").torch_dtype, "bfloat16");
  EXPECT_EQ(load(R"({"dtype":"float16"})").torch_dtype, "float16");
  EXPECT_EQ(load("{}").torch_dtype, "");
}

TEST(ModelConfig, WhatDoesNotMatterIsIgnored) {
  EXPECT_EQ(load(R"({"pretraining_tp":2,"use_cache":true,"pad_token_id":-1,"foo":{"bar":[1]},
                     "hidden_act":null,"partial_rotary_factor":1.0})")
                .hidden_size,
            64);
}

TEST(ModelConfig, EndTokensAreANumberOrAListOrNothing) {
  const auto eos = [](const char* text) {
    json config = config_with("{}");
    config["eos_token_id"] = json::parse(text);
    return load(config).eos_token_ids;
  };
  EXPECT_EQ(eos("7"), (std::vector<std::int32_t>{7}));
  EXPECT_EQ(eos("[7]"), (std::vector<std::int32_t>{7}));
  EXPECT_EQ(eos("[9,7,9,8]"), (std::vector<std::int32_t>{9, 7, 8}));
  EXPECT_EQ(eos("[]"), (std::vector<std::int32_t>{}));
  EXPECT_EQ(eos("null"), (std::vector<std::int32_t>{}));
  EXPECT_EQ(eos("2147483647"), (std::vector<std::int32_t>{2147483647}));
  EXPECT_EQ(load(R"({"eos_token_id":null,"bos_token_id":null})").eos_token_ids.size(), 0U);
  EXPECT_EQ(load(R"({"bos_token_id":null})").bos_token_id, std::nullopt);
  EXPECT_EQ(load(R"({"bos_token_id":3})").bos_token_id, 3);
}

TEST(ModelConfig, TieWordEmbeddingsIsFalseUnlessItSaysTrue) {
  EXPECT_TRUE(load(R"({"tie_word_embeddings":true})").tie_word_embeddings);
  EXPECT_FALSE(load(R"({"tie_word_embeddings":null})").tie_word_embeddings);
}

// ---- rotary embedding ---------------------------------------------------------------------------

constexpr char kLlama3Scaling[] =
    R"({"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,
                        "original_max_position_embeddings":64}})";

TEST(RopeConfig, Llama3ScalingHasTheSameMeaningInEverySpelling) {
  const RopeParams wanted = load(kLlama3Scaling).rope;
  EXPECT_EQ(wanted.scaling, RopeParams::Scaling::Llama3);
  EXPECT_EQ(wanted.theta, 500000.0);
  EXPECT_EQ(wanted.factor, 8.0);
  EXPECT_EQ(wanted.low_freq_factor, 1.0);
  EXPECT_EQ(wanted.high_freq_factor, 4.0);
  EXPECT_EQ(wanted.original_max_position_embeddings, 64);

  const std::string rest =
      R"("factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":64)";
  for (const std::string& patch : {
           R"({"rope_scaling":{"type":"llama3",)" + rest + "}}",
           R"({"rope_scaling":{"type":"llama3","rope_type":"llama3",)" + rest + "}}",
           R"({"rope_theta":null,"rope_parameters":{"rope_theta":5e5,"rope_type":"llama3",)" +
               rest + "}}",
           R"({"rope_parameters":{"rope_theta":500000,"rope_type":"llama3",)" + rest + "}}",
           R"({"rope_parameters":{"rope_type":"llama3",)" + rest +
               R"(},"rope_scaling":{"type":"llama3",)" + rest + "}}",
       }) {
    EXPECT_TRUE(same_rope(load(patch.c_str()).rope, wanted)) << patch;
  }
}

TEST(RopeConfig, WithoutScalingInEverySpelling) {
  const RopeParams wanted = load(R"({"rope_scaling":null})").rope;
  EXPECT_EQ(wanted.scaling, RopeParams::Scaling::None);
  json null_key = config_with("{}");
  null_key["rope_scaling"] = nullptr;
  EXPECT_TRUE(same_rope(load(null_key).rope, wanted));
  EXPECT_TRUE(same_rope(load(R"({"rope_scaling":{}})").rope, wanted));
  EXPECT_TRUE(same_rope(load(R"({"rope_scaling":{"rope_type":"default"}})").rope, wanted));
  EXPECT_TRUE(same_rope(load(R"({"rope_theta":null,"rope_parameters":{"rope_theta":500000.0,
                                 "rope_type":"default"}})")
                            .rope,
                        wanted));
}

TEST(RopeConfig, LinearScalingIsRead) {
  const RopeParams rope = load(R"({"rope_scaling":{"type":"linear","factor":4}})").rope;
  EXPECT_EQ(rope.scaling, RopeParams::Scaling::Linear);
  EXPECT_EQ(rope.factor, 4.0);
}

TEST(RopeConfig, ThetaMayBeWrittenInAnyWay) {
  for (const char* text : {"500000", "500000.0", "5e5", "5.0E+5", "5000000e-1"}) {
    std::string config = config_with(R"({"rope_theta":"HERE"})").dump();
    config.replace(config.find("\"HERE\""), 6, text);
    const TempFolder folder;
    write_file(folder / "config.json", config);
    EXPECT_EQ(load_model_config(folder.path()).rope.theta, 500000.0) << text;
  }
}

TEST(RopeConfig, AMissingThetaIsTheDocumentedDefaultAndIsSaid) {
  const ModelConfig config = load(R"({"rope_theta":null})");
  EXPECT_EQ(config.rope.theta, 10000.0);
  ASSERT_EQ(config.notices.size(), 1U);
  expect_mentions(config.notices[0], {"rope_theta", "10000"});
}

// ---- what is refused ----------------------------------------------------------------------------

struct BadConfig {
  std::string name;
  std::string patch;
  std::vector<std::string> facts;
};

std::vector<BadConfig> bad_sizes() {
  return {
      {"hidden_missing", R"({"hidden_size":null})", {"hidden_size", "missing"}},
      {"ffn_missing", R"({"intermediate_size":null})", {"intermediate_size"}},
      {"layers_missing", R"({"num_hidden_layers":null})", {"num_hidden_layers"}},
      {"heads_missing", R"({"num_attention_heads":null})", {"num_attention_heads"}},
      {"vocab_missing", R"({"vocab_size":null})", {"vocab_size"}},
      {"eps_missing", R"({"rms_norm_eps":null})", {"rms_norm_eps"}},
      {"positions_missing", R"({"max_position_embeddings":null})", {"max_position_embeddings"}},
      {"hidden_string", R"({"hidden_size":"64"})", {"hidden_size", "\"64\""}},
      {"hidden_list", R"({"hidden_size":[64]})", {"hidden_size", "[64]"}},
      {"hidden_true", R"({"hidden_size":true})", {"hidden_size", "true"}},
      {"hidden_zero", R"({"hidden_size":0})", {"hidden_size", "'0'"}},
      {"hidden_negative", R"({"hidden_size":-64})", {"hidden_size", "-64"}},
      {"hidden_fraction", R"({"hidden_size":64.5})", {"hidden_size", "64.5"}},
      {"hidden_huge", R"({"hidden_size":9223372036854775808})", {"hidden_size", "65536"}},
      {"hidden_float_huge", R"({"hidden_size":1e300})", {"hidden_size"}},
      {"layers_huge", R"({"num_hidden_layers":100000})", {"num_hidden_layers", "1024"}},
      {"vocab_huge", R"({"vocab_size":4294967296})", {"vocab_size", "16777216"}},
      {"ffn_huge", R"({"intermediate_size":4294967297})", {"intermediate_size"}},
      {"positions_zero", R"({"max_position_embeddings":0})", {"max_position_embeddings"}},
      {"eps_zero", R"({"rms_norm_eps":0})", {"rms_norm_eps"}},
      {"eps_string", R"({"rms_norm_eps":"1e-5"})", {"rms_norm_eps"}},
      {"kv_heads", R"({"num_key_value_heads":3})", {"num_key_value_heads", "'3'", "4"}},
      {"kv_heads_more", R"({"num_key_value_heads":8})", {"num_key_value_heads", "'8'"}},
      {"head_dim_odd", R"({"head_dim":15})", {"head_dim", "15", "even"}},
      {"head_dim_zero", R"({"head_dim":0})", {"head_dim"}},
      {"no_whole_head_dim",
       R"({"head_dim":null,"hidden_size":66})",
       {"num_attention_heads", "66", "hidden_size"}},
      {"odd_quotient",
       R"({"head_dim":null,"hidden_size":60})",
       {"num_attention_heads", "15", "even"}},
  };
}

std::vector<BadConfig> unsupported_models() {
  return {
      {"other_architecture",
       R"({"architectures":["MistralForCausalLM"]})",
       {"MistralForCausalLM", "LlamaForCausalLM"}},
      {"classifier",
       R"({"architectures":["LlamaForSequenceClassification"]})",
       {"LlamaForSequenceClassification"}},
      {"no_architecture",
       R"({"architectures":null,"model_type":null})",
       {"architectures", "model_type"}},
      {"empty_architectures", R"({"architectures":[]})", {"architectures"}},
      {"architectures_string", R"({"architectures":"LlamaForCausalLM"})", {"architectures"}},
      {"other_type", R"({"model_type":"qwen2"})", {"model_type", "qwen2"}},
      {"gelu", R"({"hidden_act":"gelu"})", {"hidden_act", "gelu", "silu"}},
      {"attention_bias", R"({"attention_bias":true})", {"attention_bias"}},
      {"mlp_bias", R"({"mlp_bias":true})", {"mlp_bias"}},
      {"bias_string", R"({"mlp_bias":"no"})", {"mlp_bias", "no"}},
      {"partial_rotation", R"({"partial_rotary_factor":0.5})", {"partial_rotary_factor", "0.5"}},
      {"partial_rotation_in_the_block",
       R"({"rope_parameters":{"rope_type":"default","rope_theta":10000.0,"partial_rotary_factor":0.5}})",
       {"partial_rotary_factor", "0.5"}},
      {"gptq",
       R"({"quantization_config":{"quant_method":"gptq","bits":4}})",
       {"quantization_config", "gptq", "unquantised"}},
      {"quantised_somehow", R"({"quantization_config":{}})", {"quantization_config"}},
      {"old_compressed",
       R"({"compression_config":{"quant_method":"compressed-tensors"}})",
       {"compression_config", "compressed-tensors"}},
      {"tie_string", R"({"tie_word_embeddings":"yes"})", {"tie_word_embeddings", "yes"}},
      {"eos_string", R"({"eos_token_id":"2"})", {"eos_token_id", "\"2\""}},
      {"eos_negative", R"({"eos_token_id":-1})", {"eos_token_id", "-1"}},
      {"eos_beyond_int32", R"({"eos_token_id":2147483648})", {"eos_token_id", "2147483648"}},
      {"eos_float", R"({"eos_token_id":2.5})", {"eos_token_id", "2.5"}},
      {"eos_true", R"({"eos_token_id":true})", {"eos_token_id", "true"}},
      {"eos_bad_list", R"({"eos_token_id":[1,"2"]})", {"eos_token_id", "\"2\""}},
      {"eos_nested", R"({"eos_token_id":[[1]]})", {"eos_token_id", "[[1]]"}},
      {"bos_negative", R"({"bos_token_id":-5})", {"bos_token_id", "-5"}},
      {"bos_list", R"({"bos_token_id":[1]})", {"bos_token_id"}},
  };
}

std::vector<BadConfig> bad_rope() {
  const auto scaling = [](const std::string& block) { return R"({"rope_scaling":)" + block + "}"; };
  return {
      {"unknown_kind",
       scaling(R"({"rope_type":"foo","factor":2})"),
       {"rope_scaling.rope_type", "foo"}},
      {"yarn", scaling(R"({"type":"yarn","factor":2})"), {"rope_scaling.type", "yarn"}},
      {"dynamic", scaling(R"({"type":"dynamic","factor":2})"), {"dynamic"}},
      {"two_kinds",
       scaling(R"({"rope_type":"llama3","type":"linear","factor":2})"),
       {"rope_scaling.rope_type", "rope_scaling.type", "llama3", "linear"}},
      {"no_kind", scaling(R"({"factor":2})"), {"rope_scaling.rope_type", "missing"}},
      {"kind_is_number", scaling(R"({"rope_type":3})"), {"rope_scaling.rope_type", "3"}},
      {"block_is_string", scaling(R"("llama3")"), {"rope_scaling", "llama3"}},
      {"no_factor",
       scaling(R"({"rope_type":"llama3","low_freq_factor":1,"high_freq_factor":4,
                   "original_max_position_embeddings":64})"),
       {"rope_scaling.factor", "missing"}},
      {"no_low",
       scaling(R"({"rope_type":"llama3","factor":8,"high_freq_factor":4,
                             "original_max_position_embeddings":64})"),
       {"rope_scaling.low_freq_factor"}},
      {"no_high",
       scaling(R"({"rope_type":"llama3","factor":8,"low_freq_factor":1,
                              "original_max_position_embeddings":64})"),
       {"rope_scaling.high_freq_factor"}},
      {"no_original",
       scaling(R"({"rope_type":"llama3","factor":8,"low_freq_factor":1,
                                  "high_freq_factor":4})"),
       {"rope_scaling.original_max_position_embeddings"}},
      {"low_is_high",
       scaling(R"({"rope_type":"llama3","factor":8,"low_freq_factor":4,
                                  "high_freq_factor":4,"original_max_position_embeddings":64})"),
       {"rope_scaling.high_freq_factor", "rope_scaling.low_freq_factor"}},
      {"linear_without_factor", scaling(R"({"type":"linear"})"), {"rope_scaling.factor"}},
      {"factor_below_one",
       scaling(R"({"type":"linear","factor":0.5})"),
       {"rope_scaling.factor", "0.5"}},
      {"factor_string", scaling(R"({"type":"linear","factor":"4"})"), {"rope_scaling.factor"}},
      {"nested_kind",
       R"({"rope_parameters":{"rope_type":"longrope"}})",
       {"rope_parameters.rope_type", "longrope"}},
      {"two_thetas",
       R"({"rope_parameters":{"rope_theta":10000}})",
       {"rope_parameters.rope_theta", "500000", "10000"}},
      {"two_blocks",
       R"({"rope_parameters":{"rope_type":"linear","factor":2},
                         "rope_scaling":{"rope_type":"linear","factor":4}})",
       {"rope_parameters", "rope_scaling"}},
      {"theta_zero", R"({"rope_theta":0})", {"rope_theta"}},
      {"theta_negative", R"({"rope_theta":-10000})", {"rope_theta", "-10000"}},
      {"theta_string", R"({"rope_theta":"5e5"})", {"rope_theta", "5e5"}},
  };
}

class BadModelConfig : public testing::TestWithParam<BadConfig> {};

TEST_P(BadModelConfig, IsRefusedWithKeyAndValue) {
  const BadConfig& bad = GetParam();
  expect_mentions(load_error_of_text(config_with(bad.patch.c_str()).dump(2)), bad.facts);
}

const auto bad_config_name = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Sizes, BadModelConfig, testing::ValuesIn(bad_sizes()), bad_config_name);
INSTANTIATE_TEST_SUITE_P(Unsupported, BadModelConfig, testing::ValuesIn(unsupported_models()),
                         bad_config_name);
INSTANTIATE_TEST_SUITE_P(Rope, BadModelConfig, testing::ValuesIn(bad_rope()), bad_config_name);

TEST(ModelConfig, ADamagedFileIsRefusedWithThePlace) {
  const std::string good = config_with("{}").dump(2);
  expect_mentions(load_error_of_text(""), {"empty"});
  expect_mentions(load_error_of_text("{\n\"hidden_size\": 1,\n oops}"), {"line 3", "byte 2"});
  expect_mentions(load_error_of_text(std::string_view(good).substr(0, good.size() / 2)),
                  {"cut short", std::to_string(good.size() / 2)});
  expect_mentions(load_error_of_text("[1, 2]"), {"array", "object"});
  expect_mentions(load_error_of_text("{\"a\":1,\"a\":1}"), {"'a'", "twice"});
  expect_mentions(load_error_of_text("{\"rope_theta\":1e999}"), {"too large"});
  expect_mentions(load_error_of_text("{\"rope_theta\":NaN}"), {"JSON"});
  expect_mentions(load_error_of_text("{\"a\":" + std::string(1'000'000, '[')), {"nested"});
  expect_mentions(load_error_of_text(good + std::string(1, '\0') + "x"), {"JSON"});
  expect_mentions(load_error_of_text("<!doctype html><html></html>"), {"web page"});
  expect_mentions(load_error_of_text("version https://git-lfs.github.com/spec/v1\n"), {"LFS"});
  expect_mentions(load_error_of_text("{\"a\":\"" + std::string(17U << 20, 'x') + "\"}"),
                  {"16777216"});
}

TEST(ModelConfig, AFolderThatIsNoModelSaysWhatIsMissing) {
  const TempFolder folder;
  const auto load_error = [&](std::string_view name) {
    return error_message(ErrorKind::Data, [&] { (void)load_model_config(folder / name); });
  };
  expect_mentions(load_error("nowhere"), {(folder / "nowhere").string(), "no such folder"});
  write_file(folder / "file", "x");
  expect_mentions(load_error("file"), {"file", "not a folder"});
  std::filesystem::create_directory(folder / "empty");
  expect_mentions(load_error("empty"), {"empty", "config.json"});
  std::filesystem::create_directory(folder / "meta");
  write_file(folder / "meta/params.json", "{}");
  expect_mentions(load_error("meta"), {"params.json", "Hugging Face"});
  std::filesystem::create_directories(folder / "odd/config.json");
  expect_mentions(load_error("odd"), {"config.json", "is a folder"});
}

// ---- generation_config.json ---------------------------------------------------------------------

GenerationDefaults load_defaults(std::string_view text) {
  const TempFolder folder;
  write_file(folder / "generation_config.json", text);
  return load_generation_defaults(folder.path());
}

TEST(GenerationDefaults, AreAllOptionalAndSoIsTheFile) {
  const TempFolder folder;
  const GenerationDefaults none = load_generation_defaults(folder.path());
  EXPECT_FALSE(none.do_sample || none.temperature || none.top_k || none.top_p || none.min_p ||
               none.repetition_penalty);
  EXPECT_TRUE(none.eos_token_ids.empty());
  EXPECT_FALSE(load_defaults(R"({"top_k":null,"foo":1})").top_k);
}

TEST(GenerationDefaults, AreRead) {
  const GenerationDefaults defaults = load_defaults(
      R"({"do_sample":true,"temperature":0.6,"top_k":50,"top_p":0.9,"min_p":0.05,
          "repetition_penalty":1.1,"eos_token_id":[128001,128008,128009]})");
  EXPECT_EQ(defaults.do_sample, true);
  EXPECT_EQ(defaults.temperature, 0.6);
  EXPECT_EQ(defaults.top_k, 50);
  EXPECT_EQ(defaults.top_p, 0.9);
  EXPECT_EQ(defaults.min_p, 0.05);
  EXPECT_EQ(defaults.repetition_penalty, 1.1);
  EXPECT_EQ(defaults.eos_token_ids, (std::vector<std::int32_t>{128001, 128008, 128009}));
}

TEST(GenerationDefaults, WrongValuesAreRefusedByKey) {
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
           {"do_sample", "1"},
           {"temperature", "\"hot\""},
           {"temperature", "-1"},
           {"temperature", "1e300"},
           {"top_k", "2.5"},
           {"top_k", "-2"},
           {"top_p", "0"},
           {"top_p", "1.5"},
           {"min_p", "-0.1"},
           {"repetition_penalty", "0"},
           {"repetition_penalty", "[]"},
           {"eos_token_id", "\"2\""},
           {"eos_token_id", "[-1]"},
       }) {
    std::string text = "{\"";
    text += key + "\":" + value + "}";
    const std::string message = error_message(ErrorKind::Data, [&] { (void)load_defaults(text); });
    expect_mentions(message, {"generation_config.json", key});
  }
  expect_mentions(error_message(ErrorKind::Data, [] { (void)load_defaults("{\"a\":"); }),
                  {"generation_config.json", "byte"});
}

// ---- published files ----------------------------------------------------------------------------

TEST(PublishedConfigs, LoadWithTheirKnownShapes) {
  struct Known {
    std::string name;
    int hidden, layers, q_heads, kv_heads, head_dim, ffn;
    double factor;
    bool tied;
  };
  FUT_REQUIRE_TEST_DATA(test::test_data("configs"));
  for (const Known& known :
       {Known{"Llama-3.1-8B-Instruct", 4096, 32, 32, 8, 128, 14336, 8, false},
        Known{"Llama-3.1-70B-Instruct", 8192, 80, 64, 8, 128, 28672, 8, false},
        Known{"Llama-3.2-1B-Instruct", 2048, 16, 32, 8, 64, 8192, 32, true},
        Known{"Llama-3.2-3B-Instruct", 3072, 28, 24, 8, 128, 8192, 32, true}}) {
    SCOPED_TRACE(known.name);
    const ModelConfig config = load_model_config(test::test_data("configs") / known.name);
    EXPECT_EQ(config.hidden_size, known.hidden);
    EXPECT_EQ(config.num_layers, known.layers);
    EXPECT_EQ(config.num_q_heads, known.q_heads);
    EXPECT_EQ(config.num_kv_heads, known.kv_heads);
    EXPECT_EQ(config.head_dim, known.head_dim);
    EXPECT_EQ(config.intermediate_size, known.ffn);
    EXPECT_EQ(config.vocab_size, 128256);
    EXPECT_EQ(config.max_position_embeddings, 131072);
    EXPECT_EQ(config.rope.scaling, RopeParams::Scaling::Llama3);
    EXPECT_EQ(config.rope.factor, known.factor);
    EXPECT_EQ(config.rope.original_max_position_embeddings, 8192);
    EXPECT_EQ(config.tie_word_embeddings, known.tied);
    EXPECT_EQ(config.eos_token_ids, (std::vector<std::int32_t>{128001, 128008, 128009}));
    EXPECT_TRUE(config.notices.empty());
    (void)load_generation_defaults(test::test_data("configs") / known.name);
  }
}

}  // namespace
}  // namespace fut
