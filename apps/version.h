// What this binary is.
#pragma once

#include <string>

namespace fut::app {

// Version, commit, compiler and CUDA toolkit, a line each.
[[nodiscard]] std::string version_text();

// Whether this build has GPU kernels at all.
[[nodiscard]] bool built_with_cuda();

}  // namespace fut::app
