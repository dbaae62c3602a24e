// How fast a device could run a model at best: what a step must read over the bandwidth of its memory,
// what a prompt must compute over its peak. What a step must read is what `fut bench` holds against it.
#pragma once

#include <cstdint>
#include <span>

#include "engine/weight_bytes.h"
#include "loader/packed_tensors.h"

namespace fut {

// Of a device, on paper.
struct Roof {
  double bytes_per_second = 0;
  double fp8_flops = 0;   // a second, dense
  double bf16_flops = 0;  // a second, dense
};

// What a roofline depends on of a model.
struct RooflineModel {
  ModelConfig config;
  Precision precision = Precision::Int4;
  KvCacheOptions kv_cache;
  WeightBytes weights;
};

// What a decode step reads of weights, and of the caches of `sequences` behind so many tokens each.
[[nodiscard]] std::int64_t decode_step_bytes(const RooflineModel& model, int sequences,
                                             std::int64_t depth_tokens);
[[nodiscard]] double decode_step_seconds(const RooflineModel& model, const Roof& roof,
                                         int sequences, std::int64_t depth_tokens);

// Operations of one layer: 2 for each weight and token; 4 for each query head, dim and pair of a token and
// one that it sees, itself included. Of the product of so many tokens with one of its matrices, and of the
// attention of tokens begin .. begin + tokens of one sequence.
[[nodiscard]] double layer_product_flops(const ModelConfig& config, PackedMatrix matrix,
                                         std::int64_t tokens);
[[nodiscard]] double layer_attention_flops(const ModelConfig& config, std::int64_t begin,
                                           std::int64_t tokens);

// The same of all layers over whole prompts.
struct PrefillFlops {
  double products = 0;
  double attention = 0;
  [[nodiscard]] double total() const { return products + attention; }
};
[[nodiscard]] PrefillFlops prefill_flops(const ModelConfig& config, std::span<const int> prompts);

// A prompt alone, in passes of kDefaultPrefillChunk, each bound by arithmetic or by its weights.
[[nodiscard]] double prefill_seconds(const RooflineModel& model, const Roof& roof,
                                     std::int64_t prompt_tokens);

}  // namespace fut
