// A folder quantised on the GPU holds what the host makes of the same statistics, byte by byte.
#include <gtest/gtest.h>

#include "tests/support/backends.h"
#include "tests/support/device_folder.h"

namespace fut::test {
namespace {

TEST(DeviceQuantizerCuda, FoldersAreTheHosts) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto backend = gpu_backend();
  expect_device_folders_are_the_hosts(*backend);
}

}  // namespace
}  // namespace fut::test
