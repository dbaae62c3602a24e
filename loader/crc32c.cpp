// CRC-32C twice: eight bytes a step by the SSE 4.2 instruction, and eight bytes a step by tables.
#include "loader/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace fut {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78U;  // reflected
constexpr std::size_t kStep = 8;

// kTables[n][b]: what byte b contributes when n bytes follow it in the same step.
using Tables = std::array<std::array<std::uint32_t, 256>, kStep>;
constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1U) * kPolynomial);
    tables[0][byte] = value;
  }
  for (std::size_t n = 1; n < kStep; ++n) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t value = tables[n - 1][byte];
      tables[n][byte] = (value >> 8) ^ tables[0][value & 0xFFU];
    }
  }
  return tables;
}
constexpr Tables kTables = make_tables();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t crc32c_by_instruction(
    std::span<const std::byte> bytes, std::uint32_t before) {
  std::uint64_t state = ~before;
  while (bytes.size() >= kStep) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), kStep);
    state = _mm_crc32_u64(state, word);
    bytes = bytes.subspan(kStep);
  }
  auto state32 = static_cast<std::uint32_t>(state);
  for (const std::byte byte : bytes) {
    state32 = _mm_crc32_u8(state32, static_cast<unsigned char>(byte));
  }
  return ~state32;
}
#endif

}  // namespace

std::uint32_t crc32c_by_table(std::span<const std::byte> bytes, std::uint32_t before) {
  const auto byte_at = [&](std::size_t i) { return static_cast<std::uint32_t>(bytes[i]); };
  std::uint32_t state = ~before;
  while (bytes.size() >= kStep) {
    std::uint32_t next = 0;
    for (std::size_t i = 0; i < kStep; ++i) {
      // The state reaches over the first four bytes of the step.
      const std::uint32_t mixed = byte_at(i) ^ (i < 4 ? (state >> (8 * i)) & 0xFFU : 0U);
      next ^= kTables[kStep - 1 - i][mixed];
    }
    state = next;
    bytes = bytes.subspan(kStep);
  }
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    state = (state >> 8) ^ kTables[0][(state ^ byte_at(i)) & 0xFFU];
  }
  return ~state;
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return crc32c_by_instruction(bytes, before);
#endif
  return crc32c_by_table(bytes, before);
}

}  // namespace fut
