// The one table of tensor names: what a Llama checkpoint has to hold, with which shape and why; and
// what else may or may not lie beside it. Names as Hugging Face writes them. Internal to loader/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "loader/checkpoint.h"
#include "loader/model_config.h"

namespace fut {

struct ExpectedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::string decided_by;  // the keys of config.json behind the shape, with their values
};

[[nodiscard]] ExpectedTensor expected_layer_tensor(const ModelConfig& config, int layer,
                                                   LayerTensor which);
[[nodiscard]] ExpectedTensor expected_global_tensor(const ModelConfig& config, GlobalTensor which);

// Buffers that old programs saved and that are computed here: they may be there and are ignored.
[[nodiscard]] bool is_harmless_leftover(std::string_view name);

// Why a model that has a tensor of this name cannot be run, with the way out: biases, quantised
// weights, adapters. nullopt: the name belongs to none of these.
[[nodiscard]] std::optional<std::string_view> unsupported_feature(std::string_view name);

// What a set of names in another convention comes from, with the way out; empty: not recognised.
[[nodiscard]] std::string_view naming_convention(std::string_view name);

}  // namespace fut
