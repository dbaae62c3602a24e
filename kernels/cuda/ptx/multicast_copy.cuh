// Bulk copies to several blocks of a cluster at once. PTX ISA, "cp.async.bulk".
#pragma once

#include <cstdint>

namespace fut::cuda::ptx {

// Copies `bytes` (a multiple of 16, both ends 16-byte aligned) from global memory to this place in the shared
// memory of every block of the cluster whose bit is set in `blocks`; their arrival counts on the barrier at
// the same place in each.
__device__ __forceinline__ void bulk_copy_to_blocks(std::uint32_t destination, const void* source,
                                                    std::uint32_t bytes, std::uint32_t barrier,
                                                    std::uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1], %2, [%3], %4;" ::"r"(destination),
      "l"(source), "r"(bytes), "r"(barrier), "h"(blocks)
      : "memory");
}

}  // namespace fut::cuda::ptx
