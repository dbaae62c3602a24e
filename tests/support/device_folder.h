// A folder that was quantised on a device, against what the host makes of the statistics in it.
#pragma once

#include "kernels/backend.h"

namespace fut::test {

// Quantises toy models on `backend`, which has offline_ops(), with each set of options, and compares
// every byte of every layer.
void expect_device_folders_are_the_hosts(Backend& backend);

}  // namespace fut::test
