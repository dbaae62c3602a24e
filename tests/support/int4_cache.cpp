// An INT4 cache on a backend and on the host.
#include "tests/support/int4_cache.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#include "kernels/numeric/formats.h"
#include "kernels/numeric/kv_int4.h"

namespace fut::test {
namespace {

using layout::KvPart;

constexpr std::uint8_t kPoisonByte = 0xFF;     // codes of 15; two of them are a NaN in FP16
constexpr std::uint16_t kPoisonRow = 0xFFFFU;  // a NaN in BF16

KvPart part_of(Operand operand) {
  return operand == Operand::Key ? KvPart::Key : KvPart::Value;
}

// At full length, as RaggedArrays lays pages out.
RaggedArrays whole_arrays(const std::vector<int>& capacities) {
  std::vector<SequenceShape> sequences;
  for (const int capacity : capacities) sequences.push_back({1, capacity});
  return RaggedArrays(sequences);
}

layout::KvPageInt4 page_of(const AttentionShape& s) {
  return {s.num_kv_heads, s.head_dim, s.kv_group};
}

std::int64_t page_bytes(const AttentionShape& s, const RaggedArrays& whole) {
  return whole.num_pages * page_of(s).bytes();
}
std::int64_t raw_elements(const AttentionShape& s, const RaggedArrays& whole) {
  return whole.num_raw_slots * layout::KvRawStore{s.num_kv_heads, s.head_dim}.elements();
}

std::uint32_t hash(std::initializer_list<int> parts) {
  std::uint32_t h = 0x2545F491U;
  for (const int part : parts) {
    h = (h ^ static_cast<std::uint32_t>(part)) * 0x85EBCA6BU;
    h ^= h >> 13;
    h *= 0xC2B2AE35U;
    h ^= h >> 16;
  }
  return h;
}

}  // namespace

Numbers random_numbers(float query_deviation) {
  return [query_deviation](Operand operand, int sequence, int position, int head, int dim) {
    // Box and Muller.
    const int kind = static_cast<int>(operand);
    const double u = (hash({kind, sequence, position, head, dim, 1}) + 1.0) * 0x1p-32;
    const double v = hash({kind, sequence, position, head, dim, 2}) * 0x1p-32;
    const double normal = std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
    if (operand == Operand::Query) return static_cast<float>(normal * query_deviation);
    const bool large = operand == Operand::Key && dim % 29 == 3;
    return static_cast<float>(large ? 4 * normal + 3 : normal);
  };
}

RaggedArrays arrays_of_step(const RaggedArrays& whole, const std::vector<Pass>& passes) {
  std::vector<SequenceShape> shapes;
  for (const Pass& pass : passes) shapes.push_back({pass.tokens, pass.begin + pass.tokens});
  RaggedArrays arrays(shapes);
  arrays.num_pages = whole.num_pages;
  arrays.num_raw_slots = whole.num_raw_slots;
  arrays.kv_indptr = {0};
  arrays.page_table.clear();
  arrays.raw_slots.clear();
  for (const Pass& pass : passes) {
    const auto s = static_cast<std::size_t>(pass.sequence);
    arrays.page_table.insert(arrays.page_table.end(), whole.page_table.begin() + whole.kv_indptr[s],
                             whole.page_table.begin() + whole.kv_indptr[s + 1]);
    arrays.kv_indptr.push_back(static_cast<std::int32_t>(arrays.page_table.size()));
    arrays.raw_slots.push_back(whole.raw_slots[s]);
  }
  return arrays;
}

std::vector<float> operand_rows(const AttentionShape& shape, const std::vector<Pass>& passes,
                                Operand operand, const Numbers& numbers) {
  const int heads = operand == Operand::Query ? shape.num_q_heads : shape.num_kv_heads;
  std::vector<float> rows;
  for (const Pass& pass : passes) {
    for (int t = 0; t < pass.tokens; ++t) {
      for (int i = 0; i < heads * shape.head_dim; ++i) {
        rows.push_back(numbers(operand, pass.sequence, pass.begin + t, i / shape.head_dim,
                               i % shape.head_dim));
      }
    }
  }
  return rows;
}

std::vector<std::uint16_t> live_rows(const Int4CacheBytes& bytes, const AttentionShape& shape,
                                     const RaggedArrays& whole, const std::vector<int>& lengths) {
  const layout::KvRawStore store{shape.num_kv_heads, shape.head_dim};
  std::vector<std::uint16_t> live(bytes.raw.size(), 0);
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    for (int position = 0; position < lengths[s]; ++position) {
      if (!layout::is_raw(position, lengths[s])) continue;
      for (const KvPart part : {KvPart::Key, KvPart::Value}) {
        for (int head = 0; head < shape.num_kv_heads; ++head) {
          const auto first = static_cast<std::size_t>(whole.raw_slots[s] * store.elements() +
                                                      store.offset(part, head, position));
          for (std::size_t d = 0; d < static_cast<std::size_t>(shape.head_dim); ++d) {
            live[first + d] = bytes.raw[first + d];
          }
        }
      }
    }
  }
  return live;
}

