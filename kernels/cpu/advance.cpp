// advance on the CPU; see kernels/step_advance.h.
#include <atomic>

#include "kernels/cpu/cpu_ops.h"

namespace fut::cpu {

void advance(const StepState& state) {
  check(state);
  const std::uint64_t step = *state.step;
  std::byte* slot = state.ring.slot(step);
  auto* shown = reinterpret_cast<std::int32_t*>(slot + StepRingView::kTokensOffset);
  for (int row = 0; row < state.rows; ++row) shown[row] = advance_row(state, row);
  *state.step = step + 1;
  std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(slot))
      .store(step + 1, std::memory_order_release);
}

}  // namespace fut::cpu
