// expand's kernel, its own source, on the CPU (tests/emulator): the bits of the CPU backend whatever the
// order of turns, nothing written beside.
#include <gtest/gtest.h>
#include <random>

#include "kernels/cuda/expand.cuh"
#include "kernels/numeric/formats.h"
#include "tests/support/backends.h"

namespace fut::test {
namespace {

struct Result {
  std::vector<std::uint8_t> codes;
  std::vector<float> row_scales;
  bool operator==(const Result&) const = default;
};

class Problem {
 public:
  Problem(const layout::RowOrder& order, int cols, int group, int num_column_scales)
      : order_(order), tile_{order.packed_rows(), cols, group} {
    std::mt19937 random(7);
    packed_.resize(static_cast<std::size_t>(tile_.bytes()));
    for (auto& byte : packed_) byte = static_cast<std::uint8_t>(random());
    for (int row = 0; row < 16 * tile_.num_strips(); ++row) {
      for (int g = 0; g < tile_.num_groups(); ++g) {
        const auto fraction = static_cast<float>(128 + random() % 128);
        const std::uint16_t bits =
            f32_to_bf16(std::ldexp(fraction, -static_cast<int>(random() % 12)));
        std::memcpy(packed_.data() + tile_.scale_offset(row, g), &bits, sizeof(bits));
      }
    }
    for (int i = 0; i < num_column_scales; ++i) column_scales_.push_back(std::ldexp(1.0F, i - 2));
  }

  [[nodiscard]] ExpandArgs args(std::uint8_t* codes, float* row_scales) const {
    ExpandArgs a;
    a.weight = {packed_.data(), tile_, order_, order_.source_rows, tile_.cols};
    a.column_scales = column_scales_.empty() ? nullptr : column_scales_.data();
    a.num_column_scales = static_cast<int>(column_scales_.size());
    a.codes = codes;
    a.row_scales = row_scales;
    return a;
  }
  [[nodiscard]] Result expected(Backend& cpu) const {
    const DeviceBuffer codes = cpu.allocate(num_codes());
    Result result{std::vector<std::uint8_t>(num_codes()), std::vector<float>(num_rows())};
    backend_expand(cpu, codes.as<std::uint8_t>(), result);
    return result;
  }
  // Empty, or what went wrong; `result` has room beside.
  [[nodiscard]] std::string run(std::uint32_t seed, Result& result) const {
    struct alignas(16) Sixteen {
      std::uint8_t bytes[16];
    };
    std::vector<Sixteen> codes(num_codes() / 16 + 1, Sixteen{});
    std::memset(codes.data(), kUntouched, codes.size() * sizeof(Sixteen));
    result.row_scales.assign(num_rows() + 1, -1);
    const cuda::Expansion expansion(args(codes[0].bytes, result.row_scales.data()));
    emulator::Launch launch;
    launch.num_blocks = tile_.num_strips();
    launch.threads = cuda::kExpandThreads;
    launch.shared_bytes = cuda::kExpandSharedBytes;
    launch.seed = seed;
    const std::string error = emulator::run(
        launch, [&](std::uint8_t* shared) { cuda::StripExpansion(expansion, shared).run(); });
    if (!error.empty()) return error;
    if (result.row_scales.back() != -1) return "a scale beside";
    result.row_scales.pop_back();
    const auto* bytes = codes[0].bytes;
    result.codes.assign(bytes, bytes + num_codes());
    for (std::size_t i = num_codes(); i < codes.size() * 16; ++i) {
      if (bytes[i] != kUntouched) return "a code beside";
    }
    return {};
  }

 private:
  static constexpr std::uint8_t kUntouched = 0x7F;

  void backend_expand(Backend& cpu, std::uint8_t* codes, Result& result) const {
    cpu.expand(args(codes, result.row_scales.data()));
    std::memcpy(result.codes.data(), codes, num_codes());
  }
  [[nodiscard]] std::size_t num_rows() const {
    return static_cast<std::size_t>(order_.source_rows);
  }
  [[nodiscard]] std::size_t num_codes() const {
    return num_rows() * static_cast<std::size_t>(tile_.cols);
  }

  layout::RowOrder order_;
  layout::Int4Tile tile_;
  std::vector<std::uint8_t> packed_;
  std::vector<float> column_scales_;
};

TEST(ExpandEmulated, GivesTheBitsOfTheCpuBackend) {
  const Problem problems[] = {{layout::RowOrder::natural(37), 128, 64, 0},
                              {layout::RowOrder::gate_up(20), 1152, 128, 0},
                              {layout::RowOrder::qkv(2, 1, 64), 256, 128, 0},
                              {layout::RowOrder::natural(32), 512, 128, 8}};
  const auto setups = cpu_setups();
  for (const Problem& problem : problems) {
    const Result expected = problem.expected(*setups.front().backend);
    for (std::uint32_t seed = 0; seed < 8; ++seed) {
      Result result;
      ASSERT_EQ(problem.run(seed, result), "") << seed;
      EXPECT_TRUE(result == expected) << seed;
    }
  }
}

}  // namespace
}  // namespace fut::test
