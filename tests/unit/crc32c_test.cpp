// CRC-32C against published values, its two implementations against each other, and what it is for.
#include "loader/crc32c.h"

#include <gtest/gtest.h>
#include <random>
#include <string_view>
#include <vector>

namespace fut {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::vector<std::byte> random_bytes(std::size_t count) {
  std::mt19937_64 random(7);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 0xFFU);
  return bytes;
}

// The check value of the algorithm's catalogue, and the vectors of RFC 3720, B.4.
TEST(Crc32c, HasThePublishedValues) {
  std::vector<std::byte> rising(32);
  for (std::size_t i = 0; i < rising.size(); ++i) rising[i] = static_cast<std::byte>(i);
  for (const auto function : {crc32c, crc32c_by_table}) {
    EXPECT_EQ(function(bytes_of("123456789"), 0), 0xE3069283U);
    EXPECT_EQ(function(bytes_of(""), 0), 0U);
    EXPECT_EQ(function(std::vector<std::byte>(32), 0), 0x8A9136AAU);
    EXPECT_EQ(function(std::vector<std::byte>(32, std::byte{0xFF}), 0), 0x62A8AB43U);
    EXPECT_EQ(function(rising, 0), 0x46DD794EU);
  }
}

TEST(Crc32c, IsTheSameByInstructionAndByTableForEveryLengthAndAlignment) {
  const std::vector<std::byte> bytes = random_bytes(100);
  const std::span<const std::byte> all(bytes);
  for (std::size_t begin = 0; begin < 9; ++begin) {
    for (std::size_t count = 0; begin + count <= bytes.size(); ++count) {
      const auto part = all.subspan(begin, count);
      ASSERT_EQ(crc32c(part, 0x12345678U), crc32c_by_table(part, 0x12345678U)) << begin << count;
    }
  }
}

TEST(Crc32c, OfPiecesIsThatOfTheWhole) {
  const std::vector<std::byte> bytes = random_bytes(1000);
  const std::span<const std::byte> all(bytes);
  for (const std::size_t cut : {0U, 1U, 7U, 8U, 500U, 999U, 1000U}) {
    EXPECT_EQ(crc32c(all.subspan(cut), crc32c(all.first(cut))), crc32c(all)) << cut;
  }
}

TEST(Crc32c, NoticesEverySingleBit) {
  std::vector<std::byte> bytes = random_bytes(64);
  const std::uint32_t right = crc32c(bytes);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_NE(crc32c(bytes), right) << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
  }
}

}  // namespace
}  // namespace fut
