// A conversation in a JSON file: a list of {"role", "content"}.
#pragma once

#include <string>
#include <vector>

#include "tokenizer/chat_template.h"

namespace fut::app {

// Throws Data: not JSON (position), not a list, an entry (its number) that is no such object.
[[nodiscard]] std::vector<ChatMessage> read_conversation(const std::string& path);

// Written aside and renamed: whole or not at all. Throws Usage where the file is there already and may
// not be replaced, Runtime where it cannot be written.
void write_conversation(const std::string& path, const std::vector<ChatMessage>& messages,
                        bool replace);

}  // namespace fut::app
