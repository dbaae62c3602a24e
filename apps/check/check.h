// fut check: steps of the running model computed once more by the CPU reference, op by op.
#pragma once

#include "apps/options.h"
#include "apps/reporter.h"

namespace fut::app {

struct CheckOptions {
  ModelOptions model;
  PromptOptions prompt;
  int steps = 4;
  OutputOptions output;
  LogOptions log;
};

[[nodiscard]] Command check_command(CheckOptions& options);
int check(const CheckOptions& options, Reporter& reporter);

}  // namespace fut::app
