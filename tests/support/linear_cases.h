// What the tests of matrix ops in 16 and 8 bits share: sizes around the borders of tiles and blocks,
// types of a residual, and a case's name.
#pragma once

#include <string>

#include "tests/support/backends.h"
#include "tests/support/matrix_reference.h"

namespace fut::test {

inline constexpr DType kWide[] = {DType::F32, DType::BF16};
inline constexpr Size kSizes[] = {{1, 1, 1},     {1, 40, 128},  {2, 40, 256}, {3, 33, 384},
                                  {17, 40, 128}, {70, 17, 100}, {9, 16, 129}};

[[nodiscard]] inline std::string name_of(const CpuSetup& setup, const Size& size, DType dtype) {
  return setup.name + ", M " + std::to_string(size.tokens) + " N " + std::to_string(size.rows) +
         " K " + std::to_string(size.cols) + ", " + std::string(dtype_name(dtype));
}

}  // namespace fut::test
