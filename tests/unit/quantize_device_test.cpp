// Quantising on a device, with a device whose ops are the host's: what is asked of it, in which order,
// and what is written; statistics in BF16 beside those in float32.
#include "engine/quantize_device.h"

#include <cmath>
#include <gtest/gtest.h>

#include "engine/quantize.h"
#include "tests/support/device_folder.h"
#include "tests/support/expect_error.h"
#include "tests/support/offline_on_host.h"
#include "tests/unit/quantize_case.h"

namespace fut::test {
namespace {

TEST(DeviceQuantizer, FoldersAreTheHosts) {
  const auto backend = offline_cpu_backend();
  expect_device_folders_are_the_hosts(*backend);
}

// Every activation is rounded to 8 bits, once where it is written; what follows from that is no more
// than a few times 2^-8 of a sum of squares, which counts it twice.
TEST(DeviceQuantizer, StatisticsAreNearThoseOfFloat32) {
  const TempFolder folder;
  write_toy_model(folder / "toy", quantizable_toy_model());
  const PackedOptions options = plain_options();
  const CalibrationWindows windows = {random_ids(64), random_ids(41)};
  QuantizeCase toy(folder / "toy", options);
  const auto expected = toy.calibrate(windows);
  const auto backend = offline_cpu_backend();
  DeviceQuantizer quantizer(*backend, toy.weights, toy.config, toy.options, windows, {});
  for (int i = 0; i < toy.config.num_layers; ++i) {
    PackedLayer packed;
    (void)quantizer.next(toy.weights.layer(i), packed);
    const LayerStatistics& truth = expected[static_cast<std::size_t>(i)].statistics;
    const auto expect_near = [](const std::vector<float>& found, const std::vector<float>& wanted) {
      ASSERT_EQ(found.size(), wanted.size());
      double difference = 0, sum = 0;
      for (std::size_t c = 0; c < found.size(); ++c) {
        difference += std::fabs(found[c] - wanted[c]);
        sum += wanted[c];
      }
      EXPECT_LE(difference, 16 * 0x1p-8 * sum);
    };
    expect_near(packed.statistics.qkv_input, truth.qkv_input);
    expect_near(packed.statistics.o_input, truth.o_input);
    expect_near(packed.statistics.gate_up_input, truth.gate_up_input);
    expect_near(packed.statistics.down_input, truth.down_input);
  }
}

TEST(DeviceQuantizer, NamesTheWeightThatNoScaleServes) {
  const TempFolder folder;
  write_toy_model(folder / "toy", quantizable_toy_model());
  const PackedOptions options = plain_options();
  QuantizeCase toy(folder / "toy", options);
  const auto backend = offline_cpu_backend();
  DeviceQuantizer quantizer(*backend, toy.weights, toy.config, toy.options, {random_ids(8)}, {});
  TransformedLayer layer = toy.weights.layer(0);
  // The value stays finite, and what becomes of it is normalised away.
  layer.v_proj.row(3)[7] = -0x1p127F;
  PackedLayer packed;
  expect_mentions(error_message(ErrorKind::Data, [&] { (void)quantizer.next(layer, packed); }),
                  {"layers.0.qkv_proj", "row 387", "column 7", "2^127"});
}

}  // namespace
}  // namespace fut::test
