// What the kernel for whole layers of a decode step takes, how it cuts the layers' products up, and what lies
// where in shared memory: one table, read by the launcher and by the kernel. Includes no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/int4_gemm_plan.h"
#include "kernels/layer_ops.h"

namespace fut::cuda {

// The products of a layer, in their order.
enum LayerProduct { kQkvProduct, kOProduct, kGateUpProduct, kDownProduct, kNumLayerProducts };

inline constexpr int kMaxRunLayers = 96;        // of a launch: their addresses are parameters
inline constexpr int kDownParts = 4;            // blocks that may share the sums of down's rows
inline constexpr unsigned kCounterBytes = 128;  // counters lie in cache lines of their own
inline constexpr int kMaxLayerStages = 3;       // pieces of a warp's ring

// Packed rows and columns of a product.
struct LayerMatrix {
  int num_strips = 0;
  int num_groups = 0;  // of a row
};

// What a layer has of its own.
struct LayerAddresses {
  const std::uint8_t* packed[kNumLayerProducts] = {};
  std::uint8_t* pages = nullptr;
  std::uint16_t* raw = nullptr;
};

// Byte offsets in a block's shared memory.
struct DecodeLayersLayout {
  // Barriers of the rings, [warp][stage], lie first.
  int kept = 0;        // KeptState
  int kept_rings = 0;  // [warp], 32 bytes each
  int squares = 0;     // float [segment][kFewTokens]
  int biases = 0;      // float [warp][group of a segment][8]
  int ring = 0;        // [warp][stage][piece]
  int tokens = 0;   // F16 [token][column]; what attention has (AttentionLayout) begins here as well
  int partial = 0;  // float [round's parity][strip][segment][16][token]
  int partial_bytes = 0;  // of a parity
  int bytes = 0;
};

// What a block knows across attention, which takes all registers.
struct KeptState {
  unsigned long long grid_target = 0;
  std::uint8_t* pages = nullptr;  // of the layer
  std::uint16_t* raw = nullptr;
  int layer = 0, parity = 0;
  int unit = 0;                              // of attention's work
  int position = 0, raw_slot = 0, page = 0;  // of the sequence that is attended to
  int comes_last = 0;
  int positions[kFewTokens] = {};
  int first_pages[kFewTokens] = {};  // where a sequence's pages begin in the table
  int raw_slots[kFewTokens] = {};
  unsigned largest[kFewTokens] = {};  // bits, of the ffn's tokens
};

struct DecodeLayersPlan {
  int stages = 2;
  int round_strips = 1;    // strips that a warp multiplies before sums meet
  int segment_groups = 1;  // the most of any product
  int down_parts = 1;      // 1 or kDownParts
  AttentionDistribution attention;
  AttentionLayout attention_layout;
  DecodeLayersLayout layout;
};

struct DecodeLayersShape {
  int hidden_size = 0, intermediate_size = 0;
  int num_q_heads = 0, num_kv_heads = 0, head_dim = 0;
  int weight_group = 0;
  int num_tokens = 0;
};

// nullopt: there are too many tokens for so wide a model, or heads that the kernel does not take; then the
// ops run one by one.
[[nodiscard]] std::optional<DecodeLayersPlan> plan_decode_layers(const DecodeLayersShape& shape,
                                                                 const Int4GemmMachine& machine);

// The shape where the kernel can run these layers: a step of decode in INT4 over an INT4 cache whose heads have
// one scale a row, layers that differ in their addresses alone.
[[nodiscard]] std::optional<DecodeLayersShape> decode_layers_shape(
    std::span<const LayerArgs> layers);

// Memory that blocks hand results on in, in bytes. Counters are 0 when it is handed out; launches of all
// shapes share them, so none of them may depend on what a launch leaves behind but for multiples of the blocks
// that meet at one.
struct DecodeLayersMemory {
  // The grid's counter lies first.
  std::size_t parts = kCounterBytes;  // counters [group of blocks]
  std::size_t largest = 0;   // bits of |h| [parity of the layer][token]; 0: none above 2^15
  std::size_t arrivals = 0;  // counters [sequence and KV head], 0 between launches
  std::size_t counter_bytes = 0;
  std::size_t states = 0;    // [sequence and KV head][block][AttentionLayout::slot_bytes]
  std::size_t numbers = 0;   // float [token][channel]: gate and up before they are rounded
  std::size_t exchange = 0;  // float [strip][part][16][token], down's
  std::size_t bytes = 0;
};
[[nodiscard]] DecodeLayersMemory decode_layers_memory(const DecodeLayersShape& shape,
                                                      const DecodeLayersPlan& plan, int num_blocks);

struct DecodeLayersArgs {
  int num_layers = 0, num_tokens = 0;
  int hidden_size = 0, intermediate_size = 0, q_cols = 0;
  float input_eps = 0, output_eps = 0;  // of the norms before qkv, and before gate and up
  DecodeLayersPlan plan;
  LayerMatrix products[kNumLayerProducts];
  float* residual = nullptr;
  std::int64_t residual_stride = 0;
  float *q = nullptr, *k = nullptr, *v = nullptr;
  std::uint16_t* attention_out = nullptr;
  std::uint16_t* ffn = nullptr;
  std::int64_t q_stride = 0, k_stride = 0, v_stride = 0, attention_stride = 0, ffn_stride = 0;
  const std::int32_t* positions = nullptr;
  const float *rope_cos = nullptr, *rope_sin = nullptr;
  AttentionDecodeArgs attention;  // without pages and raw rows
  std::uint8_t* counters = nullptr;
  std::uint8_t* memory = nullptr;
  DecodeLayersMemory places;
  LayerAddresses layers[kMaxRunLayers];
};

// All but `counters` and `memory`.
[[nodiscard]] DecodeLayersArgs decode_layers_args(std::span<const LayerArgs> layers,
                                                  const DecodeLayersShape& shape,
                                                  const DecodeLayersPlan& plan,
                                                  const Int4GemmMachine& machine,
                                                  std::uint64_t* saturations);

}  // namespace fut::cuda
