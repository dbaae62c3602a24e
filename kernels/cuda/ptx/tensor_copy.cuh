// Copies of boxes of a tensor into shared memory. The tensor is described by a map, a kernel parameter.
// PTX ISA, "cp.async.bulk.tensor" and "prefetch.tensormap".
#pragma once

#include <cstdint>
#include <cuda.h>

namespace fut::cuda::ptx {

__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<std::uint64_t>(&map)) : "memory");
}

// The box at column c0 (of the innermost dimension) and row c1; what lies outside of the tensor is
// zero. All its bytes count on `barrier`.
__device__ __forceinline__ void copy_box(std::uint32_t destination, const CUtensorMap& map,
                                         std::uint32_t barrier, int c0, int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(destination),
      "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(barrier), "r"(c0), "r"(c1)
      : "memory");
}

// The same of three dimensions; with a policy of the second-level cache.
__device__ __forceinline__ void copy_box_3(std::uint32_t destination, const CUtensorMap& map,
                                           std::uint32_t barrier, int c0, int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(destination),
      "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(barrier), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}
__device__ __forceinline__ void copy_box_3(std::uint32_t destination, const CUtensorMap& map,
                                           std::uint32_t barrier, int c0, int c1, int c2,
                                           std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(destination),
      "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(barrier), "r"(c0), "r"(c1), "r"(c2),
      "l"(policy)
      : "memory");
}

// The same with a policy for the second-level cache, as bulk_copy.cuh has them.
__device__ __forceinline__ void copy_box(std::uint32_t destination, const CUtensorMap& map,
                                         std::uint32_t barrier, int c0, int c1,
                                         std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(destination),
      "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(barrier), "r"(c0), "r"(c1), "l"(policy)
      : "memory");
}

// The box at c0 of the innermost and c4 of the outermost of five dimensions, 0 of the others.
__device__ __forceinline__ void copy_box_5(std::uint32_t destination, const CUtensorMap& map,
                                           std::uint32_t barrier, int c0, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %5, %5, %5, %4}], [%2];" ::"r"(destination),
      "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(barrier), "r"(c0), "r"(c4), "r"(0)
      : "memory");
}

// The same to this place in every block of the cluster whose bit is set in `blocks`; counts on the
// barrier at the same place in each.
__device__ __forceinline__ void copy_box(std::uint32_t destination, const CUtensorMap& map,
                                         std::uint32_t barrier, int c0, int c1,
                                         std::uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(destination),
      "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(barrier), "r"(c0), "r"(c1), "h"(blocks)
      : "memory");
}
__device__ __forceinline__ void copy_box_5(std::uint32_t destination, const CUtensorMap& map,
                                           std::uint32_t barrier, int c0, int c4,
                                           std::uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %5, %5, %5, %4}], [%2], %6;" ::"r"(destination),
      "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(barrier), "r"(c0), "r"(c4), "r"(0),
      "h"(blocks)
      : "memory");
}

}  // namespace fut::cuda::ptx
