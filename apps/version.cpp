// The values come from CMakeLists.txt and the compiler.
#include "apps/version.h"

#include <fmt/format.h>

namespace fut::app {

namespace {
constexpr std::string_view kToolkit = FUT_CUDA_TOOLKIT;  // empty: none
}

bool built_with_cuda() {
  return !kToolkit.empty();
}

std::string_view version() {
  return FUT_VERSION;
}

std::string version_text() {
  constexpr std::string_view kCommit = FUT_COMMIT;
#ifdef __clang__
  constexpr std::string_view kCompiler = "clang " __clang_version__;
#else
  constexpr std::string_view kCompiler = "gcc " __VERSION__;
#endif
  return fmt::format("fut {}\ncommit {}\ncompiler {}\nCUDA toolkit {}\n", version(),
                     kCommit.empty() ? "unknown" : kCommit, kCompiler,
                     kToolkit.empty() ? "none" : kToolkit);
}

}  // namespace fut::app
