// What was typed in earlier chats, oldest first: an entry a line, \n and \\ spelt out. Chats that run
// at the same time append to one file; nobody but the user may read it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace fut::app {

inline constexpr std::size_t kHistoryEntries = 1000;

// $XDG_STATE_HOME/fut/chat_history, else ~/.local/state/fut/chat_history; empty: no home folder.
[[nodiscard]] std::filesystem::path default_history_file();

// The last kHistoryEntries entries; a file that grew far beyond them is cut to those. One that is not
// there or cannot be read gives none: a history is never a reason to fail.
[[nodiscard]] std::vector<std::string> read_history(const std::filesystem::path& file);

// Creates folder and file where they are missing. False: it could not be written.
bool append_history(const std::filesystem::path& file, const std::string& entry);

}  // namespace fut::app
