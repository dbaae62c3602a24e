// What the machine did while something was measured, and what a report says of it: whether a number that
// looks clean was taken on a machine that was slowed down, or that others used.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/reporter.h"

namespace fut::app {

struct ClockReading {
  std::chrono::steady_clock::time_point time;
  int mhz = 0;
};

// What is not told is empty.
struct MachineState {
  double seconds = 0;                  // that it was looked at
  std::vector<ClockReading> clocks;    // of the GPU's multiprocessors, or of the CPU's cores
  std::optional<int> most_mhz;         // what they could be
  std::optional<double> watts;         // on average
  std::optional<double> most_watts;    // the limit that is set
  std::optional<int> celsius;          // the hottest
  std::vector<std::string> slowed_by;  // "power limit"
  std::vector<std::string> others;     // "process 4711 (python), 44.2 GiB"
  std::optional<double> joules;
  bool joules_counted = false;  // by the device itself; else from power readings

  [[nodiscard]] bool throttled() const { return !slowed_by.empty(); }
  [[nodiscard]] bool shared() const { return !others.empty(); }
  // Of all readings; 0 where there are none.
  [[nodiscard]] int median_mhz() const;
};

// The clock of the readings that surround a span of time, where that is lower than all but always: by more
// than a twentieth below the median.
[[nodiscard]] std::optional<int> clock_drop(const MachineState& state,
                                            std::chrono::steady_clock::time_point begin,
                                            std::chrono::steady_clock::time_point end);

// "; THROTTLED by power limit; SHARED with ..."; empty where neither.
[[nodiscard]] std::string marks_text(const MachineState& state);
// "1980 MHz (1965 to 1980 of 1980), 412 W of 700, 51 C"; empty where nothing is told.
[[nodiscard]] std::string machine_text(const MachineState& state);
// What is not told is left out.
[[nodiscard]] Json machine_json(const MachineState& state);

// Of `tokens` that came while it was looked at: "0.31 J a token ..."
[[nodiscard]] std::string energy_text(const MachineState& state, double tokens);
[[nodiscard]] Json energy_json(const MachineState& state, double tokens);

}  // namespace fut::app
