// expand, on the CPU and on the GPU: every code against the contract spelt out element by element, in all
// orders of rows, with and without scales of columns. All but one rounding is exact, so bits are compared.
#include <cmath>
#include <gtest/gtest.h>
#include <random>

#include "kernels/numeric/activation_scales.h"
#include "kernels/numeric/formats.h"
#include "tests/support/backends.h"
#include "tests/support/expect_error.h"

namespace fut::test {
namespace {

struct Case {
  const char* name;
  layout::RowOrder order;
  int cols;
  int group;
  int num_column_scales;
};

std::vector<Case> cases() {
  return {{"natural", layout::RowOrder::natural(48), 256, 128, 0},
          {"rows that fill no strip", layout::RowOrder::natural(37), 128, 64, 0},
          {"gate and up", layout::RowOrder::gate_up(52), 384, 128, 0},
          {"q, k and v", layout::RowOrder::qkv(4, 2, 64), 512, 128, 0},
          {"heads' scales", layout::RowOrder::natural(64), 512, 128, 8},
          {"scales of 16 columns", layout::RowOrder::natural(16), 128, 64, 8},
          {"long rows", layout::RowOrder::natural(32), 28672, 128, 8}};
}

class Problem {
 public:
  explicit Problem(const Case& c) : case_(c) {
    tile_ = {c.order.packed_rows(), c.cols, c.group};
    std::mt19937 random(static_cast<unsigned>(c.cols + c.order.source_rows));
    packed_.resize(static_cast<std::size_t>(tile_.bytes()));
    for (auto& byte : packed_) byte = static_cast<std::uint8_t>(random());
    for (int row = 0; row < tile_.num_strips() * layout::Int4Tile::kStripRows; ++row) {
      for (int g = 0; g < tile_.num_groups(); ++g) set_scale(row, g, scale(random, row));
    }
    for (int i = 0; i < c.num_column_scales; ++i) {
      column_scales_.push_back(std::ldexp(1.0F, static_cast<int>(random() % 9) - 4));
    }
  }

  struct Result {
    std::vector<std::uint8_t> codes;
    std::vector<float> row_scales;
    bool operator==(const Result&) const = default;
  };

  [[nodiscard]] Result run(Backend& backend) const {
    const Guarded<std::uint8_t> packed(backend, packed_);
    const Guarded<float> column_scales(backend, column_scales_);
    const auto rows = static_cast<std::size_t>(case_.order.source_rows);
    Guarded<std::uint8_t> codes(
        backend, std::vector<std::uint8_t>(rows * static_cast<std::size_t>(case_.cols), kE4m3Nan));
    Guarded<float> row_scales(backend, std::vector<float>(rows, kPoison));
    ExpandArgs a;
    a.weight = {packed.data(), tile_, case_.order, case_.order.source_rows, case_.cols};
    a.column_scales = case_.num_column_scales == 0 ? nullptr : column_scales.data();
    a.num_column_scales = case_.num_column_scales;
    a.codes = codes.data();
    a.row_scales = row_scales.data();
    backend.expand(a);
    (void)packed.values();
    return {codes.values(), row_scales.values()};
  }

  [[nodiscard]] Result expected() const {
    Result result;
    for (int n = 0; n < case_.order.source_rows; ++n) {
      const int row = case_.order.packed_row(n);
      double amax = 0;
      for (int k = 0; k < case_.cols; ++k) amax = std::max(amax, std::abs(factor(row, k)));
      // The least power of two that leaves 8 * amax within E4M3.
      double scale = 0x1p-126;
      while (8 * amax > 448 * scale) scale *= 2;
      if (amax == 0) scale = 1;
      result.row_scales.push_back(static_cast<float>(scale));
      for (int k = 0; k < case_.cols; ++k) {
        const double number = code(row, k) * factor(row, k) / scale;
        EXPECT_EQ(static_cast<double>(static_cast<float>(number)), number);
        result.codes.push_back(f32_to_e4m3(static_cast<float>(number)));
      }
    }
    return result;
  }

