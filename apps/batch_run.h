// fut run -i: the replies to many prompts, as many at a time as -b says, in the order of the prompts.
#pragma once

#include "apps/options.h"
#include "apps/reporter.h"

namespace fut::app {

// A line of JSON for each row of the input, into --output-file or to the reporter. A row that has no
// reply gets its error; the exit code is that of the first such row. Throws what concerns all rows.
int run_batch(const GenerateOptions& options, Reporter& reporter);

}  // namespace fut::app
