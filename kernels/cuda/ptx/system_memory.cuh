// Stores that the host sees in order. PTX ISA, "st".
#pragma once

#include <cstdint>

namespace fut::cuda::ptx {

// Whoever on the host or the device reads the value with acquire sees all that this thread, and those it
// met at a barrier before, have written.
__device__ __forceinline__ void store_release_system(std::uint64_t* address, std::uint64_t value) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

}  // namespace fut::cuda::ptx
