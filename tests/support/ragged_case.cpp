// Building the arrays of a ragged step.
#include "tests/support/ragged_case.h"

#include <algorithm>
#include <cstring>
#include <random>

namespace fut::test {
namespace {

// Little-endian elements of the type.
std::vector<std::byte> narrowed(const std::vector<float>& values, DType dtype) {
  const auto size = static_cast<std::size_t>(dtype_bytes(dtype));
  std::vector<std::byte> bytes(values.size() * size);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t bits = bits_of(dtype, values[i]);
    std::memcpy(bytes.data() + i * size, &bits, size);
  }
  return bytes;
}

std::vector<float> pages_with(const RaggedArrays& arrays, const layout::KvPageDense& page,
                              const std::vector<int>& num_cached) {
  std::vector<float> pages(static_cast<std::size_t>(arrays.num_pages * page.elements()), kPoison);
  for (int s = 0; s < static_cast<int>(num_cached.size()); ++s) {
    for (int position = 0; position < num_cached[static_cast<std::size_t>(s)]; ++position) {
      const std::int64_t first = arrays.page_offset(page, s, position);
      const int slot = position % layout::kPageTokens;
      for (int head = 0; head < page.num_kv_heads; ++head) {
        for (int d = 0; d < page.head_dim; ++d) {
          const std::int64_t k = first + page.k_offset(head, slot) + d;
          const std::int64_t v = first + page.v_offset(head, slot) + d;
          pages[static_cast<std::size_t>(k)] = cached_value(false, s, head, position, d);
          pages[static_cast<std::size_t>(v)] = cached_value(true, s, head, position, d);
        }
      }
    }
  }
  return pages;
}

}  // namespace

RaggedArrays::RaggedArrays(const std::vector<SequenceShape>& sequences) {
  q_indptr.push_back(0);
  kv_indptr.push_back(0);
  for (int s = 0; s < static_cast<int>(sequences.size()); ++s) {
    const SequenceShape& shape = sequences[static_cast<std::size_t>(s)];
    for (int i = 0; i < shape.new_tokens; ++i) {
      token_ids.push_back(i);
      positions.push_back(shape.kv_length - shape.new_tokens + i);
      sequence_of_token.push_back(s);
    }
    kv_lengths.push_back(shape.kv_length);
    const auto pages = static_cast<std::int32_t>(layout::pages_for_tokens(shape.kv_length));
    q_indptr.push_back(q_indptr.back() + shape.new_tokens);
    kv_indptr.push_back(kv_indptr.back() + pages);
  }
  // One page more than is used, all of them in disorder: no two neighbours by accident.
  num_pages = kv_indptr.back() + 1;
  for (std::int32_t i = 0; i < num_pages; ++i) page_table.push_back(i);
  std::shuffle(page_table.begin(), page_table.end(), std::mt19937(5));
  page_table.pop_back();
  num_raw_slots = static_cast<int>(sequences.size()) + 1;
  for (std::int32_t i = 0; i < num_raw_slots; ++i) raw_slots.push_back(i);
  std::shuffle(raw_slots.begin(), raw_slots.end(), std::mt19937(6));
  raw_slots.pop_back();
}

std::int64_t RaggedArrays::page_offset(const layout::KvPageDense& page, int sequence,
                                       int position) const {
  const std::int32_t first = kv_indptr[static_cast<std::size_t>(sequence)];
  const auto entry = static_cast<std::size_t>(first + position / layout::kPageTokens);
  return page_table[entry] * page.elements();
}

float cached_value(bool is_value, int sequence, int head, int position, int d) {
  std::uint32_t hash = is_value ? 0x9E3779B9U : 0x7F4A7C15U;
  for (const int part : {sequence, head, position, d}) {
    hash = (hash ^ static_cast<std::uint32_t>(part)) * 0x85EBCA6BU;
    hash ^= hash >> 15;
  }
  return (static_cast<float>(hash % 129U) - 64.0F) / 64.0F;
}

GuardedBatch::GuardedBatch(Backend& backend, const RaggedArrays& arrays)
    : token_ids_(backend, arrays.token_ids),
      positions_(backend, arrays.positions),
      q_indptr_(backend, arrays.q_indptr),
      kv_indptr_(backend, arrays.kv_indptr),
      page_table_(backend, arrays.page_table),
      kv_lengths_(backend, arrays.kv_lengths),
      raw_slots_(backend, arrays.raw_slots),
      num_sequences_(static_cast<int>(arrays.kv_lengths.size())),
      num_tokens_(static_cast<int>(arrays.positions.size())) {}

RaggedBatch GuardedBatch::view() const {
  return {.num_sequences = num_sequences_,
          .num_tokens = num_tokens_,
          .token_ids = token_ids_.data(),
          .positions = positions_.data(),
          .q_indptr = q_indptr_.data(),
          .kv_indptr = kv_indptr_.data(),
          .page_table = page_table_.data(),
          .kv_lengths = kv_lengths_.data(),
          .raw_slots = raw_slots_.data()};
}

RaggedCase::RaggedCase(Backend& backend, const std::vector<SequenceShape>& sequences,
                       layout::KvPageDense page, const std::vector<int>& num_cached, DType dtype)
    : arrays_(sequences),
      page_(page),
      dtype_(dtype),
      batch_(backend, arrays_),
      pages_(backend, narrowed(pages_with(arrays_, page, num_cached), dtype)) {}

std::vector<float> RaggedCase::pages() const {
  const std::vector<std::byte> bytes = pages_.values();
  const auto size = static_cast<std::size_t>(dtype_bytes(dtype_));
  std::vector<float> values;
  for (std::size_t i = 0; i < bytes.size(); i += size) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, bytes.data() + i, size);
    values.push_back(value_of(dtype_, bits));
  }
  return values;
}

}  // namespace fut::test
