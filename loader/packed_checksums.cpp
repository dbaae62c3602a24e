// Bytes to numbers and back; see the header.
#include "loader/packed_checksums.h"

#include <algorithm>

#include "loader/crc32c.h"

namespace fut {
namespace {

constexpr std::size_t kNumberBytes = 4;

void put(std::vector<std::byte>& bytes, std::uint32_t number) {
  for (std::size_t i = 0; i < kNumberBytes; ++i) {
    bytes.push_back(static_cast<std::byte>(number >> (8 * i) & 0xFFU));
  }
}

std::uint32_t get(std::span<const std::byte> bytes, std::size_t index) {
  std::uint32_t number = 0;
  for (std::size_t i = 0; i < kNumberBytes; ++i) {
    number |= static_cast<std::uint32_t>(bytes[kNumberBytes * index + i]) << (8 * i);
  }
  return number;
}

}  // namespace

std::vector<std::byte> encode_checksums(const ChecksumTable& table) {
  std::vector<std::byte> bytes;
  for (const std::uint32_t chunk : table.chunks) put(bytes, chunk);
  put(bytes, table.header);
  put(bytes, crc32c(bytes));
  return bytes;
}

std::optional<ChecksumTable> decode_checksums(std::span<const std::byte> bytes) {
  const std::size_t numbers = bytes.size() / kNumberBytes;
  if (numbers < 2 || bytes.size() % kNumberBytes != 0) return std::nullopt;
  if (crc32c(bytes.first(bytes.size() - kNumberBytes)) != get(bytes, numbers - 1)) {
    return std::nullopt;
  }
  ChecksumTable table;
  for (std::size_t i = 0; i + 2 < numbers; ++i) table.chunks.push_back(get(bytes, i));
  table.header = get(bytes, numbers - 2);
  return table;
}

void ChunkChecksums::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto piece = bytes.first(static_cast<std::size_t>(
        std::min<std::uint64_t>(bytes.size(), kChecksumChunk - current_bytes_)));
    current_ = crc32c(piece, current_);
    current_bytes_ += piece.size();
    bytes = bytes.subspan(piece.size());
    if (current_bytes_ < kChecksumChunk) continue;
    full_.push_back(current_);
    current_ = 0;
    current_bytes_ = 0;
  }
}

std::vector<std::uint32_t> ChunkChecksums::chunks() const {
  std::vector<std::uint32_t> all = full_;
  if (current_bytes_ > 0) all.push_back(current_);
  return all;
}

}  // namespace fut