// ---- on a backend ------------------------------------------------------------------------------

Int4Cache::Int4Cache(Backend& backend, AttentionShape shape, const std::vector<int>& capacities)
    : backend_(backend),
      shape_(shape),
      whole_(whole_arrays(capacities)),
      pages_(backend, std::vector<std::uint8_t>(static_cast<std::size_t>(page_bytes(shape, whole_)),
                                                kPoisonByte)),
      raw_(backend, std::vector<std::uint16_t>(
                        static_cast<std::size_t>(raw_elements(shape, whole_)), kPoisonRow)) {}

std::vector<float> Int4Cache::run(const AttentionStep& step, const Numbers& numbers) {
  return run(step, numbers, [](AttentionArgs&) {});
}

std::vector<float> Int4Cache::run(const AttentionStep& step, const Numbers& numbers,
                                  const std::function<void(AttentionArgs&)>& change) {
  const RaggedArrays arrays = arrays_of_step(whole_, step.passes);
  const GuardedBatch batch(backend_, arrays);
  const auto tokens = static_cast<std::int64_t>(arrays.positions.size());
  const auto operand = [&](Operand which, std::int64_t cols) {
    return GuardedActivation(backend_, step.in, {tokens, cols},
                             operand_rows(shape_, step.passes, which, numbers));
  };
  const GuardedActivation q = operand(Operand::Query, shape_.q_cols());
  const GuardedActivation k = operand(Operand::Key, shape_.kv_cols());
  const GuardedActivation v = operand(Operand::Value, shape_.kv_cols());
  const GuardedActivation out(backend_, step.out, {tokens, shape_.q_cols()});
  const Guarded<float> out_scales(backend_, step.out_scales);
  KvPagesInt4 kv;
  kv.data = pages_.data();
  kv.num_pages = whole_.num_pages;
  kv.page = page_of(shape_);
  kv.raw = raw_.data();
  kv.num_raw_slots = whole_.num_raw_slots;
  kv.raw_rows = {shape_.num_kv_heads, shape_.head_dim};
  AttentionArgs args;
  args.q = q.const_view();
  args.k = k.const_view();
  args.v = v.const_view();
  args.num_q_heads = shape_.num_q_heads;
  args.num_kv_heads = shape_.num_kv_heads;
  args.head_dim = shape_.head_dim;
  args.rotation_block = step.in == DType::F32 ? shape_.rotation_block : 0;
  args.batch = batch.view();
  args.kv = kv;
  args.out_scales = step.out_scales.empty() ? nullptr : out_scales.data();
  args.out = out.view();
  change(args);
  if (op_) {
    op_(args);
  } else {
    backend_.attention(args);
  }
  return out.values();
}

void Int4Cache::overwrite(const Int4CacheBytes& bytes) {
  backend_.upload(pages_.data(), std::as_bytes(std::span(bytes.pages)));
  backend_.upload(raw_.data(), std::as_bytes(std::span(bytes.raw)));
}

// ---- on the host -------------------------------------------------------------------------------

Int4CacheReference::Int4CacheReference(AttentionShape shape, const std::vector<int>& capacities,
                                       Fault fault)
    : shape_(shape),
      fault_(fault),
      whole_(whole_arrays(capacities)),
      page_(page_of(shape)),
      raw_rows_{shape.num_kv_heads, shape.head_dim} {
  bytes_.pages.assign(static_cast<std::size_t>(page_bytes(shape, whole_)), kPoisonByte);
  bytes_.raw.assign(static_cast<std::size_t>(raw_elements(shape, whole_)), kPoisonRow);
}

std::size_t Int4CacheReference::page_at(int sequence, int position) const {
  const std::int32_t first = whole_.kv_indptr[static_cast<std::size_t>(sequence)];
  const auto entry = static_cast<std::size_t>(first + position / layout::kPageTokens);
  return static_cast<std::size_t>(whole_.page_table[entry] * page_.bytes());
}

