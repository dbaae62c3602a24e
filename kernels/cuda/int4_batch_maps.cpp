// What the boxes of a stage are.
#include "kernels/cuda/int4_batch_maps.h"

namespace fut::cuda {

CUtensorMap batch_token_map(const Int4BatchPlan& plan, const layout::Int4Tile& tile,
                            const Int4BatchTokens& tokens) {
  constexpr unsigned kColumns = 64;  // 128 bytes, a row of the swizzle
  const auto blocks = static_cast<unsigned>(tile.num_groups() * tile.group) / kColumns;
  const auto stage = static_cast<unsigned>(batch_stage_groups(plan.tiles) * tile.group) / kColumns;
  return make_tensor_map(
      TensorBoxes{.data = tokens.x,
                  .type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                  .sizes = {kColumns, static_cast<unsigned>(plan.args.num_tokens), blocks},
                  .strides = {static_cast<std::uint64_t>(tokens.stride) * 2, kColumns * 2},
                  .box = {kColumns, static_cast<unsigned>(8 * plan.tiles), stage},
                  .swizzle = CU_TENSOR_MAP_SWIZZLE_128B});
}

CUtensorMap batch_weight_map(const Int4BatchPlan& plan, const layout::Int4Tile& tile,
                             const std::uint8_t* packed) {
  // Eight bytes an element: no side of a box may have more than 256 of them.
  const auto record = static_cast<unsigned>(tile.record_bytes());
  const auto groups = static_cast<unsigned>(tile.num_groups());
  return make_tensor_map(
      TensorBoxes{.data = packed,
                  .type = CU_TENSOR_MAP_DATA_TYPE_INT64,
                  .sizes = {record / 8, groups, static_cast<unsigned>(tile.num_strips())},
                  .strides = {record, std::uint64_t{record} * groups},
                  .box = {record / 8, static_cast<unsigned>(batch_stage_groups(plan.tiles)),
                          static_cast<unsigned>(plan.args.strips())}});
}

}  // namespace fut::cuda
