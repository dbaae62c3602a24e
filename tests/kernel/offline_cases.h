// Matrices for tests of what quantising asks of a device, and what the host's own code makes of them.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "kernels/ops_offline.h"
#include "loader/int4_grid.h"
#include "loader/packers.h"

namespace fut::test {

struct OfflineCase {
  std::string name;
  int rows, cols, group_size;
  bool searched;
};

// Groups whose borders no warp and no block shares, both sizes, both rules.
inline std::vector<OfflineCase> offline_cases() {
  return {{"one group", 1, 128, 128, true},          {"groups of 64", 5, 384, 64, true},
          {"a block and a bit", 33, 256, 128, true}, {"several blocks", 67, 640, 128, true},
          {"largest weight", 19, 256, 128, false},   {"the same, of 64", 18, 128, 64, false}};
}

// Normal numbers with what is rare among them: zeros, ties, outliers of either sign, groups of zeros, of
// tiny and of huge numbers, columns of importance zero.
class OfflineMatrix {
 public:
  OfflineMatrix(const OfflineCase& problem, std::uint32_t seed)
      : w("w", problem.rows, problem.cols), importance(static_cast<std::size_t>(problem.cols)) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal;
    for (float& value : w.values) value = normal(engine);
    for (std::size_t i = 0; i < w.values.size(); i += 7) w.values[i] *= 16;
    for (std::size_t i = 0; i < w.values.size(); i += 11) w.values[i] = 0;
    const std::int64_t groups = std::ssize(w.values) / problem.group_size;
    for (std::int64_t g = 0; g < groups; ++g) spoil(g, problem.group_size);
    for (float& value : importance) value = std::exp(2 * normal(engine));
    for (std::size_t i = 0; i < importance.size(); i += 5) importance[i] = 0;
    for (std::size_t i = importance.size() / 2; i < importance.size() / 2 + 64; ++i) {
      importance[i] = 0;  // a group of 64 of them is uniform then
    }
  }

  HostMatrix w;
  std::vector<float> importance;

 private:
  void spoil(std::int64_t group, int size) {
    float* weights = w.values.data() + group * size;
    switch (group % 9) {
      case 1:
        for (int i = 0; i < size; ++i) weights[i] = 0;
        break;
      case 2:
        for (int i = 0; i < size; ++i) weights[i] *= 0x1p-124F;
        break;
      case 3:
        for (int i = 0; i < size; ++i) weights[i] *= 0x1p118F;
        break;
      case 4:  // whole numbers: many quotients are ties
        for (int i = 0; i < size; ++i) weights[i] = static_cast<float>(i % 17 - 8);
        break;
      case 5:
        weights[size - 1] = 100;
        weights[size / 2] = -100;
        break;
      case 6:
        for (int i = 0; i < size; ++i) weights[i] = i % 2 == 0 ? 0x1p-121F : -0x1p-122F;
        break;
      default:
        break;
    }
  }
};

[[nodiscard]] inline ScaleRule rule_of(const OfflineCase& problem) {
  return problem.searched ? ScaleRule::Searched : ScaleRule::MinMax;
}

}  // namespace fut::test
