// How much of a device's memory quantising takes, before anything is read: by the formulas of whoever
// allocates it (quantize_device.h, gptq_on_device.h, quantize_runner.h). What libraries and the ops' scratch
// memory take comes on top, a few hundred megabytes at most.
#pragma once

#include <cstdint>

#include "loader/model_config.h"
#include "loader/packed_options.h"

namespace fut {

struct CalibrationSize {
  std::int64_t statistics_tokens = 0;
  std::int64_t gptq_tokens = 0;  // 0: round to nearest
  std::int64_t longest_window = 0;
};
// What calibration asks of a text so long.
[[nodiscard]] CalibrationSize calibration_size(const ModelConfig& config,
                                               const PackedOptions& options,
                                               std::int64_t text_tokens);

[[nodiscard]] std::uint64_t quantizer_bytes(const ModelConfig& config, const PackedOptions& options,
                                            const CalibrationSize& calibration);

}  // namespace fut
