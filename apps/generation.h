// What `run` and `chat` have in common between a prompt and the engine.
#pragma once

#include <optional>
#include <vector>

#include "apps/model_session.h"
#include "apps/options.h"
#include "apps/sampling_settings.h"
#include "engine/text_generation.h"

namespace fut::app {

// Throws Usage for flags that would do nothing as they are combined.
void check_generate_options(const GenerateOptions& options);

// Whether the reply is text on a terminal, coloured by probability.
[[nodiscard]] bool shows_probabilities(const GenerateOptions& options);

// nullopt as template: raw text.
[[nodiscard]] TextRequest make_text_request(const GenerateOptions& options,
                                            const OpenedModel& model,
                                            std::optional<ChatTemplate> chat_template,
                                            const SamplingSettings& sampling,
                                            std::vector<TokenId> prompt);

}  // namespace fut::app
