// Numbers in words for messages: counts, sizes, times. Decides nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fut::app {

// "1 token", "2 tokens".
[[nodiscard]] std::string counted(std::uint64_t count, std::string_view thing);

// "11.0 MiB"; "12.7 GiB" from 10 GiB on.
[[nodiscard]] std::string size_text(std::uint64_t bytes);

// "0.84 s", "12.3 s", "205 s".
[[nodiscard]] std::string seconds_text(double seconds);

}  // namespace fut::app
