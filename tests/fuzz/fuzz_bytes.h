// A fuzzer's input as a row of choices: numbers and texts from its front, zero and nothing behind its end.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tests/fuzz/fuzz_case.h"

namespace fut::test {

class FuzzBytes {
 public:
  FuzzBytes(const std::uint8_t* data, std::size_t size) : left_(as_text(data, size)) {}

  [[nodiscard]] bool empty() const { return left_.empty(); }

  [[nodiscard]] int byte() {
    if (left_.empty()) return 0;
    const auto value = static_cast<unsigned char>(left_.front());
    left_.remove_prefix(1);
    return value;
  }
  // From 0 to n - 1.
  [[nodiscard]] int below(int n) {
    const int high = n > 256 ? byte() : 0;
    return (high * 256 + byte()) % n;
  }
  // At most `most` bytes.
  [[nodiscard]] std::string_view text(std::size_t most) {
    const std::string_view taken = left_.substr(0, std::min(most, left_.size()));
    left_.remove_prefix(taken.size());
    return taken;
  }

 private:
  std::string_view left_;
};

}  // namespace fut::test
