// See the header.
#include "apps/processes.h"

#include <fmt/format.h>
#include <fstream>

namespace fut::app {

std::string process_name(int pid) {
  std::ifstream file(fmt::format("/proc/{}/comm", pid));
  std::string name;
  return std::getline(file, name) ? name : "";
}

std::string name_or_elsewhere(const std::string& name) {
  return name.empty() ? "in another container" : name;
}

}  // namespace fut::app
