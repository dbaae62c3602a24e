// What a model folder is, as JSON for `fut inspect`: config, the weights of a checkpoint, the weights
// of a quantised folder. Reads headers, and of a quantised folder the few numbers that are scales
// of activations.
#pragma once

#include <cstdint>
#include <filesystem>

#include "apps/reporter.h"
#include "loader/checkpoint.h"
#include "loader/model_config.h"
#include "loader/packed_model.h"

namespace fut::app {

[[nodiscard]] Json describe_config(const ModelConfig& config);
[[nodiscard]] Json describe_checkpoint(const Checkpoint& checkpoint, const ModelConfig& config);
// Formats with their bytes, options, source, activation scales, report card. Throws Data where what
// is read does not meet its checksum.
[[nodiscard]] Json describe_packed(const PackedModel& packed, const ModelConfig& config);

}  // namespace fut::app
