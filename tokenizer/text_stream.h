// Bytes of tokens in, whole UTF-8 characters out. One object for each output stream.
#pragma once

#include <string>
#include <string_view>

namespace fut {

class TextStream {
 public:
  // Returns the bytes that can be shown now. Keeps back only an unfinished character at the end (at
  // most three bytes); bytes that can never become a character are released as they are, at once.
  [[nodiscard]] std::string push(std::string_view bytes);

  // Returns what is still held; nothing follows.
  [[nodiscard]] std::string flush();

 private:
  std::string pending_;
};

}  // namespace fut
