// The commands of a chat, as data: help, completion and the loop over turns read one table.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/chat/completion.h"
#include "apps/chat/input.h"
#include "apps/chat/session.h"

namespace fut::app {

// What a command works on.
struct Talk {
  Session& session;
  ChatInput& input;
  std::string saved_as;  // the file that this conversation was loaded from or saved to
};

struct CommandResult {
  bool leave = false;
  int signal = 0;  // that stopped a reply
};

// Whether the line's first word may be meant as one: "/clear", "/claer", and not "/etc/hosts".
[[nodiscard]] bool looks_like_chat_command(std::string_view line);
// Runs it. Throws Usage (no such command, too), Data, Capacity, Runtime: the talk is as it was before.
[[nodiscard]] CommandResult run_chat_command(Talk& talk, const std::string& line);

[[nodiscard]] CompletionWords chat_completion_words();

}  // namespace fut::app