 private:
  // Of both signs and many sizes; some rows have none but zeros.
  static float scale(std::mt19937& random, int row) {
    if (row % 11 == 5) return 0;
    const auto fraction = static_cast<float>(128 + random() % 128) / 128;
    const float size = std::ldexp(fraction, static_cast<int>(random() % 6) - 12 + row % 3);
    return random() % 2 == 0 ? size : -size;
  }
  void set_scale(int row, int group, float value) {
    const std::uint16_t bits = f32_to_bf16(value);
    std::memcpy(packed_.data() + tile_.scale_offset(row, group), &bits, sizeof(bits));
  }
  [[nodiscard]] double factor(int row, int col) const {
    std::uint16_t bits = 0;
    std::memcpy(&bits, packed_.data() + tile_.scale_offset(row, col / tile_.group), sizeof(bits));
    const double scale = bf16_to_f32(bits);
    if (column_scales_.empty()) return scale;
    return scale /
           column_scales_[static_cast<std::size_t>(col / (case_.cols / case_.num_column_scales))];
  }
  [[nodiscard]] int code(int row, int col) const {
    const layout::Int4Slot slot = tile_.slot(row, col);
    const int byte = packed_[static_cast<std::size_t>(slot.word + slot.nibble / 2)];
    return (byte >> 4 * (slot.nibble % 2) & 15) - layout::kInt4CodeBias;
  }

  Case case_;
  layout::Int4Tile tile_;
  std::vector<std::uint8_t> packed_;
  std::vector<float> column_scales_;
};

TEST(Expand, IsTheNearestE4m3OfEachNumber) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Problem problem(c);
    const Problem::Result expected = problem.expected();
    for (const CpuSetup& setup : cpu_setups()) {
      EXPECT_TRUE(problem.run(*setup.backend) == expected) << setup.name;
    }
  }
}

TEST(Expand, RowScalesLeaveNoRoomForHalfOfThem) {
  for (const float amax : {1.0F, 1.75F, 1.7500001F, 1.9999999F, 0x1p-100F, 56.0F, 57.0F, 3e30F}) {
    const float scale = expanded_row_scale(amax);
    EXPECT_LE(8.0 * amax, 448.0 * scale) << amax;
    EXPECT_GT(8.0 * amax, 448.0 * scale / 2) << amax;
  }
  EXPECT_EQ(expanded_row_scale(0), 1);
  EXPECT_EQ(expanded_row_scale(0x1p-140F), 0x1p-126F);
}

TEST(Expand, RefusesWhatItCannotDo) {
  const auto setups = cpu_setups();
  Backend& backend = *setups.front().backend;
  const Guarded<std::uint8_t> packed(
      backend,
      std::vector<std::uint8_t>(static_cast<std::size_t>(layout::Int4Tile::bytes(16, 128, 128))));
  Guarded<std::uint8_t> codes(backend, std::vector<std::uint8_t>(16 * 128 + 16));
  Guarded<float> scales(backend, std::vector<float>(16));
  ExpandArgs a;
  a.weight = {packed.data(), {16, 128, 128}, layout::RowOrder::natural(16), 16, 128};
  a.codes = codes.data();
  a.row_scales = scales.data();
  check(a);
  const auto refused = [](ExpandArgs changed) {
    return error_message(ErrorKind::Runtime, [&] { check(changed); });
  };
  ExpandArgs changed = a;
  changed.codes += 1;
  EXPECT_NE(refused(changed).find("aligned"), std::string::npos);
  changed = a;
  changed.num_column_scales = 3;
  (void)refused(changed);
  changed.column_scales = scales.data();
  (void)refused(changed);
  changed = a;
  changed.row_scales = nullptr;
  (void)refused(changed);
  changed = a;
  changed.codes = const_cast<std::uint8_t*>(packed.data());
  (void)refused(changed);
}

TEST(ExpandCuda, GivesTheBitsOfTheContract) {
  FUT_REQUIRE_GPU_DEVICE();
  const auto backend = gpu_backend();
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Problem problem(c);
    EXPECT_TRUE(problem.run(*backend) == problem.expected());
  }
}

}  // namespace
}  // namespace fut::test
