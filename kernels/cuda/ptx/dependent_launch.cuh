// Programmatic dependent launch: a kernel may start while its predecessor still runs, and then must
// not touch what that one writes before it waited. PTX ISA, "griddepcontrol".
#pragma once

namespace fut::cuda::ptx {

// Lets the next kernel start, as far as there is room beside this one, and returns when all kernels before
// have ended and their writes are visible. Every kernel of a chain calls it, or the one after next could
// overtake.
__device__ __forceinline__ void take_turn() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

}  // namespace fut::cuda::ptx
