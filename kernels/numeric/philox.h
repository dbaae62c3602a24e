// Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011): random numbers as a function of a key and a
// counter, so that every backend draws the same number without keeping any state.
#pragma once

#include <array>
#include <cstdint>

namespace fut {

[[nodiscard]] constexpr std::array<std::uint32_t, 4> philox4x32_10(
    std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  return counter;
}

// The draw of the op `sample`: the key is the seed (low word, high word), the counter is the draw
// index (low, high) followed by two zero words; of the four results the first one's upper 24 bits
// make a float in [0, 1), each a multiple of 2^-24.
[[nodiscard]] constexpr float philox_uniform(std::uint64_t seed, std::uint64_t draw_index) {
  const std::array<std::uint32_t, 4> words = philox4x32_10(
      {static_cast<std::uint32_t>(draw_index), static_cast<std::uint32_t>(draw_index >> 32), 0, 0},
      {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return static_cast<float>(words[0] >> 8) * 0x1p-24F;
}

}  // namespace fut
