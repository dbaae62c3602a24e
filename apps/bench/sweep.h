// Settings that are measured one after the other.
#pragma once

#include <fmt/format.h>

#include "apps/reporter.h"
#include "apps/signals.h"

namespace fut::app {

// Calls `measure` for each setting. The document tells how many there are and how many were measured; where
// there are several, an interrupt tells too. What measure() reports of a setting it reports at its end.
template <class Settings, class Measure>
void measure_each(Settings& settings, Reporter& reporter, const Measure& measure) {
  std::size_t measured = 0;
  reporter.document()["settings"] = settings.size();
  reporter.document()["settings_measured"] = measured;
  try {
    for (auto& setting : settings) {
      measure(setting);
      reporter.document()["settings_measured"] = ++measured;
    }
  } catch (const Interrupted& e) {
    if (settings.size() == 1) throw;
    throw Interrupted(e.signal(), fmt::format("interrupted; {} of {} settings were measured",
                                              measured, settings.size()));
  }
}

}  // namespace fut::app
