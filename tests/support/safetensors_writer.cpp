// The writing half of the safetensors format, for tests.
#include "tests/support/safetensors_writer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <stdexcept>

#include "tests/support/temp_folder.h"

namespace fut::test {
namespace {

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

std::uint16_t to_f16(float value) {
  const auto sign =
      static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(value) >> 16) & 0x8000U);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | 0x7E00U);
  if (magnitude == 0.0F) return sign;
  if (magnitude >= 65520.0F) return static_cast<std::uint16_t>(sign | 0x7C00U);
  int exponent = 0;
  (void)std::frexp(magnitude, &exponent);  // magnitude < 2^exponent
  const int ulp = std::max(exponent - 11, -24);
  // An integer below 2^11 or so: nearbyint rounds ties to even, a carry runs into the exponent.
  const auto units = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(magnitude, -ulp)));
  const auto biased = static_cast<std::uint32_t>(ulp + 24);
  return static_cast<std::uint16_t>(sign | (biased * 1024U + units));
}

template <class T>
void append(std::string& out, T value) {
  char raw[sizeof(T)];
  std::memcpy(raw, &value, sizeof(T));
  out.append(raw, sizeof(T));
}

}  // namespace

NamedTensor make_tensor(std::string name, DType dtype, std::vector<std::int64_t> shape,
                        std::span<const float> values) {
  std::size_t count = 1;
  for (const std::int64_t extent : shape) count *= static_cast<std::size_t>(extent);
  if (count != values.size()) {
    throw std::invalid_argument(
        fmt::format("{}: shape holds {} values, {} given", name, count, values.size()));
  }
  NamedTensor tensor{std::move(name), std::string(dtype_name(dtype)), std::move(shape), {}};
  tensor.bytes.reserve(count * static_cast<std::size_t>(dtype_bytes(dtype)));
  for (const float value : values) {
    switch (dtype) {
      case DType::F32:
        append(tensor.bytes, value);
        break;
      case DType::F16:
        append(tensor.bytes, to_f16(value));
        break;
      case DType::BF16:
        append(tensor.bytes, to_bf16(value));
        break;
      case DType::E4M3:
      case DType::U8:
        throw std::invalid_argument(tensor.name + ": numbers are not rounded to bytes here");
    }
  }
  return tensor;
}

nlohmann::ordered_json safetensors_header(std::span<const NamedTensor> tensors,
                                          const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const NamedTensor& tensor : tensors) {
    const std::uint64_t end = offset + tensor.bytes.size();
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  return header;
}

std::string safetensors_image(std::string_view header, std::string_view payload) {
  std::string image;
  image.reserve(8 + header.size() + payload.size());
  append(image, static_cast<std::uint64_t>(header.size()));
  image.append(header).append(payload);
  return image;
}

std::string safetensors_image(std::span<const NamedTensor> tensors) {
  std::string header = safetensors_header(tensors).dump();
  header.append((8 - header.size() % 8) % 8, ' ');
  std::string payload;
  for (const NamedTensor& tensor : tensors) payload += tensor.bytes;
  return safetensors_image(header, payload);
}

void write_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors) {
  write_file(path, safetensors_image(tensors));
}

std::string shard_name(int shard, int num_shards) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, num_shards);
}

nlohmann::json write_shards(const std::filesystem::path& folder,
                            std::span<const NamedTensor> tensors, int num_shards) {
  nlohmann::json index = {{"metadata", nlohmann::json::object()},
                          {"weight_map", nlohmann::json::object()}};
  std::uint64_t total = 0;
  const auto shards = static_cast<std::size_t>(num_shards);
  for (std::size_t shard = 0; shard < shards; ++shard) {
    const std::size_t begin = tensors.size() * shard / shards;
    const std::size_t end = tensors.size() * (shard + 1) / shards;
    const std::string name = shard_name(static_cast<int>(shard), num_shards);
    write_safetensors(folder / name, tensors.subspan(begin, end - begin));
    for (std::size_t i = begin; i < end; ++i) {
      index["weight_map"][tensors[i].name] = name;
      total += tensors[i].bytes.size();
    }
  }
  index["metadata"]["total_size"] = total;
  write_file(folder / "model.safetensors.index.json", index.dump(2));
  return index;
}

}  // namespace fut::test
