// Runs packed buffers through the chip's real matrix instructions and conversions, one plain kernel
// each, so that tests/kernel/fragment_probe_test.cu can ask where every nibble ends up. Not fast,
// not used by any op. Host-safe; the kernels are in fragment_probe.cu.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/layout/int4_tile.h"
#include "kernels/layout/kv_page_int4.h"

namespace fut::test {

// The columns of the B operand: tokens of a batch, or queries that share a KV head.
inline constexpr int kProbeColumns = 8;
// The widest matrix that multiply_weights() takes (B stands in shared memory for wgmma).
inline constexpr int kProbeMaxCols = 512;

// Why no GPU can be used here, or an empty string.
[[nodiscard]] std::string gpu_missing();

enum class Instruction { Mma, Wgmma };

// y[row][n] = sum over groups of scale * (sum over the group of code * x[n][col]), in float32.
// packed: as `tile` says; x: FP16 bits [8][cols]. Returns [16 * strips][8].
[[nodiscard]] std::vector<float> multiply_weights(const layout::Int4Tile& tile,
                                                  std::span<const std::uint8_t> packed,
                                                  std::span<const std::uint16_t> x,
                                                  Instruction instruction);

// s[head][token][n] = sum over dims of key * q[n][dim], by mma. q: FP16 bits [8][head_dim], the
// same for every head. Returns [heads][64][8].
[[nodiscard]] std::vector<float> multiply_keys(const layout::KvPageInt4& page,
                                               std::span<const std::uint8_t> packed,
                                               std::span<const std::uint16_t> q);

// o[head][dim][n] = sum over tokens of p[n][token] * value, by mma. p: FP16 bits [8][64]; p * scale
// has to be an FP16 number. Returns [heads][head_dim][8].
[[nodiscard]] std::vector<float> multiply_values(const layout::KvPageInt4& page,
                                                 std::span<const std::uint8_t> packed,
                                                 std::span<const std::uint16_t> p);

enum class Conversion {
  F32ToE4m3,  // cvt.rn.satfinite.e4m3x2.f32
  F32ToF16,   // cvt.rn.f16.f32
  F32ToBf16,  // cvt.rn.bf16.f32
  E4m3ToF16,  // cvt.rn.f16x2.e4m3x2
  F16ToF32,   // cvt.f32.f16
};

struct Disagreement {
  std::uint64_t inputs = 0;       // how many were compared
  std::uint64_t count = 0;        // on how many the instruction and the header differ
  std::uint32_t first = 0;        // the smallest such input, as bits
  std::uint32_t instruction = 0;  // what the instruction makes of it
  std::uint32_t header = 0;       // what kernels/numeric makes of it
};

// Every input there is (2^32 for a float32), the instruction against the function of
// kernels/numeric compiled for the device. NaNs of F16 and BF16 results agree whatever their
// payload.
[[nodiscard]] Disagreement compare_conversion(Conversion conversion);

}  // namespace fut::test
