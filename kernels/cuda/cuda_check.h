// Checking calls of the CUDA runtime. Included by the sources of kernels/cuda alone: it pulls in
// CUDA headers.
#pragma once

#include <cuda_runtime_api.h>
#include <source_location>
#include <string_view>

#include "kernels/cuda/runtime.h"

namespace fut::cuda {

// Throws Runtime with place, expression and the runtime's own words. Errors of kernels that ran
// earlier surface here too; after one of those every later call fails and the process should end.
void check_call(cudaError_t result, std::string_view expression,
                const std::source_location& where = std::source_location::current());

// To be called right after a launch: reports a launch that was refused. With FUT_CUDA_DEBUG it also
// waits, so that a fault inside the kernel is reported under the kernel's name.
void check_launch(std::string_view op, StreamHandle stream,
                  const std::source_location& where = std::source_location::current());

}  // namespace fut::cuda

#define FUT_CUDA_CHECK(expression) ::fut::cuda::check_call((expression), #expression)
