// See the header.
#include "engine/widen.h"

#include <cstdint>
#include <cstring>

#include "kernels/numeric/formats.h"

namespace fut {

void widen(DType dtype, std::span<const std::byte> bytes, std::span<float> values) {
  if (dtype == DType::F32) {
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + 2 * i, 2);
    values[i] = dtype == DType::BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
  }
}

}  // namespace fut
