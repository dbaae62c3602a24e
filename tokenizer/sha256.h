// SHA-256 (FIPS 180-4) of a whole text. Used to recognise published chat templates by their text,
// not for security.
#pragma once

#include <string>
#include <string_view>

namespace fut {

// 64 lower-case hexadecimal digits.
[[nodiscard]] std::string sha256_hex(std::string_view bytes);

}  // namespace fut
