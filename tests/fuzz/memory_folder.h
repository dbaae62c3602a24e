// A folder for fuzzers of what reads folders: its entries are links to files in memory, so that an input
// costs no disk. What is under a name is replaced by the next put(); the folder goes when this does.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fuzz/fuzz_case.h"

namespace fut::test {

class MemoryFolder {
 public:
  MemoryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "fut-fuzz-XXXXXX").string();
    require(::mkdtemp(name.data()) != nullptr, "mkdtemp failed");
    path_ = name;
  }
  ~MemoryFolder() {
    for (const auto& [name, descriptor] : descriptors_) ::close(descriptor);
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  MemoryFolder(const MemoryFolder&) = delete;
  MemoryFolder& operator=(const MemoryFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  void put(const std::string& name, std::string_view bytes) {
    const auto [it, is_new] = descriptors_.emplace(name, -1);
    if (is_new) {
      it->second = ::memfd_create("fuzz", MFD_CLOEXEC);
      require(it->second >= 0, "memfd_create failed");
      std::filesystem::create_symlink("/proc/self/fd/" + std::to_string(it->second), path_ / name);
    }
    require(::ftruncate(it->second, 0) == 0, "a file in memory cannot be cut");
    for (std::size_t done = 0; done < bytes.size();) {
      const ::ssize_t written = ::pwrite(it->second, bytes.data() + done, bytes.size() - done,
                                         static_cast<::off_t>(done));
      require(written > 0, "a write to memory failed");
      done += static_cast<std::size_t>(written);
    }
  }

 private:
  std::filesystem::path path_;
  std::map<std::string, int> descriptors_;
};

}  // namespace fut::test
