// Base64 as RFC 4648 has it, with padding. Decoding only: it is how rank tables spell their tokens.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fut {

// nullopt where `text` is not base64: a foreign character, a wrong length, padding in the middle,
// bits left over that are not zero.
[[nodiscard]] std::optional<std::string> base64_decode(std::string_view text);

}  // namespace fut
