// fut bench without --end-to-end or --prompts: decode steps alone, beside the bandwidth of memory.
#pragma once

#include <string>

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
  DecodeBenchOptions wanted;
};

// `plot` is the file of --plot, or null. Ends the report.
void measure_steps(const StepSubject& subject, const BenchOptions& options, MachineWatch& watch,
                   Output* plot, Reporter& reporter);

}  // namespace fut::app
