// Where tests find what is too large to ship, and what the repository ships.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <gtest/gtest.h>
#include <string_view>

namespace fut::test {

// A path under FUT_TEST_DATA: the environment variable, else the folder chosen at configure time.
inline std::filesystem::path test_data(std::string_view relative) {
  const char* folder = std::getenv("FUT_TEST_DATA");
  return std::filesystem::path(folder != nullptr ? folder : FUT_TEST_DATA_DEFAULT) / relative;
}

// A path in the repository.
inline std::filesystem::path source_path(std::string_view relative) {
  return std::filesystem::path(FUT_SOURCE_DIR) / relative;
}

}  // namespace fut::test

// Skips the running test, naming what is missing, where the shared data is not there.
#define FUT_REQUIRE_TEST_DATA(path)                                                            \
  if (!std::filesystem::exists(path)) {                                                        \
    GTEST_SKIP() << "test data not found: " << (path) << " (set FUT_TEST_DATA to its folder)"; \
  }                                                                                            \
  static_assert(true)
