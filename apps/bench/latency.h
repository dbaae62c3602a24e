// fut bench --end-to-end: one request after the other, from the text to the last token that is written,
// with each stage by itself.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "apps/bench/machine_watch.h"
#include "apps/options.h"
#include "apps/output.h"
#include "apps/reporter.h"
#include "engine/engine.h"
#include "engine/model_folder.h"

namespace fut::app {

// What is measured. The folder is absent where the weights are random: there is no text then.
struct LatencySubject {
  std::string name;
  Backend& backend;
  Model model;
  KvCacheOptions kv_cache;
  const ModelFolder* folder = nullptr;
};

// Milliseconds of one request (or of a batch of equal ones).
struct LatencySample {
  double render = 0, tokenize = 0;              // the prompt's text
  double prefill = 0;                           // to the first token, its draw included
  double detokenize = 0, write = 0;             // the reply's text, to /dev/null
  std::vector<double> steps;                    // between tokens
  std::chrono::steady_clock::time_point start;  // of the prefill
  [[nodiscard]] double first_token() const { return render + tokenize + prefill; }
};

// All that was measured at one setting.
struct LatencyRow {
  int prompt_tokens = 0, reply_tokens = 0, depth = 0, batch = 0;
  std::size_t warm_up = 0;
  bool steady = false;  // after warming up
  bool noisy = false;   // the interval stayed too wide
  std::vector<LatencySample> samples;
  MachineState machine;  // while the samples were taken
};

// Before weights are read: throws Usage for lengths that the model has no positions for, and where no
// setting is left because what is in the cache (-d) is of one sequence; warns of those that go for that.
void check_latency_lengths(const BenchOptions& options, const ModelConfig& config);

// For lengths that check_latency_lengths let pass. `plot` is the file of --plot, or null.
int latency_bench(LatencySubject subject, const BenchOptions& options, MachineWatch& watch,
                  Output* plot, Reporter& reporter);

}  // namespace fut::app
