// A text changed by the user's own editor.
#pragma once

#include <string>

namespace fut::app {

// Runs $VISUAL or $EDITOR on a private file that holds `text`; what it holds then, less one final
// newline. Throws Usage where neither is set, Runtime where the editor fails.
[[nodiscard]] std::string edit_text(const std::string& text);

}  // namespace fut::app
