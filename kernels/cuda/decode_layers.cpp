// See the header.
#include "kernels/cuda/decode_layers.h"

#include <algorithm>

namespace fut::cuda {

std::size_t try_decode_layers(std::span<const LayerArgs> layers, LaunchContext& context) {
  layers = layers.first(std::min<std::size_t>(layers.size(), kMaxRunLayers));
  for (const LayerArgs& layer : layers) {
    check(layer.qkv);
    check(layer.attention);
    check(layer.o_proj);
    check(layer.gate_up);
    check(layer.down_proj);
  }
  const auto shape = decode_layers_shape(layers);
  if (!shape) return 0;
  const auto plan = plan_decode_layers(*shape, context.machine());
  if (!plan) return 0;
  check_attention_decode(layers.front().attention);
  launch_decode_layers(
      *shape, decode_layers_args(layers, *shape, *plan, context.machine(), context.saturations()),
      context);
  return layers.size();
}

}  // namespace fut::cuda