std::size_t Int4CacheReference::raw_at(Operand operand, int sequence, int head,
                                       int position) const {
  const std::int64_t slot = whole_.raw_slots[static_cast<std::size_t>(sequence)];
  return static_cast<std::size_t>(slot * raw_rows_.elements() +
                                  raw_rows_.offset(part_of(operand), head, position));
}

// A row of q, k or v as the op has it in the end: BF16.
std::vector<float> Int4CacheReference::step_row(const AttentionStep& step, const Numbers& numbers,
                                                Operand operand, int sequence, int position,
                                                int head) const {
  std::vector<float> row;
  for (int d = 0; d < shape_.head_dim; ++d) {
    row.push_back(numbers(operand, sequence, position, head, d));
  }
  const bool rotate = step.in == DType::F32 && operand != Operand::Value &&
                      !(operand == Operand::Key && fault_ == Fault::KeysNotRotated);
  return rotated_and_rounded(row, rotate ? shape_.rotation_block : 0);
}

CachedRow Int4CacheReference::row(const AttentionStep& step, const Numbers& numbers,
                                  const Pass& pass, Operand operand, int head, int position) const {
  CachedRow row;
  if (position >= pass.begin) {
    row.numbers = step_row(step, numbers, operand, pass.sequence, position, head);
    return row;
  }
  if (layout::is_raw(position, pass.begin)) {
    const std::size_t first = raw_at(operand, pass.sequence, head, position);
    for (int d = 0; d < shape_.head_dim; ++d) {
      row.numbers.push_back(bf16_to_f32(bytes_.raw[first + static_cast<std::size_t>(d)]));
    }
    return row;
  }
  const std::uint8_t* page = bytes_.pages.data() + page_at(pass.sequence, position);
  const int token = position % layout::kPageTokens;
  for (int d = 0; d < shape_.head_dim; ++d) {
    layout::Int4Slot slot = page_.slot(part_of(operand), head, token, d);
    if (fault_ == Fault::OtherNibble) slot.nibble ^= 1;
    row.codes.push_back(static_cast<float>(layout::read_nibble(page, slot)));
  }
  for (int group = 0; group < page_.num_groups(); ++group) {
    std::uint16_t params[2];
    std::memcpy(params, page + page_.params_offset(part_of(operand), head, token, group), 4);
    row.scales.push_back(f16_to_f32(params[0]));
    row.minima.push_back(fault_ == Fault::NoMinimum ? 0.0F : f16_to_f32(params[1]));
  }
  return row;
}

// Of all positions that the pass's last query sees.
std::vector<CachedRow> Int4CacheReference::rows(const AttentionStep& step, const Numbers& numbers,
                                                const Pass& pass, Operand operand, int head) const {
  std::vector<CachedRow> rows;
  for (int position = 0; position < pass.begin + pass.tokens; ++position) {
    rows.push_back(row(step, numbers, pass, operand, head, position));
  }
  return rows;
}

// Calls fn(case, factor of the output, index of its first output) for each query head of each token.
template <class Fn>
void Int4CacheReference::for_each_head(const AttentionStep& step, const Numbers& numbers,
                                       bool (*wanted)(const Pass& pass, int token),
                                       const Fn& fn) const {
  const int heads_per_kv_head = shape_.num_q_heads / shape_.num_kv_heads;
  AttentionCase c;
  c.kind = step.in == DType::F32 ? AttentionNumbers::Factored : AttentionNumbers::Rounded;
  std::int64_t first_token = 0;
  for (const Pass& pass : step.passes) {
    for (int head = 0; head < shape_.num_kv_heads; ++head) {
      const std::vector<CachedRow> keys = rows(step, numbers, pass, Operand::Key, head);
      const std::vector<CachedRow> values = rows(step, numbers, pass, Operand::Value, head);
      const float scale =
          step.out_scales.empty() ? 1.0F : step.out_scales[static_cast<std::size_t>(head)];
      for (int i = 0; i < pass.tokens * heads_per_kv_head; ++i) {
        const int token = i / heads_per_kv_head;
        if (wanted != nullptr && !wanted(pass, token)) continue;
        const int q_head = head * heads_per_kv_head + i % heads_per_kv_head;
        const std::vector<float> query =
            step_row(step, numbers, Operand::Query, pass.sequence, pass.begin + token, q_head);
        const auto visible = static_cast<std::size_t>(pass.begin + token + 1);
        c.query = query;
        c.keys = std::span(keys).first(visible);
        c.values = std::span(values).first(visible);
        fn(c, scale, (first_token + token) * shape_.q_cols() + q_head * shape_.head_dim);
      }
    }
    first_token += pass.tokens;
  }
}

