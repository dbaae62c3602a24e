// What this binary is.
#pragma once

#include <string>
#include <string_view>

namespace fut::app {

// "0.1.0".
[[nodiscard]] std::string_view version();

// Version, commit, compiler and CUDA toolkit, a line each.
[[nodiscard]] std::string version_text();

// Whether this build has GPU kernels at all.
[[nodiscard]] bool built_with_cuda();

}  // namespace fut::app
