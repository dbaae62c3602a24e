// See the header. nlohmann's parser neither recurses nor limits what it is given; copying and printing do
// recurse.
#include "apps/json_input.h"

#include "kernels/error.h"
#include "loader/json_file.h"

namespace fut::app {

Json parse_json_input(std::string_view text, std::string_view what) {
  // The parser takes a NUL for the end of the text and would not look at what follows it.
  if (const std::size_t nul = text.find('\0'); nul != text.npos) {
    throw data_error("{} is not JSON, at byte {}", what, nul + 1);
  }
  const auto guard = [&](int depth, Json::parse_event_t event, Json&) {
    const bool opens =
        event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
    if (opens && depth >= kMaxJsonLevels) {
      throw data_error("{} is nested more than {} levels deep", what, kMaxJsonLevels);
    }
    return true;
  };
  try {
    return Json::parse(text, guard);
  } catch (const Json::parse_error& error) {
    throw data_error("{} is not JSON, at byte {}", what, error.byte);
  } catch (const Json::out_of_range&) {
    throw data_error("{} holds a number that is too large for a float64", what);
  }
}

}  // namespace fut::app
