// Two layers on the host in each direction: the one that is worked on, and the one that is on its
// way. Their memory goes round.
#include "engine/quantize_stream.h"

#include <future>

namespace fut {

void stream_layers(DeviceQuantizer& quantizer, const WeightTransforms& weights, int num_layers,
                   TensorPacker& packer, ReportCard& card, const LayerProgress& progress) {
  const auto read = [&weights](int index, TransformedLayer memory) {
    weights.read_layer(index, memory);
    return memory;
  };
  const auto write = [&packer](int index, PackedLayer layer) {
    packer.append_layer(index, layer);
    return layer;
  };
  TransformedLayer spare_weights;
  PackedLayer spare_bytes;
  // Their destructors wait for the threads.
  std::future<PackedLayer> writing;
  std::future<TransformedLayer> reading =
      std::async(std::launch::async, read, 0, TransformedLayer());
  for (int i = 0; i < num_layers; ++i) {
    progress.begin(i);
    TransformedLayer layer = reading.get();
    if (i + 1 < num_layers) {
      reading = std::async(std::launch::async, read, i + 1, std::move(spare_weights));
    }
    PackedLayer packed = std::move(spare_bytes);
    const DeviceQuantizer::Reports reports = quantizer.next(layer, packed, progress.add);
    card.matrices.insert(card.matrices.end(), reports.begin(), reports.end());
    spare_weights = std::move(layer);
    if (writing.valid()) spare_bytes = writing.get();
    writing = std::async(std::launch::async, write, i, std::move(packed));
  }
  writing.get();
}

}  // namespace fut
