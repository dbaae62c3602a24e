// Programmatic dependent launch: a kernel may start while its predecessor still runs, and then must
// not touch what that one writes before it waited. PTX ISA, "griddepcontrol".
#pragma once

namespace fut::cuda::ptx {

// The next kernel may be scheduled from now on.
__device__ __forceinline__ void allow_next_kernel() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Returns when all kernels before have ended and their writes are visible. Every kernel of a chain
// calls it, or the one after next could overtake.
__device__ __forceinline__ void wait_for_previous_kernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

}  // namespace fut::cuda::ptx
