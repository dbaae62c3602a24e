// A folder for one test, removed with everything in it when the test ends; and whole files in and
// out of it. Not for data that outlives a test.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace fut::test {

class TempFolder {
 public:
  TempFolder();  // a new, empty folder under the system's temporary folder
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::filesystem::path operator/(std::string_view name) const {
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

// Whole files, byte for byte. Throw std::runtime_error with the path where that fails.
void write_file(const std::filesystem::path& path, std::string_view bytes);
[[nodiscard]] std::string read_file(const std::filesystem::path& path);

}  // namespace fut::test
