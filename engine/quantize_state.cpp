// Parts one after the other, each with its length in front.
#include "engine/quantize_state.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "kernels/check.h"

namespace fut {
namespace {

void put(std::vector<std::byte>& bytes, std::span<const std::byte> part) {
  const std::uint64_t size = part.size();
  const auto length = std::as_bytes(std::span(&size, 1));
  bytes.insert(bytes.end(), length.begin(), length.end());
  bytes.insert(bytes.end(), part.begin(), part.end());
}

std::span<const std::byte> take(std::span<const std::byte>& rest) {
  std::uint64_t size = 0;
  FUT_CHECK(rest.size() >= sizeof(size), "{} bytes of a saved state", rest.size());
  std::memcpy(&size, rest.data(), sizeof(size));
  rest = rest.subspan(sizeof(size));
  FUT_CHECK(rest.size() >= size, "{} bytes of a saved part of {}", rest.size(), size);
  const auto part = rest.first(static_cast<std::size_t>(size));
  rest = rest.subspan(part.size());
  return part;
}

}  // namespace

std::vector<std::byte> save_state(const ReportCard& card, std::span<HiddenStates* const> hidden) {
  std::vector<std::byte> bytes;
  const std::string text = report_card_json(card);
  put(bytes, std::as_bytes(std::span(text)));
  for (const HiddenStates* states : hidden) put(bytes, states->save());
  return bytes;
}

void restore_state(std::span<const std::byte> bytes, ReportCard& card,
                   std::span<HiddenStates* const> hidden) {
  const std::span<const std::byte> text = take(bytes);
  card = parse_report_card({reinterpret_cast<const char*>(text.data()), text.size()});
  for (HiddenStates* states : hidden) states->restore(take(bytes));
  FUT_CHECK(bytes.empty(), "{} bytes after a saved state", bytes.size());
}

}  // namespace fut
