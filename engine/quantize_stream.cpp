// Two layers on the host in each direction: the one that is worked on, and the one that is on its
// way. Their memory goes round.
#include "engine/quantize_stream.h"

#include <future>

#include "engine/quantize_gptq.h"
#include "engine/quantize_state.h"

namespace fut {

void stream_layers(DeviceQuantizer& quantizer, const WeightTransforms& weights, LayerRange layers,
                   TensorPacker& packer, ReportCard& card, const LayerProgress& progress) {
  const auto read = [&weights](int index, TransformedLayer memory) {
    weights.read_layer(index, memory);
    return memory;
  };
  const auto write = [&packer](int index, PackedLayer layer, const SavedState& state) {
    packer.append_layer(index, layer, state);
    return layer;
  };
  if (layers.begin == layers.end) return;
  SavingTimes saving;
  TransformedLayer spare_weights;
  PackedLayer spare_bytes;
  // Their destructors wait for the threads.
  std::future<PackedLayer> writing;
  std::future<TransformedLayer> reading =
      std::async(std::launch::async, read, layers.begin, TransformedLayer());
  for (int i = layers.begin; i < layers.end; ++i) {
    progress.begin(i);
    TransformedLayer layer = reading.get();
    if (i + 1 < layers.end) {
      reading = std::async(std::launch::async, read, i + 1, std::move(spare_weights));
    }
    PackedLayer packed = std::move(spare_bytes);
    const DeviceQuantizer::Reports reports = quantizer.next(layer, packed, progress.add);
    add_reports(card, reports);
    spare_weights = std::move(layer);
    if (writing.valid()) spare_bytes = writing.get();
    const std::vector<HiddenStates*> hidden = quantizer.hidden();
    writing =
        std::async(std::launch::async, write, i, std::move(packed),
                   saving.is_due(state_bytes(hidden)) ? save_state(card, hidden) : SavedState());
  }
  writing.get();
}

}  // namespace fut
