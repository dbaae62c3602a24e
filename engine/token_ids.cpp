// See the header.
#include "engine/token_ids.h"

#include <algorithm>

#include "kernels/error.h"

namespace fut {

void check_ids(std::span<const std::int32_t> ids, int vocab_size, std::string_view what) {
  const auto outside =
      std::ranges::find_if(ids, [&](std::int32_t id) { return id < 0 || id >= vocab_size; });
  if (outside == ids.end()) return;
  throw data_error(
      "token {} of {} is id {} and the model has {} ids: the tokenizer does not belong to these "
      "weights",
      outside - ids.begin(), what, *outside, vocab_size);
}

}  // namespace fut
