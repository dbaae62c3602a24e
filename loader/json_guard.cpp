// See the header.
#include "loader/json_guard.h"

#include "kernels/error.h"
#include "loader/describe.h"

namespace fut {

using nlohmann::json;

void JsonGuard::look(int depth, json::parse_event_t event, std::string_view key) {
  switch (event) {
    case json::parse_event_t::object_start:
      keys_.emplace_back();
      [[fallthrough]];
    case json::parse_event_t::array_start:
      if (depth >= kMaxJsonLevels) {
        throw data_error("{} is nested more than {} levels deep", what_, kMaxJsonLevels);
      }
      break;
    case json::parse_event_t::object_end:
      keys_.pop_back();
      break;
    case json::parse_event_t::key:
      if (!keys_.back().emplace(key).second) {
        throw data_error("{} has the key {} twice", what_, quote(key));
      }
      break;
    case json::parse_event_t::array_end:
    case json::parse_event_t::value:
      break;
  }
}

}  // namespace fut
