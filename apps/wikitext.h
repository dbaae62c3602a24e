// WikiText as published perplexities take it: from the raw file to the text that is tokenised.
#pragma once

#include <string>
#include <string_view>

namespace fut::app {

// Each line of the raw file is a row: empty where the line is blank, else the line with its newline.
// Rows are joined by two newlines.
[[nodiscard]] std::string join_wikitext_rows(std::string_view raw);

}  // namespace fut::app
