// fut compare: one prompt, two precisions (or two models of one tokenizer): what each says, where they
// part, how far apart they are at each token.
#pragma once

#include "apps/options.h"
#include "apps/reporter.h"

namespace fut::app {

struct CompareOptions {
  ModelOptions model;
  AgainstOptions against;  // without a precision: bf16
  PromptOptions prompt;
  FormOptions form;
  int max_new_tokens = 64;
  OutputOptions output;
  LogOptions log;
};

[[nodiscard]] Command compare_command(CompareOptions& options);
int compare(const CompareOptions& options, Reporter& reporter);

}  // namespace fut::app
