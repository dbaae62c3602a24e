// Ids that a model can be fed. Internal to engine/.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace fut {

// Throws Data, naming the first id of `what` ("the prompt") outside 0 .. vocab_size - 1 and its
// place.
void check_ids(std::span<const std::int32_t> ids, int vocab_size, std::string_view what);

}  // namespace fut
