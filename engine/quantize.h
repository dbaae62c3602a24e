// From a checkpoint folder to a quantised folder: calibration, transforms, quantisers, packing,
// layer by layer. What the mathematics are is in loader/{transforms,int4_grid,gptq}.h, what the
// folder looks like in loader/packed_writer.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string_view>

#include "kernels/backend.h"
#include "loader/packed_options.h"
#include "loader/report_card.h"

namespace fut {

// Tokens whose statistics decide powers of two, FP8 scales and round-to-nearest when nothing is
// said: mean squares and sizes need few, and few are what a laptop can do with an 8B model.
inline constexpr std::int64_t kRtnCalibrationTokens = 2048;
inline constexpr int kStatisticsWindow = 512;  // several places of the text even so
// Tokens whose Hessians GPTQ takes.
inline constexpr std::int64_t kGptqCalibrationTokens = 262144;
inline constexpr int kGptqWindow = 2048;
// Windows are never longer than the model's context.

// Weights done and in all; called now and then with the same numbers. `stage` is for a progress
// line: "layer 3 of 32".
using QuantizeProgress =
    std::function<void(std::string_view stage, std::uint64_t done, std::uint64_t total)>;

// Layers that lie complete in a folder beside the target, of all.
struct KeptLayers {
  int done = 0;
  int all = 0;
  std::filesystem::path folder;
};
// What a run has from an earlier one, and what it leaves to a later one; either may be missing.
struct QuantizeResume {
  std::function<void(const KeptLayers&)> goes_on;  // before the first layer that is computed
  std::function<void(const KeptLayers&)> keeps;    // on the way out
};

// Writes `target`, which must not exist yet or be a quantised folder with `overwrite` set.
// On a backend with offline_ops() layers are calibrated (in BF16) and quantised there; on another one,
// which computes in float32, the host's loops do it. Those and the others that are no op run on `threads`
// threads (0: one for each core). `calibration` is the whole text as ids,
// BOS in front where the model's texts have it; options.calibration_tokens of it are used, rounded
// down to whole windows (the card has the number), or all there are (a notice of the card says so).
// The bytes written depend on source, options and calibration alone, and on which of the two kinds of
// backend it is; with GPTQ on a device also on device and libraries (GptqOps::made_by). Throws Data for what cannot be quantised, before anything is computed; Device where a
// device lacks what the method needs; Runtime where writing fails. What `progress` throws ends it as well.
// Nothing is left under `target` then. Beside it an Error leaves nothing either; what else ends it leaves the
// layers that were saved, which `resume` is told of, and the same call in another process goes on after them.
ReportCard quantize_folder(Backend& backend, const std::filesystem::path& source,
                           const std::filesystem::path& target, const PackedOptions& options,
                           std::span<const std::int32_t> calibration, bool overwrite,
                           const QuantizeProgress& progress = {}, int threads = 0,
                           const QuantizeResume& resume = {});

}  // namespace fut
