// Texts that users hand over: typed, in a file or on standard input, byte for byte. Reading is
// bounded, so that a file that can never fit costs neither time nor memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "apps/options.h"

namespace fut::app {

struct InputText {
  std::string text;
  std::string name;          // "-p", the file, "standard input"
  bool from_stream = false;  // a file or standard input, not typed in the command line
};

// The text of `source`; "-" as text or file is standard input, and so is no source at all. Throws
// Capacity past `most_bytes` (the size and the limit; `limit_reason` ends the message), Data where
// a file cannot be read, Usage where nothing is given and standard input is empty.
[[nodiscard]] InputText read_text(const TextSource& source, bool interpret_escapes,
                                  std::uint64_t most_bytes, std::string_view limit_reason);

// A whole file. Throws Data where it cannot be read.
[[nodiscard]] std::string read_whole_file(const std::string& path);

// \n \r \t \\ \" \' \0 and \xHH; any other backslash stays.
[[nodiscard]] std::string interpret_escapes(std::string_view text);

// Drops one newline (or carriage return and newline) at the end.
void drop_final_newline(std::string& text);

[[nodiscard]] bool standard_input_is_terminal();

// Waits a little; true: a read will not block. Callers look for signals between two waits.
[[nodiscard]] bool wait_for_input(int descriptor);

}  // namespace fut::app
