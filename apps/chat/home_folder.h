// "~/talk.json" as shells read it, for names that no shell has seen.
#pragma once

#include <string>
#include <string_view>

namespace fut::app {

// `path` with $HOME in the place of a leading "~" before a slash, where HOME is set.
[[nodiscard]] std::string in_home_folder(std::string_view path);

}  // namespace fut::app
