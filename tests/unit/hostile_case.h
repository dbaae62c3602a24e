// A file made to hurt, and what refusing it may take: a small file next to nothing, a large one a multiple
// of its size. Shared by the tests of hostile files; HostileFiles is their parametrised suite.
#pragma once

#include <ctime>
#include <filesystem>
#include <functional>
#include <gtest/gtest.h>
#include <string>
#include <string_view>

#include "kernels/error.h"
#include "tests/support/counted_memory.h"
#include "tests/support/temp_folder.h"

namespace fut::test {

inline constexpr std::size_t kMiB = std::size_t{1} << 20;

using Read = std::function<void(const std::filesystem::path& folder)>;

struct Hostile {
  const char* name;
  const char* file;  // in the folder
  Read read;
  std::function<std::string()> content;
  const char* words;  // part of what is said
};

inline std::string times(std::string_view text, std::size_t count) {
  std::string out;
  out.reserve(text.size() * count);
  for (std::size_t i = 0; i < count; ++i) out += text;
  return out;
}

inline double cpu_seconds() {
  struct timespec time = {};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

inline void expect_refused(const Hostile& hostile, const std::filesystem::path& folder,
                           std::size_t size) {
#if FUT_SANITIZED
  constexpr double kMostSeconds = 60;
#else
  constexpr double kMostSeconds = 3;
#endif
  const std::size_t most = 8 * kMiB + 64 * size;  // a tree of empty lists
  std::string words;
  const MemoryPeak peak;
  const double start = cpu_seconds();
  try {
    hostile.read(folder);
  } catch (const Error& error) {
    words = error.what();
    EXPECT_EQ(error.kind(), ErrorKind::Data) << words;
  }
  const double seconds = cpu_seconds() - start;
  const std::size_t taken = peak.bytes();
  EXPECT_NE(words.find(hostile.words), std::string::npos) << "it said: " << words;
  EXPECT_LT(words.size(), std::size_t{4096});
  EXPECT_EQ(words.find('\n'), std::string::npos) << words;
  EXPECT_LE(taken, most) << "for a file of " << size << " bytes";
  EXPECT_LT(taken, 1024 * kMiB) << "for a file of " << size << " bytes";
  EXPECT_LT(seconds, kMostSeconds) << "for a file of " << size << " bytes";
}

class HostileFiles : public ::testing::TestWithParam<Hostile> {};

TEST_P(HostileFiles, AreRefusedWithinBounds) {
  const Hostile& hostile = GetParam();
  const TempFolder folder;
  std::string content = hostile.content();
  const std::size_t size = content.size();
  write_file(folder / hostile.file, content);
  content = {};
  expect_refused(hostile, folder.path(), size);
}

inline std::string hostile_name(const ::testing::TestParamInfo<Hostile>& info) {
  return info.param.name;
}

}  // namespace fut::test
