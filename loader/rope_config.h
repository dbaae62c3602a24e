// The rotary embedding's parameters out of config.json, in the spellings of transformers 4
// (rope_theta beside rope_scaling) and 5 (all in rope_parameters). Internal to loader/.
#pragma once

#include <string>
#include <vector>

#include "kernels/numeric/rope_table.h"
#include "loader/json_file.h"

namespace fut {

// Throws Data naming the key for a kind of scaling that is not supported, a value that is missing,
// and two spellings that disagree. A theta that no key gives is 10000, with a notice.
[[nodiscard]] RopeParams read_rope_params(const JsonObject& config,
                                          std::vector<std::string>& notices);

}  // namespace fut
