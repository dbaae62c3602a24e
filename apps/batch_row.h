// A file of prompts and one line of it: what is asked for, and with which settings.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/options.h"
#include "apps/reporter.h"
#include "tokenizer/chat_template.h"

namespace fut::app {

// A line that is not blank.
struct InputRow {
  std::string_view text;
  std::string place;  // "prompts.jsonl:7"
};

// Throws Usage where there is none.
[[nodiscard]] std::vector<InputRow> split_rows(std::string_view text, const std::string& name);

struct BatchRow {
  std::optional<std::string> prompt;  // or:
  std::vector<ChatMessage> messages;
  std::optional<std::string> system;  // instead of the run's
  FormOptions form;
  SamplingOptions sampling;
  ReplyOptions reply;
};

// The run's options, as far as the row does not say otherwise: keys are the names of flags, with
// underscores. Throws Data for a line that is no such object, Usage for a key that is not known (the
// nearest is named) or a value that the flag would refuse. `place` is where the line stands, for
// messages: "prompts.jsonl:7".
[[nodiscard]] BatchRow parse_batch_row(std::string_view line, const std::string& place,
                                       const GenerateOptions& options);

// The row's "id" as it is there; null where there is none, or where the line is no object.
[[nodiscard]] Json batch_row_id(std::string_view line);

}  // namespace fut::app
