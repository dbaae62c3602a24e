// Small models that can be quantised, and quantised folders made of them by the binary under test.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tests/cli/fut_process.h"

namespace fut::test {

// The options of a run in the default precision, whose quantised copies stay inside `folder`.
inline ProcessOptions in_default_precision(const std::filesystem::path& folder) {
  return with_variables({{"FUT_PRECISION", std::nullopt},
                         {"XDG_CACHE_HOME", (folder / "cache").string()},
                         {"TMPDIR", folder.string()}});
}

// Every file of a folder, by name.
inline std::map<std::string, std::string> files_of(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files[entry.path().filename().string()] = read_file(entry.path());
  }
  return files;
}

// What lies in a folder, by name.
inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// A shell line with the program as $0, in the surroundings of fut().
inline ProcessResult shell(const std::string& line, std::vector<std::string> arguments,
                           ProcessOptions options = {}) {
  options.arguments = {"-c", line, FUT_BINARY};
  options.arguments.insert(options.arguments.end(), arguments.begin(), arguments.end());
  return run_process("/bin/bash", on_cpu_in_f32(std::move(options)));
}

}  // namespace fut::test
