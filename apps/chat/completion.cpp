// See the header.
#include "apps/chat/completion.h"

#include <algorithm>
#include <filesystem>

#include "apps/chat/home_folder.h"

namespace fut::app {
namespace fs = std::filesystem;
namespace {

// `ending` follows a word that is certain and whole.
Completion among(std::string_view begun, const std::vector<std::string>& names,
                 std::string_view ending) {
  Completion result;
  for (const std::string& name : names) {
    if (name.starts_with(begun)) result.choices.push_back(name);
  }
  if (result.choices.empty()) return result;
  std::ranges::sort(result.choices);
  std::string common = result.choices.front();
  for (const std::string& name : result.choices) {
    const auto end = std::ranges::mismatch(common, name).in1;
    common.erase(end, common.end());
  }
  // A character is not cut in two.
  while (common.size() > begun.size() && result.choices.size() > 1 &&
         (static_cast<unsigned char>(result.choices.front()[common.size()]) & 0xC0) == 0x80) {
    common.pop_back();
  }
  result.insert = common.substr(begun.size());
  if (result.choices.size() == 1) {
    if (!common.ends_with('/')) result.insert += ending;
    result.choices.clear();
  }
  return result;
}

// Paths that begin with `begun`, folders with a slash behind them.
std::vector<std::string> paths(std::string_view begun) {
  const std::size_t slash = begun.rfind('/');
  const std::string folder(begun.substr(0, slash == begun.npos ? 0 : slash + 1));
  const std::string_view name = begun.substr(folder.size());
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator i(folder.empty() ? "." : in_home_folder(folder), error), end;
       !error && i != end; i.increment(error)) {
    const std::string file = i->path().filename().string();
    if (!file.starts_with(name) || (name.empty() && file.starts_with('.'))) continue;
    std::error_code ignored;
    found.push_back(folder + file + (i->is_directory(ignored) ? "/" : ""));
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace

Completion complete(std::string_view before, const CompletionWords& words) {
  if (!before.starts_with('/') || before.find('\n') != before.npos) return {};
  const std::size_t blank = before.find(' ');
  if (blank == before.npos) return among(before, words.commands, " ");
  const std::string command(before.substr(0, blank));
  const std::string_view argument = before.substr(before.find_last_of(' ') + 1);
  if (command == words.settings_command && before.find(' ', blank + 1) == before.npos) {
    return among(argument, words.settings, " ");
  }
  if (std::ranges::count(words.file_commands, command) > 0) {
    const std::string_view path = before.substr(blank + 1);
    return among(path, paths(path), "");
  }
  return {};
}

}  // namespace fut::app
