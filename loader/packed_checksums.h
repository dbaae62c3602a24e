// The checksums of a packed file, what writer and reader share of them. The tensor checksums.crc32c
// holds 32-bit numbers, little-endian:
//
//   the CRC-32C of every 16 MiB of the data, from its first byte to that of this tensor
//   that of the header: the first 8 + header_bytes bytes of the file
//   that of all the numbers before this one
//
// So every byte of the file is under a checksum. The same in every version of the format, so that
// damage is told from age.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace fut {

inline constexpr std::uint64_t kChecksumChunk = 16U << 20;

// Chunks of `data_bytes` bytes; the last one can be shorter.
[[nodiscard]] constexpr std::uint64_t num_checksum_chunks(std::uint64_t data_bytes) {
  return (data_bytes + kChecksumChunk - 1) / kChecksumChunk;
}
// Bytes of the tensor that covers as many.
[[nodiscard]] constexpr std::uint64_t checksum_table_bytes(std::uint64_t data_bytes) {
  return 4 * (num_checksum_chunks(data_bytes) + 2);
}

struct ChecksumTable {
  std::vector<std::uint32_t> chunks;
  std::uint32_t header = 0;
};
[[nodiscard]] std::vector<std::byte> encode_checksums(const ChecksumTable& table);
// nullopt: the table does not meet its own checksum.
[[nodiscard]] std::optional<ChecksumTable> decode_checksums(std::span<const std::byte> bytes);

// Checksums of chunks of data that comes in pieces.
class ChunkChecksums {
 public:
  void add(std::span<const std::byte> bytes);
  // Of all that was added.
  [[nodiscard]] std::vector<std::uint32_t> chunks() const;

 private:
  std::vector<std::uint32_t> full_;
  std::uint32_t current_ = 0;
  std::uint64_t current_bytes_ = 0;
};

}  // namespace fut
