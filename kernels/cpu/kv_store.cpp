// The INT4 cache on the CPU: unpacking with vectors of four, packing word by word, and which row a
// position is read from.
#include "kernels/cpu/kv_store.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

#include "kernels/check.h"
#include "kernels/cpu/ragged.h"
#include "kernels/numeric/formats.h"
#include "kernels/numeric/kv_int4.h"

namespace fut::cpu {

void round_to_bf16(float* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = bf16_to_f32(f32_to_bf16(values[i]));
}

namespace {

using layout::Int4Coord;
using layout::Int4Tile;
using layout::KvPageInt4;
using layout::KvPart;

constexpr int kMaxHeadDim = 128;
constexpr int kWordBytes = 4;
constexpr int kTilesPerBlock = Int4Tile::kBlockCols / Int4Tile::kTileCols;

static_assert(std::endian::native == std::endian::little, "words of codes are little-endian");

typedef std::int32_t FourIntegers __attribute__((vector_size(16)));
typedef float FourFloats __attribute__((vector_size(16)));

std::int32_t load_word(const std::uint8_t* word) {
  std::int32_t bits = 0;
  std::memcpy(&bits, word, sizeof(bits));
  return bits;
}

// The words of one tile of lanes first_lane, first_lane + step, ...
FourIntegers four_words(const std::uint8_t* tile, int first_lane, int step) {
  const std::uint8_t* word = tile + first_lane * kTilesPerBlock * kWordBytes;
  const int bytes = step * kTilesPerBlock * kWordBytes;
  const FourIntegers words = {load_word(word), load_word(word + bytes), load_word(word + 2 * bytes),
                              load_word(word + 3 * bytes)};
  return words;
}

FourFloats nibbles(FourIntegers words, int nibble) {
  return __builtin_convertvector((words >> (4 * nibble)) & 0xF, FourFloats);
}

void store(float* out, FourFloats values) {
  std::memcpy(out, &values, sizeof(values));
}

// What the two functions below take for granted about a tile: the picture of layout/int4_tile.h.
constexpr bool fragment_is_as_unpacked() {
  for (int lane = 0; lane < 32; ++lane) {
    for (int nibble = 0; nibble < 8; ++nibble) {
      const Int4Coord place = layout::int4_fragment_coord({.lane = lane, .nibble = nibble});
      if (place.row != lane / 4 + 8 * (nibble % 2)) return false;
      if (place.col != 2 * (lane % 4) + 8 * (nibble / 2 % 2) + nibble / 4) return false;
    }
  }
  return true;
}
static_assert(fragment_is_as_unpacked());

// Rows of the tile are rows of `out`: four lanes of a row hold its even columns in one nibble and
// its odd ones four nibbles further on.
void unpack_key_tile(const std::uint8_t* tile, float* out, std::int64_t stride) {
  for (int g = 0; g < 8; ++g) {
    const FourIntegers words = four_words(tile, 4 * g, 1);
    for (int nibble = 0; nibble < 4; ++nibble) {
      const FourFloats even = nibbles(words, nibble);
      const FourFloats odd = nibbles(words, nibble + 4);
      float* row = out + (g + 8 * (nibble % 2)) * stride + 8 * (nibble / 2);
      store(row, __builtin_shufflevector(even, odd, 0, 4, 1, 5));
      store(row + 4, __builtin_shufflevector(even, odd, 2, 6, 3, 7));
    }
  }
}

// Columns of the tile are rows of `out`: lanes four apart hold neighbouring dims of one token.
void unpack_value_tile(const std::uint8_t* tile, float* out, std::int64_t stride) {
  for (int t = 0; t < 4; ++t) {
    for (int first_g = 0; first_g < 8; first_g += 4) {
      const FourIntegers words = four_words(tile, 4 * first_g + t, 4);
      for (int nibble = 0; nibble < 8; ++nibble) {
        const int token = 2 * t + 8 * (nibble / 2 % 2) + nibble / 4;
        store(out + token * stride + 8 * (nibble % 2) + first_g, nibbles(words, nibble));
      }
    }
  }
}

// Calls fn(byte offset of the tile's first word, first dim) for each tile of a block.
template <class Fn>
void for_each_tile(int head_dim, const Fn& fn) {
  for (int dim = 0; dim < head_dim; dim += Int4Tile::kTileCols) {
    const int tile = dim % Int4Tile::kBlockCols / Int4Tile::kTileCols;
    fn(dim / Int4Tile::kBlockCols * Int4Tile::kBlockBytes + kWordBytes * tile, dim);
  }
}

// codes: [16, head_dim]. `tile` is the first word of a tile whose first dim is `first_dim`.
void pack_tile(KvPart part, const std::uint8_t* codes, int head_dim, int first_dim,
               std::uint8_t* tile) {
  for (int lane = 0; lane < 32; ++lane) {
    std::uint32_t word = 0;
    for (int nibble = 0; nibble < 8; ++nibble) {
      const Int4Coord place = layout::int4_fragment_coord({.lane = lane, .nibble = nibble});
      const int token = part == KvPart::Key ? place.row : place.col;
      const int dim = first_dim + (part == KvPart::Key ? place.col : place.row);
      word |= std::uint32_t{codes[token * head_dim + dim]} << (4 * nibble);
    }
    std::memcpy(tile + lane * kTilesPerBlock * kWordBytes, &word, sizeof(word));
  }
}

// numbers[i] = BF16(minimum + scale * code), the codes being there already.
void widen_codes(float scale, float minimum, int count, float* numbers) {
  for (int i = 0; i < count; ++i) {
    const float scaled = scale * numbers[i];
    numbers[i] = minimum + scaled;
  }
  round_to_bf16(numbers, count);
}

}  // namespace

void pack_block(const KvPageInt4& page, KvPart part, int head, int first_token, const float* rows,
                std::uint8_t* page_data) {
  std::array<std::uint8_t, kKvBlockTokens * kMaxHeadDim> codes;
  const auto group_dims = static_cast<std::size_t>(page.kv_group);
  for (int token = 0; token < kKvBlockTokens; ++token) {
    for (int group = 0; group < page.num_groups(); ++group) {
      const int first = token * page.head_dim + group * page.kv_group;
      const std::span<const float> values(rows + first, group_dims);
      const KvInt4Params params = kv_int4_params(values);
      std::uint8_t* place = page_data + page.params_offset(part, head, first_token + token, group);
      std::memcpy(place, &params.scale, sizeof(params.scale));
      std::memcpy(place + sizeof(params.scale), &params.minimum, sizeof(params.minimum));
      for (int d = 0; d < page.kv_group; ++d) {
        codes[static_cast<std::size_t>(first + d)] =
            static_cast<std::uint8_t>(encode_kv_int4(rows[first + d], params));
      }
    }
  }
  std::uint8_t* block = page_data + page.block_offset(part, head, first_token / kKvBlockTokens);
  for_each_tile(page.head_dim, [&](int offset, int first_dim) {
    pack_tile(part, codes.data(), page.head_dim, first_dim, block + offset);
  });
}

void unpack_block(const KvPageInt4& page, KvPart part, int head, int first_token,
                  const std::uint8_t* page_data, float* out) {
  const std::uint8_t* block =
      page_data + page.block_offset(part, head, first_token / kKvBlockTokens);
  for_each_tile(page.head_dim, [&](int offset, int first_dim) {
    if (part == KvPart::Key) {
      unpack_key_tile(block + offset, out + first_dim, page.head_dim);
    } else {
      unpack_value_tile(block + offset, out + first_dim, page.head_dim);
    }
  });
}

KvHeadInt4::KvHeadInt4(const VectorLoops& loops, const KvPagesInt4& cache, const RaggedBatch& batch,
                       const StepRows& step, int sequence, int head)
    : loops_(loops),
      cache_(cache),
      batch_(batch),
      step_(step),
      sequence_(sequence),
      head_(head),
      raw_(cache.raw_slot(batch.raw_slots[sequence])),
      begin_(first_position(batch, sequence)),
      end_(batch.kv_lengths[sequence]),
      end_coded_(std::max(first_coded(), begin_ / kKvBlockTokens * kKvBlockTokens)) {}

const float* KvHeadInt4::step_row(KvPart part, std::int64_t position) const {
  const std::int64_t token = batch_.q_indptr[sequence_] + (position - begin_);
  const float* rows = part == KvPart::Key ? step_.keys : step_.values;
  return rows + (token * cache_.page.num_kv_heads + head_) * cache_.page.head_dim;
}

std::uint8_t* KvHeadInt4::page(std::int64_t position) const {
  return page_of_position(batch_, cache_, sequence_, position);
}

void KvHeadInt4::raw_rows(KvPart part, std::int64_t first, std::int64_t count, float* out) const {
  const int dims = cache_.page.head_dim;
  for (std::int64_t position = first; position < first + count; ++position, out += dims) {
    FUT_DCHECK(!is_coded(position), "position {} lies in codes", position);
    if (position < begin_) {
      loops_.widen(DType::BF16, raw_ + cache_.raw_rows.offset(part, head_, position), dims, out);
    } else {
      std::copy_n(step_row(part, position), dims, out);
    }
  }
}

void KvHeadInt4::codes(KvPart part, std::int64_t first, float* out) const {
  FUT_DCHECK(first % kKvBlockTokens == 0 && is_coded(first), "no codes at position {}", first);
  unpack_block(cache_.page, part, head_, static_cast<int>(first % layout::kPageTokens), page(first),
               out);
}

BlockParams KvHeadInt4::params(KvPart part, std::int64_t first) const {
  const int in_page = static_cast<int>(first % layout::kPageTokens);
  const int groups = cache_.page.num_groups();
  std::array<float, 2 * kMaxKvGroups * kKvBlockTokens> stored;
  loops_.widen(DType::F16, page(first) + cache_.page.params_offset(part, head_, in_page, 0),
               2LL * groups * kKvBlockTokens, stored.data());
  BlockParams params;
  const float* next = stored.data();
  for (std::size_t token = 0; token < kKvBlockTokens; ++token) {
    for (std::size_t group = 0; group < static_cast<std::size_t>(groups); ++group) {
      params.scales[group][token] = *next++;
      params.minima[group][token] = *next++;
    }
  }
  return params;
}

void KvHeadInt4::rows(KvPart part, std::int64_t first, std::int64_t count, float* out) const {
  const int dims = cache_.page.head_dim;
  const std::int64_t end = first + count;
  for (; first < end; first += kKvBlockTokens, out += kKvBlockTokens * dims) {
    if (!is_coded(first)) {
      raw_rows(part, first, std::min<std::int64_t>(kKvBlockTokens, end - first), out);
      continue;
    }
    codes(part, first, out);
    const BlockParams all = params(part, first);
    for (std::size_t token = 0; token < kKvBlockTokens; ++token) {
      for (int group = 0; group < cache_.page.num_groups(); ++group) {
        const auto g = static_cast<std::size_t>(group);
        widen_codes(all.scales[g][token], all.minima[g][token], cache_.page.kv_group,
                    out + static_cast<int>(token) * dims + group * cache_.page.kv_group);
      }
    }
  }
}

void KvHeadInt4::pack(KvPart part, std::int64_t first) const {
  std::array<float, kKvBlockTokens * kMaxHeadDim> numbers;
  raw_rows(part, first, kKvBlockTokens, numbers.data());
  pack_block(cache_.page, part, head_, static_cast<int>(first % layout::kPageTokens),
             numbers.data(), page(first));
}

void KvHeadInt4::store() const {
  const int dims = cache_.page.head_dim;
  const std::int64_t end_packed = end_ / kKvBlockTokens * kKvBlockTokens;
  for (const KvPart part : {KvPart::Key, KvPart::Value}) {
    // Blocks first: they take rows of the old tail, which the new tail will overwrite.
    for (std::int64_t first = end_coded_; first < end_packed; first += kKvBlockTokens) {
      pack(part, first);
    }
    for (std::int64_t position = begin_; position < end_; ++position) {
      if (position >= layout::kSinkTokens && position < end_packed) continue;
      const float* row = step_row(part, position);
      std::uint16_t* kept = raw_ + cache_.raw_rows.offset(part, head_, position);
      for (int d = 0; d < dims; ++d) kept[d] = f32_to_bf16(row[d]);
    }
  }
}

}  // namespace fut::cpu