namespace {

std::int64_t num_outputs(const AttentionStep& step, const AttentionShape& shape) {
  std::int64_t tokens = 0;
  for (const Pass& pass : step.passes) tokens += pass.tokens;
  return tokens * shape.q_cols();
}

}  // namespace

std::vector<float> Int4CacheReference::run(const AttentionStep& step, const Numbers& numbers) {
  std::vector<float> out(static_cast<std::size_t>(num_outputs(step, shape_)));
  for_each_head(step, numbers, nullptr,
                [&](const AttentionCase& c, float scale, std::int64_t first) {
                  for (const float v : contract_attention(c)) {
                    out[static_cast<std::size_t>(first++)] = rounded_to(step.out, v * scale);
                  }
                });
  store(step, numbers);
  return out;
}

std::vector<Bounded> Int4CacheReference::run_bounded(const AttentionStep& step,
                                                     const Numbers& numbers, SumOrder order,
                                                     bool (*wanted)(const Pass& pass, int token)) {
  std::vector<Bounded> out(static_cast<std::size_t>(num_outputs(step, shape_)),
                           Bounded(0, std::numeric_limits<float>::max()));
  for_each_head(step, numbers, wanted, [&](AttentionCase c, float, std::int64_t first) {
    c.order = order;
    for (const Bounded& v : bounded_attention(c, step.out)) {
      out[static_cast<std::size_t>(first++)] = v;
    }
  });
  store(step, numbers);
  return out;
}

void Int4CacheReference::store(const AttentionStep& step, const Numbers& numbers) {
  for (const Pass& pass : step.passes) store_pass(step, numbers, pass);
}

void Int4CacheReference::pack(const std::vector<std::vector<float>>& rows, Operand operand,
                              int sequence, int head, int first) {
  std::uint8_t* page = bytes_.pages.data() + page_at(sequence, first);
  for (int i = 0; i < layout::KvPageInt4::kBlockTokens; ++i) {
    const int token = (first + i) % layout::kPageTokens;
    const std::vector<float>& row = rows[static_cast<std::size_t>(i)];
    for (int group = 0; group < page_.num_groups(); ++group) {
      const auto group_dims = static_cast<std::size_t>(page_.kv_group);
      const auto values =
          std::span(row).subspan(static_cast<std::size_t>(group) * group_dims, group_dims);
      const KvInt4Params params = kv_int4_params(values);
      const std::uint16_t stored[2] = {params.scale, params.minimum};
      std::memcpy(page + page_.params_offset(part_of(operand), head, token, group), stored, 4);
      for (int d = 0; d < page_.kv_group; ++d) {
        layout::write_nibble(page,
                             page_.slot(part_of(operand), head, token, group * page_.kv_group + d),
                             encode_kv_int4(values[static_cast<std::size_t>(d)], params));
      }
    }
  }
}

void Int4CacheReference::store_pass(const AttentionStep& step, const Numbers& numbers,
                                    const Pass& pass) {
  const int end = pass.begin + pass.tokens;
  const int first_tail = end / 16 * 16;
  for (const Operand operand : {Operand::Key, Operand::Value}) {
    for (int head = 0; head < shape_.num_kv_heads; ++head) {
      for (int first = 16; first < first_tail; first += 16) {
        if (first + 16 <= pass.begin) continue;  // was complete already
        std::vector<std::vector<float>> rows;
        for (int i = 0; i < 16; ++i) {
          rows.push_back(row(step, numbers, pass, operand, head, first + i).numbers);
        }
        pack(rows, operand, pass.sequence, head, first);
      }
      for (int position = pass.begin; position < end; ++position) {
        if (position >= layout::kSinkTokens && position < first_tail) continue;
        const std::vector<float> row =
            step_row(step, numbers, operand, pass.sequence, position, head);
        const std::size_t first = raw_at(operand, pass.sequence, head, position);
        for (std::size_t d = 0; d < row.size(); ++d) bytes_.raw[first + d] = f32_to_bf16(row[d]);
      }
    }
  }
}

}  // namespace fut::test
