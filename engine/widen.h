// Numbers of a checkpoint as float32. Internal to engine/.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/tensor.h"

namespace fut {

// `bytes` holds values.size() numbers of type F32, F16 or BF16; exact.
void widen(DType dtype, std::span<const std::byte> bytes, std::span<float> values);

}  // namespace fut
