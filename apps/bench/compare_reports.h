// Two reports of fut bench, side by side, with a verdict.
#pragma once

#include <string>

#include "apps/reporter.h"

namespace fut::app {

// Throws Data where a file is no such report or the two have no setting in common. Returns 0: what is
// faster is for people to judge.
int compare_reports(const std::string& old_file, const std::string& new_file, Reporter& reporter);

}  // namespace fut::app
