// A quantised folder, tensor by tensor.
#pragma once

#include <filesystem>
#include <gtest/gtest.h>
#include <span>
#include <vector>

#include "engine/calibration.h"
#include "loader/packed_model.h"

namespace fut::test {

class OpenedFolder {
 public:
  explicit OpenedFolder(const std::filesystem::path& folder)
      : config_(load_model_config(folder)), packed_(PackedModel::open(folder, config_)) {}

  template <class T>
  [[nodiscard]] std::vector<T> read(const TensorInfo& info) const {
    std::vector<T> values(info.bytes / sizeof(T));
    packed_.read(info, std::as_writable_bytes(std::span(values)), {});
    return values;
  }
  template <class T>
  [[nodiscard]] std::vector<T> layer(int index, PackedLayerTensor which) const {
    return read<T>(packed_.layer(index, which));
  }
  template <class T>
  [[nodiscard]] std::vector<T> part(int index, int matrix, PackedPart which) const {
    return layer<T>(index, packed_part(static_cast<PackedMatrix>(matrix), which));
  }
  template <class T>
  [[nodiscard]] std::vector<T> global(PackedGlobalTensor which) const {
    return read<T>(packed_.global(which));
  }
  [[nodiscard]] const PackedInfo& info() const { return packed_.info(); }
  [[nodiscard]] LayerStatistics statistics(int index) const {
    const auto vector = [&](PackedLayerTensor which) { return layer<float>(index, which); };
    const std::vector<float> swiglu = vector(PackedLayerTensor::StatsSwiglu);
    return {vector(PackedLayerTensor::StatsQkvInput),
            vector(PackedLayerTensor::StatsOInput),
            vector(PackedLayerTensor::StatsGateUpInput),
            vector(PackedLayerTensor::StatsDownInput),
            swiglu.at(0),
            swiglu.at(1),
            vector(PackedLayerTensor::StatsValueAmax)};
  }

 private:
  ModelConfig config_;
  PackedModel packed_;
};

inline void expect_statistics(const LayerStatistics& found, const LayerStatistics& expected) {
  EXPECT_EQ(found.qkv_input, expected.qkv_input);
  EXPECT_EQ(found.o_input, expected.o_input);
  EXPECT_EQ(found.gate_up_input, expected.gate_up_input);
  EXPECT_EQ(found.down_input, expected.down_input);
  EXPECT_EQ(found.swiglu_rms, expected.swiglu_rms);
  EXPECT_EQ(found.swiglu_amax, expected.swiglu_amax);
  EXPECT_EQ(found.value_amax, expected.value_amax);
}

}  // namespace fut::test
