// Asynchronous copies of 4 bytes by a thread, from global to shared memory. PTX ISA, "cp.async".
#pragma once

#include <cstdint>

namespace fut::cuda::ptx {

__device__ __forceinline__ void copy_4_bytes(std::uint32_t destination, const void* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(destination), "l"(source)
               : "memory");
}

// Until all copies of this thread are there, for this thread.
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace fut::cuda::ptx
