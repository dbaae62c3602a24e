// The layers of a checkpoint through a device: read one ahead, written one behind, each on a thread
// of its own. What is done to a layer is quantize_device.h.
#pragma once

#include <functional>

#include "engine/quantize_device.h"

namespace fut {

// Called before a layer, and with the report of each of its matrices and the number of its weights.
struct LayerProgress {
  std::function<void(int layer)> begin;
  std::function<void(std::uint64_t weights)> add;
};

// Appends layers [begin, end) to `packer` and their reports to `card`, which `quantizer` is ready
// for. Throws as DeviceQuantizer::next, what reading and writing throw, and what `progress` throws.
struct LayerRange {
  int begin, end;
};
void stream_layers(DeviceQuantizer& quantizer, const WeightTransforms& weights, LayerRange layers,
                   TensorPacker& packer, ReportCard& card, const LayerProgress& progress);

}  // namespace fut
