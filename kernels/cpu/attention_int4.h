// Decode over an INT4 cache: the codes are never widened to numbers; scale and minimum of a token
// are taken out of the sums, as ops.h has it. Prefill is in attention.cpp.
#pragma once

#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/kv_store.h"

namespace fut::cpu {

// The outputs of a tile of F32 queries over `head`, before the division: memory.out [rows, D] and
// memory.sums [rows].
void attend_to_codes(const VectorLoops& loops, const AttentionArgs& a, const Tile& tile,
                     const KvHeadInt4& head, const TileMemory& memory);

}  // namespace fut::cpu
