// A conversation in a JSON file: a list of {"role", "content"}.
#pragma once

#include <string>
#include <vector>

#include "tokenizer/chat_template.h"

namespace fut::app {

// Throws Data: not JSON (position), not a list, an entry (its number) that is no such object.
[[nodiscard]] std::vector<ChatMessage> read_conversation(const std::string& path);

}  // namespace fut::app
