// See the header.
#include "apps/generation.h"

#include <unistd.h>

#include "apps/prompt.h"
#include "apps/signals.h"
#include "kernels/error.h"

namespace fut::app {

void check_generate_options(const GenerateOptions& options) {
  const bool is_batch = options.batch.given();  // whose rows are JSON
  if (!is_batch && options.batch.flag_typed) {
    throw usage_error("-b, --resume and --overwrite are about the prompts of a file; add -i FILE");
  }
  if (is_batch && options.output.format == OutputFormat::Json) {
    throw usage_error(
        "-o json: with -i the result is JSON Lines, a line for each row; leave it out");
  }
  if (!is_batch && options.reply.logprobs_typed && options.output.format == OutputFormat::Text &&
      !shows_probabilities(options)) {
    throw usage_error(
        "--logprobs is part of the JSON report, or colours of the reply on a terminal that may "
        "have "
        "them; add -o json");
  }
}

bool shows_probabilities(const GenerateOptions& options) {
  return options.reply.num_logprobs > 0 && !options.batch.given() &&
         options.output.format == OutputFormat::Text && options.output.file.empty() &&
         ::isatty(STDOUT_FILENO) == 1 && use_color(options.log.color);
}

TextRequest make_text_request(const GenerateOptions& options, const OpenedModel& model,
                              std::optional<ChatTemplate> chat_template,
                              const SamplingSettings& sampling, std::vector<TokenId> prompt) {
  TextRequest request;
  request.request.prompt = std::move(prompt);
  request.request.max_new_tokens = options.reply.max_new_tokens;
  request.request.end_ids = reply_end_ids(model.folder, chat_template, options.reply.ignore_eos);
  request.request.sampling = sampling.params;
  const bool is_text = options.output.format == OutputFormat::Text && !options.batch.given();
  request.request.num_logprobs = is_text ? 0 : options.reply.num_logprobs;
  request.stop = options.reply.stop;
  request.show_special = options.reply.show_special;
  // A reply in the chat form is a text of its own; a continuation keeps its first blank.
  request.strip_dummy_prefix = chat_template.has_value();
  request.interrupt = &stop_flag();
  return request;
}

}  // namespace fut::app
