// Runs something that has to fail, and looks at how it fails.
#pragma once

#include <gtest/gtest.h>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/error.h"

namespace fut::test {

// The message of the fut::Error that `action` throws. Adds a failure and returns nothing where it
// throws none, one of another kind, or a message of more than one line.
template <class Action>
[[nodiscard]] std::string error_message(ErrorKind kind, Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.kind(), kind) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

inline void expect_mentions(const std::string& message, const std::vector<std::string>& facts) {
  for (const std::string& fact : facts) {
    EXPECT_NE(message.find(fact), std::string::npos) << "no '" << fact << "' in: " << message;
  }
}

}  // namespace fut::test
