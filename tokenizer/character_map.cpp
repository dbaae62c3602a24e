// A double array: a place's unit says where its children's block begins; the child for a byte lies that
// byte further (by exclusive or), and is one if its label is the byte. See character_map.h.
#include "tokenizer/character_map.h"

#include <cstdint>
#include <vector>

namespace fut {
namespace {

constexpr std::size_t kUnitBytes = 4;
constexpr std::uint32_t kLastByte = 0xFF;
constexpr std::uint32_t kValueMask = 0x7FFFFFFF;
constexpr std::uint32_t kLabelMask = 0x800000FF;

std::uint32_t number_at(std::string_view bytes, std::size_t index) {
  std::uint32_t number = 0;
  for (std::size_t i = 0; i < kUnitBytes; ++i) {
    const auto byte = static_cast<unsigned char>(bytes[kUnitBytes * index + i]);
    number |= static_cast<std::uint32_t>(byte) << (8 * i);
  }
  return number;
}

// How far the block of children lies from the unit's own place, by exclusive or.
std::uint32_t offset_of(std::uint32_t unit) {
  return unit >> 10U << ((unit & 0x200U) >> 6U);
}
bool has_value(std::uint32_t unit) {
  return (unit & 0x100U) != 0;
}

}  // namespace

bool is_sound_character_map(std::string_view map) {
  if (map.size() < kUnitBytes) return false;
  const std::size_t trie_bytes = number_at(map, 0);
  map.remove_prefix(kUnitBytes);
  if (trie_bytes >= map.size() || trie_bytes % kUnitBytes != 0 || map.back() != '\0') return false;
  const std::string_view trie = map.substr(0, trie_bytes);
  const std::size_t text_bytes = map.size() - trie_bytes;
  const std::size_t count = trie_bytes / kUnitBytes;

  std::vector<bool> seen(count, false);
  std::vector<std::uint32_t> places;
  const auto reach = [&](std::uint32_t place) {
    if (!seen[place]) places.push_back(place);
    seen[place] = true;
  };
  if (count > 0) reach(0);
  while (!places.empty()) {
    const std::uint32_t place = places.back();
    places.pop_back();
    const std::uint32_t unit = number_at(trie, place);
    const std::uint32_t block = place ^ offset_of(unit);
    if ((block | kLastByte) >= count) return false;  // the library looks at all of it
    if (has_value(unit) && (number_at(trie, block) & kValueMask) >= text_bytes) return false;
    for (std::uint32_t byte = 0; byte <= kLastByte; ++byte) {
      if ((number_at(trie, block ^ byte) & kLabelMask) == byte) reach(block ^ byte);
    }
  }
  return count > 0;
}

}  // namespace fut
