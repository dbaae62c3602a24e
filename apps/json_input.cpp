// See the header.
#include "apps/json_input.h"

#include "kernels/error.h"
#include "loader/json_guard.h"

namespace fut::app {

Json parse_json_input(std::string_view text, std::string_view what) {
  // The parser takes a NUL for the end of the text and would not look at what follows it.
  if (const std::size_t nul = text.find('\0'); nul != text.npos) {
    throw data_error("{} is not JSON, at byte {}", what, nul + 1);
  }
  try {
    return Json::parse(text, JsonGuard(std::string(what)));
  } catch (const Json::parse_error& error) {
    throw data_error("{} is not JSON, at byte {}", what, error.byte);
  } catch (const Json::out_of_range&) {
    throw data_error("{} holds a number that is too large for a float64", what);
  }
}

}  // namespace fut::app
