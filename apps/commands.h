// One function for each command. Each returns the exit code and throws fut::Error or Interrupted;
// main alone catches.
#pragma once

#include "apps/options.h"
#include "apps/reporter.h"

namespace fut::app {

int run(const GenerateOptions& options, Reporter& reporter);
int chat(const GenerateOptions& options, Reporter& reporter);
int tokenize(const TokenizeOptions& options, Reporter& reporter);
int quantize(const QuantizeOptions& options, Reporter& reporter);
int perplexity(const PerplexityOptions& options, Reporter& reporter);
int inspect(const InspectOptions& options, Reporter& reporter);
int bench(const BenchOptions& options, Reporter& reporter);
int plan(const PlanOptions& options, Reporter& reporter);
int doctor(const DoctorOptions& options, Reporter& reporter);

}  // namespace fut::app
