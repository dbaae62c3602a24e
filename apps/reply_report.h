// A reply as JSON, and what is said about it on standard error.
#pragma once

#include <span>
#include <string_view>

#include "apps/reporter.h"
#include "apps/sampling_settings.h"
#include "engine/text_generation.h"

namespace fut::app {

// Adds ids, text, finish_reason, stop, timings and, where there are any, logprobs.
void add_reply(Json& document, const TextReply& reply, std::size_t prompt_tokens,
               const Tokenizer& tokenizer);

// Adds seed and sampling.
void add_sampling(Json& document, const SamplingSettings& sampling);

// Rates and the way it ended: printed where standard error is a terminal or -v asks for it. A reply
// that the context cut off is always told; the seed where it had a say.
void tell_about_reply(const TextReply& reply, std::size_t prompt_tokens, int context_tokens,
                      int verbosity, const SampleParams& sampling);

}  // namespace fut::app
