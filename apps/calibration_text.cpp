// Takes the file into the program when it is built: FUT_CALIBRATION_TEXT is its path, for the
// assembler alone. A file beside the program could be another one, or missing.
#include "apps/calibration_text.h"

#include <cstddef>

// clang-format off
__asm__(
    ".pushsection .rodata\n"
    ".global fut_calibration_text_begin\n"
    ".global fut_calibration_text_end\n"
    "fut_calibration_text_begin:\n"
    ".incbin \"" FUT_CALIBRATION_TEXT "\"\n"
    "fut_calibration_text_end:\n"
    ".byte 0\n"
    ".popsection\n");
// clang-format on

extern "C" {
extern const char fut_calibration_text_begin[];
extern const char fut_calibration_text_end[];
}

namespace fut::app {

std::string_view builtin_calibration_text() {
  return {fut_calibration_text_begin,
          static_cast<std::size_t>(fut_calibration_text_end - fut_calibration_text_begin)};
}

}  // namespace fut::app
