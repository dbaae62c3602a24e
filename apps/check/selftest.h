// fut selftest: the demonstration model in every way that it can run here, in seconds.
#pragma once

#include "apps/options.h"
#include "apps/reporter.h"

namespace fut::app {

struct SelftestOptions {
  bool json = false;
  LogOptions log;
};

[[nodiscard]] Command selftest_command(SelftestOptions& options);
// Exit code 1 where a part fails.
int selftest(const SelftestOptions& options, Reporter& reporter);

}  // namespace fut::app
