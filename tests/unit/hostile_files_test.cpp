// Files made to hurt: each is refused with words, and while it is refused memory and time stay within a
// bound that depends on its size alone. Every integer in these files is one that some program has
// multiplied, allocated or indexed with before it looked at it. Tokenizers: hostile_tokenizers_test.cpp.
#include <functional>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "loader/checkpoint.h"
#include "loader/model_config.h"
#include "loader/packed_model.h"
#include "loader/source_identity.h"
#include "loader/weight_files.h"
#include "tests/support/expect_error.h"
#include "tests/support/safetensors_writer.h"
#include "tests/unit/hostile_case.h"

namespace fut::test {
namespace {

void read_config(const std::filesystem::path& folder) {
  static_cast<void>(load_model_config(folder));
}
void read_generation(const std::filesystem::path& folder) {
  static_cast<void>(load_generation_defaults(folder));
}
void read_weights(const std::filesystem::path& folder) {
  ModelConfig config;
  config.hidden_size = config.intermediate_size = config.head_dim = config.vocab_size = 2;
  config.num_layers = config.num_q_heads = config.num_kv_heads = 1;
  static_cast<void>(Checkpoint::open(folder, config));
}
void read_packed(const std::filesystem::path& folder) {
  ModelConfig config;
  EXPECT_TRUE(PackedModel::is_packed(folder));
  static_cast<void>(PackedModel::open(folder, config));
}

// ---- weights ------------------------------------------------------------------------------------

std::string with_length(std::uint64_t length, std::string_view rest) {
  std::string image(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) image[i] = static_cast<char>(length >> (8 * i) & 0xFFU);
  return image + std::string(rest);
}

std::string tensor_file(std::string_view shape, std::string_view offsets,
                        std::size_t payload = 24) {
  const std::string header =
      fmt::format(R"({{"a":{{"dtype":"F32","shape":[{}],"data_offsets":[{}]}}}})", shape, offsets);
  return safetensors_image(header, std::string(payload, '\0'));
}

std::vector<Hostile> weight_files() {
  const auto tensor = [](std::string_view shape, std::string_view offsets) {
    return [=] { return tensor_file(shape, offsets); };
  };
  const char* const file = kModelFileName;
  return {
      {"header_2_63", file, read_weights, [] { return with_length(1ULL << 63U, times("{", 92)); },
       "claims a header of 9223372036854775808 bytes"},
      {"header_2_64", file, read_weights, [] { return with_length(~0ULL, times("{", 92)); },
       "claims a header of 18446744073709551615 bytes"},
      {"header_100_million", file, read_weights,
       [] { return with_length(100'000'000, times("{", 92)); }, "claims a header of 100000000"},
      {"shape_1e9_cubed", file, read_weights, tensor("1000000000,1000000000,1000000000", "0,24"),
       "is too large for any file"},
      {"shape_wraps_to_24", file, read_weights, tensor("4611686018427387910", "0,24"),
       "is too large for any file"},
      {"shape_2_63", file, read_weights, tensor("9223372036854775808", "0,24"),
       "is too large for any file"},
      {"shape_2_63_times_0", file, read_weights, tensor("0,9223372036854775808", "0,0"),
       "is too large for any file"},
      {"shape_beyond_64_bits", file, read_weights, tensor("36893488147419103232", "0,24"),
       "must hold integers"},
      {"shape_negative", file, read_weights, tensor("-6", "0,24"), "must hold integers"},
      {"shape_1e9_dimensions", file, read_weights,
       [] { return tensor_file(times("1,", 500'000) + "1", "0,4"); }, "more than 16 dimensions"},
      {"offset_2_63", file, read_weights, tensor("6", "0,9223372036854775808"), "span"},
      {"offset_wraps", file, read_weights, tensor("6", "18446744073709551600,8"), "run backwards"},
      {"offset_1_tib", file, read_weights, tensor("274877906944", "0,1099511627776"), "cut short"},
      {"nested_arrays", file, read_weights,
       [] { return safetensors_image("{\"a\":" + times("[", kMiB), "0000"); }, "must be an object"},
      {"nested_objects", file, read_weights,
       [] { return safetensors_image(times("{\"a\":", kMiB / 5), "0000"); }, "not of this format"},
      {"many_names", file, read_weights,
       [] {
         std::string header = "{\"b\":1";
         for (int i = 0; i < 20'000; ++i) header += fmt::format(R"(,"{}":{{}})", i);
         return safetensors_image(header + "}", "");
       },
       "must be an object"},
  };
}

std::string index_of(std::string_view path) {
  return fmt::format(R"({{"weight_map":{{"model.norm.weight":"{}"}}}})", path);
}

std::vector<Hostile> index_files() {
  std::vector<Hostile> files;
  static constexpr std::pair<const char*, const char*> kPaths[] = {
      {"path_up", "../outside.safetensors"},
      {"path_absolute", "/etc/passwd"},
      {"path_down", "a/b"},
      {"path_dots", ".."},
      {"path_dot", "."},
      {"path_empty", ""},
      {"path_backslash", "..\\\\outside"},
      {"path_nul", "a\\u0000b"},
      {"path_slash_escaped", "..\\/outside"},
      {"path_slash_in_unicode", "..\\u002foutside"},
  };
  for (const auto& [name, path] : kPaths) {
    files.push_back({name, kIndexName, read_weights, [p = path] { return index_of(p); },
                     "must be the name of a file in the same folder"});
  }
  files.push_back({"index_nested", kIndexName, read_weights,
                   [] { return "{\"weight_map\":" + times("[", kMiB); }, "nested more than"});
  files.push_back({"index_17_mib", kIndexName, read_weights,
                   [] { return std::string(17 * kMiB, ' '); }, "bytes of JSON, at most"});
  files.push_back({"index_many_files", kIndexName, read_weights,
                   [] {
                     std::string map = "{\"weight_map\":{\"a\":\"a\"";
                     for (int i = 0; i < 50'000; ++i) map += fmt::format(",\"{}\":\"{}.x\"", i, i);
                     return map + "}}";
                   },
                   "cannot be used"});
  return files;
}

// ---- config.json and its like -------------------------------------------------------------------

// A good config.json with one key said otherwise.
std::function<std::string()> config_with(const char* key, const char* value) {
  return [=] {
    std::string text = R"({"architectures":["LlamaForCausalLM"])";
    constexpr std::pair<const char*, const char*> kKeys[] = {
        {"hidden_size", "64"},        {"intermediate_size", "128"},
        {"num_hidden_layers", "2"},   {"vocab_size", "512"},
        {"rms_norm_eps", "1e-5"},     {"num_attention_heads", "4"},
        {"num_key_value_heads", "2"}, {"max_position_embeddings", "1024"}};
    for (const auto& [name, usual] : kKeys) {
      if (std::string_view(name) != key) text += fmt::format(",\"{}\":{}", name, usual);
    }
    return text + fmt::format(",\"{}\":{}}}", key, value);
  };
}

std::vector<Hostile> config_files() {
  const char* const file = "config.json";
  const auto config = [&](const char* name, const char* key, const char* value) {
    return Hostile{name, file, read_config, config_with(key, value), key};
  };
  return {
      config("hidden_2_63", "hidden_size", "9223372036854775808"),
      config("hidden_1e300", "hidden_size", "1e300"),
      config("intermediate_2_31", "intermediate_size", "2147483648"),
      config("layers_1e9", "num_hidden_layers", "1000000000"),
      config("vocabulary_4e9", "vocab_size", "4294967296"),
      config("positions_2_40", "max_position_embeddings", "1099511627776"),
      config("heads_0", "num_attention_heads", "0"),
      config("kv_heads_negative", "num_key_value_heads", "-2147483648"),
      config("head_dim_2_31", "head_dim", "2147483648"),
      config("eps_0", "rms_norm_eps", "0"),
      config("bos_2_32", "bos_token_id", "4294967296"),
      config("rope_theta_0", "rope_theta", "0"),
      {"number_1e999", file, read_config, config_with("head_dim", "1e999"),
       "too large for a float64"},
      {"eos_many", file, read_config,
       [] {
         std::string ids = "[0";
         for (int i = 1; i < 300'000; ++i) ids += fmt::format(",{}", i);
         return config_with("eos_token_id", (ids + "]").c_str())();
       },
       "a list of at most 1024"},
      {"config_nested", file, read_config, [] { return "{\"a\":" + times("[", kMiB); },
       "nested more than"},
      {"config_of_arrays", file, read_config,
       [] { return "{\"a\":[" + times("[],", kMiB) + "1]}"; }, "architectures"},
      {"config_17_mib", file, read_config, [] { return std::string(17 * kMiB, ' '); },
       "bytes of JSON, at most"},
      {"quantization_method", file, read_config,
       [] {
         const std::string method = "{\"quant_method\":\"" + times("x", kMiB) + "\"}";
         return config_with("quantization_config", method.c_str())();
       },
       "(1048578 bytes)"},
      {"top_k_2_40", "generation_config.json", read_generation,
       [] { return std::string("{\"top_k\":1099511627776}"); }, "top_k"},
      {"temperature_1e308", "generation_config.json", read_generation,
       [] { return std::string("{\"temperature\":1e308}"); }, "temperature"},
  };
}

// ---- packed folders -----------------------------------------------------------------------------

std::string packed_file(std::string_view checksum_tensor, std::size_t payload) {
  const std::string header = fmt::format(
      R"({{"__metadata__":{{"format":"fut-packed","version":"1"}},{}}})", checksum_tensor);
  return safetensors_image(header, std::string(payload, '\0'));
}

std::vector<Hostile> packed_files() {
  const char* const file = kModelFileName;
  return {
      {"checksums_2_62", file, read_packed,
       [] {
         return packed_file(R"("checksums.crc32c":{"dtype":"U8","shape":[4611686018427387904],)"
                            R"("data_offsets":[0,4611686018427387904]})",
                            16);
       },
       "cut short"},
      {"checksums_too_many", file, read_packed,
       [] {
         return packed_file(
             R"("checksums.crc32c":{"dtype":"U8","shape":[1048576],"data_offsets":[0,1048576]})",
             kMiB);
       },
       "0 bytes of data ask for 8"},
      {"checksums_odd", file, read_packed,
       [] {
         return packed_file(R"("checksums.crc32c":{"dtype":"U8","shape":[7],"data_offsets":[0,7]})",
                            7);
       },
       "0 bytes of data ask for 8"},
      {"checksums_as_numbers", file, read_packed,
       [] {
         return packed_file(
             R"("checksums.crc32c":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})", 8);
       },
       "is not at the end of the file"},
      {"packed_header_2_63", file, read_packed,
       [] { return with_length(1ULL << 63U, R"({"checksums.crc32c":)" + times("{", 80)); },
       "claims a header of"},
  };
}

// ---- the tests ----------------------------------------------------------------------------------

INSTANTIATE_TEST_SUITE_P(Weights, HostileFiles, ::testing::ValuesIn(weight_files()), hostile_name);
INSTANTIATE_TEST_SUITE_P(Index, HostileFiles, ::testing::ValuesIn(index_files()), hostile_name);
INSTANTIATE_TEST_SUITE_P(Config, HostileFiles, ::testing::ValuesIn(config_files()), hostile_name);
INSTANTIATE_TEST_SUITE_P(Packed, HostileFiles, ::testing::ValuesIn(packed_files()), hostile_name);

TEST(MemoryPeak, IsTheMostAtATime) {
  const MemoryPeak peak;
  for (int i = 0; i < 3; ++i) {
    const std::vector<char> one(kMiB);
    EXPECT_EQ(one.back(), 0);
  }
  EXPECT_GE(peak.bytes(), kMiB);
  EXPECT_LT(peak.bytes(), 2 * kMiB);
}

// The texts inside a header of 100 MB are held to the limits of files.
TEST(HostileTexts, InsideAHeaderAreBounded) {
  const std::string text = "{\"files\":[" + times("[],", 6 * kMiB) + "[]]}";
  const MemoryPeak peak;
  const std::string words =
      error_message(ErrorKind::Data, [&] { static_cast<void>(parse_identity("file", text)); });
  expect_mentions(words, {"file", "bytes of JSON"});
  EXPECT_LT(peak.bytes(), 2 * text.size());
}

// Numbers that are sizes elsewhere, and would be negative here.
TEST(HostileTexts, SizesBeyond63BitsAreRefused) {
  const auto identity = [](std::string_view size) {
    return fmt::format(R"({{"files":[{{"name":"a","size":{},"head":"","content":""}}]}})", size);
  };
  EXPECT_EQ(parse_identity("file", identity("9223372036854775807")).files.at(0).size,
            (std::uint64_t{1} << 63U) - 1);
  for (const char* size : {"9223372036854775808", "18446744073709551615", "-1", "1.5", "1e30"}) {
    const std::string words = error_message(
        ErrorKind::Data, [&] { static_cast<void>(parse_identity("file", identity(size))); });
    expect_mentions(words, {"source.files.size", "at most 9223372036854775807"});
  }
}

// A file can claim a size that it has only as holes.
TEST(HostileHoles, AreNotRead) {
  const std::pair<const char*, Read> files[] = {
      {"config.json", read_config}, {kModelFileName, read_weights}, {kIndexName, read_weights}};
  for (const auto& [name, read] : files) {
    const TempFolder folder;
    write_file(folder / name, "");
    std::filesystem::resize_file(folder / name, std::uintmax_t{1} << 36U);
    expect_refused({name, name, read, {}, "bytes"}, folder.path(), 0);
  }
}

}  // namespace
}  // namespace fut::test
