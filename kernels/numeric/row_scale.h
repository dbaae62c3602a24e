// What a row of weights is divided by before it is rounded to E4M3 or INT8: one rule for the host's packers
// and a device's.
#pragma once

namespace fut {

// A row whose largest size is amax has `largest` under it; 1 for a row of zeros, never a subnormal.
[[nodiscard]] constexpr float row_scale(float amax, float largest) {
  constexpr float kSmallestNormal = 0x1p-126F;
  if (amax == 0) return 1;
  const auto scale = static_cast<float>(static_cast<double>(amax) / static_cast<double>(largest));
  return scale < kSmallestNormal ? kSmallestNormal : scale;
}

}  // namespace fut
