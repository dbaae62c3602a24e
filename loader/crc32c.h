// CRC-32C (Castagnoli, polynomial 0x1EDC6F41 reflected): the checksum that packed files carry. Finds
// damage by disks and cables; not a proof of identity.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fut {

// Of `bytes`, going on from the checksum of what precedes them (0: nothing does). By the processor's
// instruction where it has one, else as crc32c_by_table.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

// The same on any machine, slower.
[[nodiscard]] std::uint32_t crc32c_by_table(std::span<const std::byte> bytes,
                                            std::uint32_t before = 0);

}  // namespace fut
