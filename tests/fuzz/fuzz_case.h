// What the fuzzers share: bytes as a file without a disk, and the one way in which a reader may say no.
// A fuzzer is LLVMFuzzerTestOneInput in a file <name>_fuzz.cpp; its inputs, seeds and findings alike, lie in
// seeds/<name>_fuzz/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/error.h"

namespace fut::test {

[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "fuzz: %s\n", what.c_str());
  std::abort();
}

inline void require(bool holds, std::string_view what) {
  if (!holds) fail(std::string(what));
}

inline std::string_view as_text(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// A file in memory; its path is good while this lives.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    require(descriptor_ >= 0, "memfd_create failed");
    while (!bytes.empty()) {
      const ::ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      require(written > 0, "a write to memory failed");
      bytes.remove_prefix(static_cast<std::size_t>(written));
    }
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  [[nodiscard]] std::filesystem::path path() const {
    return "/proc/self/fd/" + std::to_string(descriptor_);
  }

 private:
  int descriptor_;
};

// Runs body(); true if it ended. A refusal is an Error that says what is wrong, in one line that can be
// read; anything else that is thrown ends the fuzzer.
template <class Body>
bool accepted(Body&& body) {
  try {
    body();
    return true;
  } catch (const Error& refusal) {
    const std::string_view words = refusal.what();
    require(words.size() > 10, "a refusal that says nothing");
    require(words.size() < 4096 && words.find('\n') == words.npos,
            "a refusal that nobody can read");
    return false;
  }
}

}  // namespace fut::test
