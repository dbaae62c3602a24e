// The host's side of the ring.
#include "kernels/step_ring.h"

#include <atomic>

#include "kernels/check.h"

namespace fut {
std::optional<std::span<const std::int32_t>> poll(const StepRingView& ring, std::uint64_t step) {
  std::byte* slot = ring.slot(step);
  const std::uint64_t number =
      std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(slot))
          .load(std::memory_order_acquire);
  if (number < step + 1) return std::nullopt;
  FUT_CHECK(number == step + 1, "step {} was overwritten by step {} before it was read", step,
            number - 1);
  const auto* tokens = reinterpret_cast<const std::int32_t*>(slot + StepRingView::kTokensOffset);
  return std::span<const std::int32_t>(tokens, static_cast<std::size_t>(ring.rows));
}

}  // namespace fut
