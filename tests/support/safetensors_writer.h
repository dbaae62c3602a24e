// Writes safetensors files for tests: good ones from named tensors, and broken ones from whatever
// header and payload a test makes up. Independent of the reader in loader/.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor.h"

namespace fut::test {

struct NamedTensor {
  std::string name;
  std::string dtype;  // as the format spells it: "BF16", "F32", "I64", ...
  std::vector<std::int64_t> shape;
  std::string bytes;
};

// `values` rounded to `dtype`, ties to even.
[[nodiscard]] NamedTensor make_tensor(std::string name, DType dtype,
                                      std::vector<std::int64_t> shape,
                                      std::span<const float> values);

// The header that describes `tensors` laid end to end, with "__metadata__" where that is not empty.
[[nodiscard]] nlohmann::ordered_json safetensors_header(
    std::span<const NamedTensor> tensors, const std::map<std::string, std::string>& metadata = {});

// A file's bytes: the header's length as 8 little-endian bytes, the header, the payload. `header`
// is taken as it is, so that tests can break it.
[[nodiscard]] std::string safetensors_image(std::string_view header, std::string_view payload);

// The image of a good file, its header padded with blanks to a multiple of 8.
[[nodiscard]] std::string safetensors_image(std::span<const NamedTensor> tensors);

void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors);

// "model-00002-of-00003.safetensors" for shard 1 of 3.
[[nodiscard]] std::string shard_name(int shard, int num_shards);

// Writes `num_shards` files, each with about as many tensors in their order, and
// model.safetensors.index.json. Returns the index, for tests that write a changed one.
nlohmann::json write_shards(const std::filesystem::path& folder,
                            std::span<const NamedTensor> tensors, int num_shards);

}  // namespace fut::test
