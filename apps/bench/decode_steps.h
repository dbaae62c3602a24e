// fut bench of no prompts and no whole requests: decode steps alone, beside the bandwidth of memory.
#pragma once

#include <string>
#include <vector>

#include "apps/bench/machine_watch.h"
#include "apps/options.h"
#include "apps/output.h"
#include "apps/reporter.h"
#include "engine/decode_bench.h"

namespace fut::app {

struct StepSubject {
  std::string name;
  Backend& backend;
  const Model& model;
  std::vector<DecodeBenchOptions> settings;  // measured one after the other
};

// `plot` is the file of --plot, or null. Ends the report: what was measured stands in the document itself
// where there is one setting, else in rows of its "steps", which are lines of JSON Lines, too.
void measure_steps(const StepSubject& subject, const BenchOptions& options, MachineWatch& watch,
                   Output* plot, Reporter& reporter);

}  // namespace fut::app
