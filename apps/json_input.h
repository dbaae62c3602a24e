// JSON that somebody else wrote: rows of prompts, conversations. It is parsed whole or refused, and what is
// made of it may be walked and printed by functions that call themselves.
#pragma once

#include <string>
#include <string_view>

#include "apps/reporter.h"

namespace fut::app {

// Throws Data, beginning with `what` ("prompts.jsonl:7: the line"): not JSON (the byte), nested deeper than
// any row or conversation is, an object with the same key twice, a number beyond float64.
[[nodiscard]] Json parse_json_input(std::string_view text, std::string_view what);

}  // namespace fut::app
