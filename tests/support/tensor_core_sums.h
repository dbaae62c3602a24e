// A CPU backend that adds products of E4M3 operands as Hopper's tensor cores do: the reference in all else.
// For every instruction of 32 columns the products and the sum so far are shifted to the largest exponent
// among them, keep 13 bits behind the point there, the rest cut off, and are added; of the sum 13 bits
// behind the leading one stay. tests/kernel/tensor_core_sums_test.cpp holds it to what a chip gave.
#pragma once

#include <memory>

#include "kernels/backend.h"
#include "kernels/cpu/vector_loops.h"

namespace fut::test {

// num_threads 0: all cores.
[[nodiscard]] std::unique_ptr<Backend> backend_with_tensor_core_sums(int num_threads);

// out[m, n] by such sums; x and weight are F32 that hold numbers of E4M3.
void tensor_core_dots(const cpu::DotBlock& block);

}  // namespace fut::test
