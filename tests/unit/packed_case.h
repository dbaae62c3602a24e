// A small model that can be packed, and a packed folder of it with made-up bytes, for the tests of
// writer and reader. No quantiser is involved: any bytes of the right size will do.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "engine/parallel.h"
#include "loader/packed_writer.h"

namespace fut::test {

// One layer, all widths 128, two query heads of 64 over one KV head.
[[nodiscard]] inline ModelConfig packable_config() {
  ModelConfig config;
  config.hidden_size = 128;
  config.intermediate_size = 128;
  config.num_layers = 1;
  config.num_q_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 64;
  config.vocab_size = 7;
  return config;
}

[[nodiscard]] inline PackedMetadata packed_metadata() {
  PackedMetadata metadata;
  metadata.options.method = QuantMethod::Gptq;
  metadata.options.rotate = true;
  metadata.options.rotation_seed = 0xFEDCBA9876543210U;
  metadata.options.calibration = {.name = "text \"a\".txt", .bytes = 12, .crc32c = 0xDEADBEEFU};
  metadata.options.calibration_tokens = 4096;
  metadata.source.files = {
      {.name = "model.safetensors", .size = 99, .modified_ns = 5, .head = "aa", .content = "bb"}};
  return metadata;
}

inline constexpr char kReport[] = R"({"worst": ["layers.0.down_proj", 0.061]})";

inline const ParallelFor in_three_threads = parallel_for_on_threads(3);

using TensorBytes = std::map<std::string, std::vector<std::byte>>;

// Bytes for each tensor, a function of the list alone.
[[nodiscard]] inline TensorBytes made_up_bytes(const std::vector<PackedTensor>& tensors) {
  std::mt19937_64 random(1);
  TensorBytes bytes;
  for (const PackedTensor& tensor : tensors) {
    std::vector<std::byte>& to = bytes[tensor.name];
    to.resize(static_cast<std::size_t>(tensor_bytes(tensor)));
    std::uint64_t draw = 0;
    for (std::size_t i = 0; i < to.size(); ++i, draw >>= 8) {
      if (i % 8 == 0) draw = random();
      to[i] = static_cast<std::byte>(draw & 0xFFU);
    }
  }
  return bytes;
}

// Appends every tensor, in pieces of at most `piece` bytes.
inline void append_all(PackedWriter& writer, const std::vector<PackedTensor>& tensors,
                       std::size_t piece = SIZE_MAX) {
  const TensorBytes bytes = made_up_bytes(tensors);
  for (const PackedTensor& tensor : tensors) {
    std::span<const std::byte> left = bytes.at(tensor.name);
    while (!left.empty()) {
      const std::size_t count = std::min(piece, left.size());
      writer.append(tensor.name, left.first(count));
      left = left.subspan(count);
    }
  }
}

inline void write_packed(const std::filesystem::path& folder, const ModelConfig& config,
                         bool overwrite = false, std::size_t piece = SIZE_MAX) {
  const std::vector<PackedTensor> tensors = packed_tensors(config, 128, true);
  PackedWriter writer(folder, packed_metadata(), tensors, overwrite);
  append_all(writer, tensors, piece);
  writer.finish(kReport);
}

}  // namespace fut::test
