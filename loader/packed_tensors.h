// The one table of what a packed file holds: names, types and shapes, all of which follow from
// config.json, the group size and whether a BF16 head is kept. Writer, reader and whoever shows a
// file take them from here. No file is touched.
//
//   name                             type  shape
//   model.embed_tokens.weight        BF16  [vocabulary, hidden]
//   lm_head.int8                     U8    [vocabulary, hidden], codes -127 .. 127 as two's complement
//   lm_head.int8_scale               F32   [vocabulary]
//   lm_head.weight                   BF16  [vocabulary, hidden], gain folded; may be left out
//   layers.L.M.int4                  U8    [bytes], layout/int4_tile.h in the row order of M
//   layers.L.M.e4m3                  U8    [rows, cols], rows in the order of the stacked sources
//   layers.L.M.e4m3_scale            F32   [rows]
//   layers.L.attention_output_scale  F32   [KV heads], powers of two
//   layers.L.swiglu_output_scale     F32   [1], a power of two
//   layers.L.stats.qkv_input         F32   [hidden], E[x^2] of each input column
//   layers.L.stats.o_input           F32   [query heads x head_dim]
//   layers.L.stats.gate_up_input     F32   [hidden]
//   layers.L.stats.down_input        F32   [intermediate]
//   layers.L.stats.swiglu            F32   [2]: root mean square, largest size
//   layers.L.stats.value_amax        F32   [KV heads]
//   checksums.crc32c                 U8    [bytes], see packed_checksums.h; always last
//
// M is qkv_proj (q, k, v stacked), o_proj, gate_up_proj (gate, up stacked) or down_proj.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/layout/int4_row_order.h"
#include "kernels/layout/int4_tile.h"
#include "kernels/tensor.h"
#include "loader/model_config.h"

namespace fut {

inline constexpr std::string_view kChecksumTensor = "checksums.crc32c";

// The matrices of a layer as ops take them.
enum class PackedMatrix { QkvProj, OProj, GateUpProj, DownProj };
inline constexpr int kNumPackedMatrices = 4;

// The three tensors of a matrix.
enum class PackedPart { Int4, E4m3, E4m3Scale };
inline constexpr int kNumPackedParts = 3;

// The tensors of a layer: the parts of each matrix (packed_part), then these.
enum class PackedLayerTensor {
  FirstPart = 0,  // of QkvProj; use packed_part()
  AttentionOutputScale = kNumPackedMatrices * kNumPackedParts,
  SwigluOutputScale,
  StatsQkvInput,
  StatsOInput,
  StatsGateUpInput,
  StatsDownInput,
  StatsSwiglu,
  StatsValueAmax
};
inline constexpr int kNumPackedLayerTensors =
    static_cast<int>(PackedLayerTensor::StatsValueAmax) + 1;

[[nodiscard]] constexpr PackedLayerTensor packed_part(PackedMatrix matrix, PackedPart part) {
  return static_cast<PackedLayerTensor>(static_cast<int>(matrix) * kNumPackedParts +
                                        static_cast<int>(part));
}

enum class PackedGlobalTensor { EmbedTokens, LmHeadInt8, LmHeadInt8Scale, LmHead };
inline constexpr int kNumPackedGlobalTensors = 4;

struct PackedTensor {
  std::string name;
  DType dtype = DType::U8;
  std::vector<std::int64_t> shape;
};

[[nodiscard]] std::uint64_t tensor_bytes(const PackedTensor& tensor);

// Sizes and row order of a stacked matrix.
struct PackedMatrixShape {
  std::string_view name;  // "qkv_proj"
  int rows = 0;           // of the stacked sources
  int cols = 0;
  layout::RowOrder order;

  [[nodiscard]] layout::Int4Tile tile(int group_size) const {
    return {order.packed_rows(), cols, group_size};
  }
};
// "layers.3.qkv_proj": what its tensors' names begin with.
[[nodiscard]] std::string packed_matrix_name(int layer, PackedMatrix matrix);
[[nodiscard]] PackedMatrixShape packed_matrix_shape(const ModelConfig& config, PackedMatrix matrix);

// Throws Data, before anything is computed, where the model cannot be packed: names tensor, size and
// group, and --precision f32 as the way out. Throws Usage for a group that is neither 64 nor 128.
void check_packable(const ModelConfig& config, int group_size);

// For a model that check_packable lets pass.
[[nodiscard]] PackedTensor packed_layer_tensor(const ModelConfig& config, int group_size, int layer,
                                               PackedLayerTensor which);
[[nodiscard]] PackedTensor packed_global_tensor(const ModelConfig& config,
                                                PackedGlobalTensor which);

// All of them but the checksums, in the order in which a file has them: embedding; layer by layer in
// the order of PackedLayerTensor; head.
[[nodiscard]] std::vector<PackedTensor> packed_tensors(const ModelConfig& config, int group_size,
                                                       bool with_bf16_head);

}  // namespace fut
