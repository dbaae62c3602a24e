// Held-out text of a self-trained model as token ids: 16 windows of 1,024.
#pragma once

#include <filesystem>

#include "engine/perplexity.h"

namespace fut::test {

// The first `window_tokens` ids of each of the first `count` windows of folder/heldout_ids.bin
// (uint16, little-endian).
[[nodiscard]] TokenWindows heldout_windows(const std::filesystem::path& folder, int count,
                                           int window_tokens);

}  // namespace fut::test
