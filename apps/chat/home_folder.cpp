// See the header.
#include "apps/chat/home_folder.h"

#include <cstdlib>

namespace fut::app {

std::string in_home_folder(std::string_view path) {
  const char* home = std::getenv("HOME");
  if (!path.starts_with("~/") || home == nullptr || *home == '\0') return std::string(path);
  return home + std::string(path.substr(1));
}

}  // namespace fut::app
