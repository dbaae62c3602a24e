// Attention of prompts on the GPU, its own source, on the CPU (tests/emulator): pages in disorder with NaN
// behind the last token, keys of the step where the projections left them, every ratio of heads and type of
// result; exact bits where sums are exact, derived bounds where they are not, nothing written beside, and
// no order of turns or arrivals changes a bit.
#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <numeric>
#include <random>

#include "kernels/cuda/prompt_attention.cuh"
#include "tests/support/attention_reference.h"
#include "tests/support/backends.h"
#include "tests/support/ragged_case.h"

namespace fut::test {
namespace {

using cuda::kPromptAttentionThreads;
using cuda::kTileKeys;

struct Heads {
  int kv_heads, shared, head_dim;  // query heads that share a KV head
};

struct Setting {
  bool direct = false;  // the step's keys from k and v; pages in the order of their table
  bool aligned = true;  // results
  DType out = DType::BF16;
  int blocks = 2;
  std::uint32_t seed = 0;
};

constexpr std::uint16_t kNan = 0xFFFF;
constexpr std::uint8_t kUntouched = 0xA5;
constexpr float kOutScale = 64;

// One step: operands as numbers, and as the kernel finds them.
class EmulatedCase {
 public:
  // is_exact: scores are 0, or so low that a probability is 0, or so high that all others are; values are
  // small integers.
  EmulatedCase(std::vector<SequenceShape> sequences, const Heads& heads, bool is_exact)
      : sequences_(std::move(sequences)),
        heads_(heads),
        arrays_(sequences_),
        page_{heads.kv_heads, heads.head_dim},
        q_stride_(std::int64_t{heads.kv_heads} * heads.shared * heads.head_dim + 8),
        kv_stride_(std::int64_t{heads.kv_heads} * heads.head_dim + 8),
        q_(arrays_.positions.size() * static_cast<std::size_t>(q_stride_), kNan) {
    fill_queries(is_exact);
    for (std::size_t s = 0; s < sequences_.size(); ++s) fill_keys(s, is_exact);
  }

  // Bytes of out, rows with gaps.
  std::vector<std::uint8_t> run(const Setting& setting);

  // What is to come out of each head of each token, in order: fn(case, token, query head).
  template <class Fn>
  void for_each_head(const Fn& fn) const {
    AttentionCase c;
    c.kind = AttentionNumbers::Rounded;
    c.order = SumOrder::Tiles;
    for (std::size_t token = 0; token < arrays_.positions.size(); ++token) {
      const auto s = static_cast<std::size_t>(arrays_.sequence_of_token[token]);
      const auto visible = static_cast<std::size_t>(arrays_.positions[token]) + 1;
      for (int head = 0; head < heads_.kv_heads * heads_.shared; ++head) {
        std::vector<float> query;
        for (int d = 0; d < heads_.head_dim; ++d) {
          query.push_back(bf16_to_f32(q_[query_at(token, head) + static_cast<std::size_t>(d)]));
        }
        const auto kv = s * static_cast<std::size_t>(heads_.kv_heads) +
                        static_cast<std::size_t>(head / heads_.shared);
        c.query = query;
        c.keys = std::span(keys_[kv]).first(visible);
        c.values = std::span(values_[kv]).first(visible);
        fn(c, token, head);
      }
    }
  }

  [[nodiscard]] std::int64_t out_stride(bool aligned) const {
    return q_stride_ + (aligned ? 8 : 3);
  }
  [[nodiscard]] int head_dim() const { return heads_.head_dim; }

 private:
  [[nodiscard]] std::size_t query_at(std::size_t token, int head) const {
    return token * static_cast<std::size_t>(q_stride_) +
           static_cast<std::size_t>(head * heads_.head_dim);
  }

  // Kinds of keys are dims: of a key one dim is far from 0. The first key's kind is looked at by all, that
  // of every 70th outshines others for even heads.
  void fill_queries(bool is_exact) {
    for (std::size_t token = 0; token < arrays_.positions.size(); ++token) {
      for (int head = 0; head < heads_.kv_heads * heads_.shared; ++head) {
        for (int d = 0; d < heads_.head_dim; ++d) {
          float v = 1.5F * query_normal_(query_random_);
          if (is_exact) {
            const bool is_blind = query_random_() % 2 == 0;
            v = d == 0 || d >= kKinds ? 0.0F
                : d == 1              ? (head % 2 == 0 ? kFar : -kFar)
                                      : (is_blind ? -kFar : 0.0F);
          }
          q_[query_at(token, head) + static_cast<std::size_t>(d)] = f32_to_bf16(v);
        }
      }
    }
  }

  void fill_keys(std::size_t s, bool is_exact) {
    for (int head = 0; head < heads_.kv_heads; ++head) {
      auto& keys = keys_.emplace_back();
      auto& values = values_.emplace_back();
      for (int position = 0; position < sequences_[s].kv_length; ++position) {
        const int other = 2 + static_cast<int>(key_random_() % (kKinds - 2));
        const int kind = position == 0 ? 0 : position % 70 == 69 ? 1 : other;
        CachedRow key, value;
        for (int d = 0; d < heads_.head_dim; ++d) {
          const float k = is_exact ? (d == kind ? kFar : 0.0F) : key_normal_(key_random_);
          const float v =
              is_exact ? static_cast<float>(key_random_() % 16) : key_normal_(key_random_);
          key.numbers.push_back(rounded_to(DType::BF16, k));
          value.numbers.push_back(rounded_to(DType::BF16, v));
        }
        keys.push_back(std::move(key));
        values.push_back(std::move(value));
      }
    }
  }

  // Where the kernel finds keys and values; what it has no business with is NaN.
  void lay_out(bool direct);
  void lay_out_row(std::size_t s, int head, int position, bool direct);
  [[nodiscard]] cuda::PromptAttentionMaps maps(int tokens_per_tile) const;

  static constexpr int kKinds = 64;
  static constexpr float kFar = 64;
  std::vector<SequenceShape> sequences_;
  Heads heads_;
  RaggedArrays arrays_;
  layout::KvPageDense page_;
  std::int64_t q_stride_, kv_stride_;
  std::vector<std::uint16_t> q_, k_, v_, pages_;
  std::vector<std::vector<CachedRow>> keys_, values_;  // [sequence][KV head]
  // Of queries and of keys: a sequence has the same ones whatever comes behind it.
  std::mt19937 query_random_{5}, key_random_{6};
  std::normal_distribution<float> query_normal_, key_normal_;
};

void EmulatedCase::lay_out(bool direct) {
  const std::size_t rows = arrays_.positions.size() * static_cast<std::size_t>(kv_stride_);
  k_.assign(rows, kNan);
  v_.assign(rows, kNan);
  pages_.assign(static_cast<std::size_t>(arrays_.num_pages * page_.elements()), kNan);
  for (std::size_t s = 0; s < sequences_.size(); ++s) {
    for (int head = 0; head < heads_.kv_heads; ++head) {
      for (int i = 0; i < sequences_[s].kv_length; ++i) lay_out_row(s, head, i, direct);
    }
  }
}

void EmulatedCase::lay_out_row(std::size_t s, int head, int position, bool direct) {
  const int begin = sequences_[s].kv_length - sequences_[s].new_tokens;
  const std::size_t kv =
      s * static_cast<std::size_t>(heads_.kv_heads) + static_cast<std::size_t>(head);
  const auto put = [&](std::uint16_t* to, const CachedRow& row) {
    for (const float v : row.numbers) *to++ = f32_to_bf16(v);
  };
  const CachedRow& key = keys_[kv][static_cast<std::size_t>(position)];
  const CachedRow& value = values_[kv][static_cast<std::size_t>(position)];
  if (!direct || position < (begin + kTileKeys - 1) / kTileKeys * kTileKeys) {
    const int entry = arrays_.kv_indptr[s] + position / layout::kPageTokens;
    const int index = direct ? entry : arrays_.page_table[static_cast<std::size_t>(entry)];
    std::uint16_t* page = pages_.data() + index * page_.elements();
    put(page + page_.k_offset(head, position % layout::kPageTokens), key);
    put(page + page_.v_offset(head, position % layout::kPageTokens), value);
  }
  if (position >= begin) {
    const std::int64_t first = (arrays_.q_indptr[s] + position - begin) * kv_stride_ +
                               std::int64_t{head} * heads_.head_dim;
    put(k_.data() + first, key);
    put(v_.data() + first, value);
  }
}

cuda::PromptAttentionMaps EmulatedCase::maps(int tokens_per_tile) const {
  const auto tokens = static_cast<std::int64_t>(arrays_.positions.size());
  const auto dim = static_cast<std::int64_t>(heads_.head_dim);
  constexpr int kRows = layout::kPageTokens;
  const std::int64_t kv_bytes = kv_stride_ * 2;
  cuda::PromptAttentionMaps maps;
  maps.q = {.data = q_.data(),
            .sizes = {dim, heads_.kv_heads * heads_.shared, tokens},
            .strides = {dim * 2, q_stride_ * 2},
            .box = {64, heads_.shared, tokens_per_tile}};
  maps.pages = {.data = pages_.data(),
                .sizes = {dim, arrays_.num_pages * page_.elements() / dim, 1},
                .strides = {dim * 2, 0},
                .box = {64, kRows, 1}};
  maps.k = {.data = k_.data(),
            .sizes = {heads_.kv_heads * dim, tokens, 1},
            .strides = {kv_bytes, 0},
            .box = {64, kRows, 1}};
  maps.v = maps.k;
  maps.v.data = v_.data();
  return maps;
}

template <int kHeadDim>
std::string emulate(const cuda::PromptAttentionMaps& maps, const cuda::PromptAttentionArgs& args,
                    const Setting& setting) {
  emulator::Launch launch;
  launch.num_blocks = setting.blocks;
  launch.threads = kPromptAttentionThreads;
  launch.shared_bytes = cuda::PromptAttentionShared<kHeadDim>::kDynamicBytes;
  launch.seed = setting.seed;
  return emulator::run(launch, [&](std::uint8_t* shared) {
    const cuda::PromptAttentionRings<kHeadDim> rings(shared);
    if (cuda::threadIdx.x == 0) rings.init_barriers();
    cuda::__syncthreads();
    cuda::ptx::take_turn();
    const int warp = static_cast<int>(cuda::threadIdx.x) / 32;
    const int lane = cuda::ptx::lane();
    if (warp == 0) cuda::PromptAttentionCopies<kHeadDim>(maps, args, rings, lane).produce();
    if (warp >= 4) cuda::PromptAttention<kHeadDim>(args, rings, lane).consume(warp / 4 - 1);
  });
}

std::vector<std::uint8_t> EmulatedCase::run(const Setting& setting) {
  lay_out(setting.direct);
  const auto tokens = static_cast<std::int64_t>(arrays_.positions.size());
  const std::int64_t cols = std::int64_t{heads_.kv_heads} * heads_.shared * heads_.head_dim;
  const std::vector<float> scales(static_cast<std::size_t>(heads_.kv_heads), kOutScale);
  std::vector<std::uint8_t> out(
      static_cast<std::size_t>(tokens * out_stride(setting.aligned) * dtype_bytes(setting.out)),
      kUntouched);
  AttentionArgs a;
  a.num_kv_heads = heads_.kv_heads;
  a.num_q_heads = heads_.kv_heads * heads_.shared;
  a.head_dim = heads_.head_dim;
  a.batch.num_sequences = static_cast<int>(sequences_.size());
  a.batch.num_tokens = static_cast<int>(tokens);
  a.batch.q_indptr = arrays_.q_indptr.data();
  a.batch.kv_indptr = arrays_.kv_indptr.data();
  a.batch.page_table = arrays_.page_table.data();
  a.batch.kv_lengths = arrays_.kv_lengths.data();
  a.out = ActivationView(out.data(), setting.out, tokens, cols, out_stride(setting.aligned));
  if (setting.out == DType::E4M3) a.out_scales = scales.data();
  cuda::PromptAttentionArgs args = cuda::prompt_attention_args(a);
  EXPECT_EQ(args.out_in_sixteens, setting.aligned);
  args.listed = !setting.direct;
  args.direct = setting.direct;
  unsigned next_tile = 0;
  unsigned long long saturated = 0;
  args.next_tile = &next_tile;
  args.saturated = &saturated;
  EXPECT_EQ(heads_.head_dim == 64 ? emulate<64>(maps(args.tokens_per_tile), args, setting)
                                  : emulate<128>(maps(args.tokens_per_tile), args, setting),
            "");
  EXPECT_EQ(next_tile, 0U);
  return out;
}

// One number of out, its bytes marked as not written.
float take(std::vector<std::uint8_t>& out, std::int64_t i, DType dtype) {
  const auto bytes = static_cast<std::size_t>(dtype_bytes(dtype));
  std::uint32_t bits = 0;
  std::memcpy(&bits, out.data() + static_cast<std::size_t>(i) * bytes, bytes);
  std::memset(out.data() + static_cast<std::size_t>(i) * bytes, kUntouched, bytes);
  return value_of(dtype, bits);
}

void expect_untouched(const std::vector<std::uint8_t>& rest) {
  EXPECT_TRUE(std::all_of(rest.begin(), rest.end(), [](auto byte) { return byte == kUntouched; }))
      << "wrote beside its rows";
}

void expect_exact(EmulatedCase& c, const Setting& setting) {
  std::vector<std::uint8_t> out = c.run(setting);
  const float scale = setting.out == DType::E4M3 ? kOutScale : 1.0F;
  std::vector<float> expected, actual;
  c.for_each_head([&](const AttentionCase& head, std::size_t token, int q_head) {
    std::int64_t i = static_cast<std::int64_t>(token) * c.out_stride(setting.aligned) +
                     std::int64_t{q_head} * c.head_dim();
    for (const float v : contract_attention(head)) {
      expected.push_back(rounded_to(setting.out, v * scale));
      actual.push_back(take(out, i++, setting.out));
    }
  });
  const auto rows = static_cast<std::int64_t>(expected.size()) / c.head_dim();
  EXPECT_TRUE(same_bits(expected, actual, {rows, c.head_dim()})) << "seed " << setting.seed;
  expect_untouched(out);
}

void expect_bounded(EmulatedCase& c, const Setting& setting) {
  std::vector<std::uint8_t> out = c.run(setting);
  std::vector<Bounded> expected;
  std::vector<float> actual;
  c.for_each_head([&](const AttentionCase& head, std::size_t token, int q_head) {
    std::int64_t i = static_cast<std::int64_t>(token) * c.out_stride(setting.aligned) +
                     std::int64_t{q_head} * c.head_dim();
    for (const Bounded& v : bounded_attention(head, setting.out)) {
      expected.push_back(v);
      actual.push_back(take(out, i++, setting.out));
    }
  });
  const auto rows = static_cast<std::int64_t>(expected.size()) / c.head_dim();
  EXPECT_TRUE(within_bounds(expected, actual, {rows, c.head_dim()})) << "seed " << setting.seed;
  expect_untouched(out);
}

// Tiles at both halves of a key tile, a sequence that ends with one, a history of several.
const std::vector<SequenceShape> kPack = {{40, 340}, {70, 134}, {2, 128}, {1, 16}, {65, 65}};

TEST(PromptAttentionEmulated, PicksKeysExactlyInEveryOrderOfTurns) {
  EmulatedCase c(kPack, {1, 2, 64}, true);
  for (std::uint32_t seed = 0; seed < 8; ++seed) {
    expect_exact(c, {.direct = seed / 4 != 0, .seed = seed});
  }
}

TEST(PromptAttentionEmulated, TakesEveryRatioOfHeadsAndTypeOfResult) {
  std::uint32_t seed = 0;
  for (const Heads& heads : {Heads{2, 1, 64}, {1, 3, 128}, {1, 4, 64}, {1, 8, 128}}) {
    EmulatedCase c({{9, 100}, {33, 140}}, heads, true);
    for (const DType out : {DType::BF16, DType::F16, DType::E4M3}) {
      for (const bool aligned : {true, false}) {
        expect_exact(c, {.direct = seed % 2 != 0, .aligned = aligned, .out = out, .seed = seed});
        ++seed;
      }
    }
  }
}

TEST(PromptAttentionEmulated, StaysWithinTheBound) {
  std::uint32_t seed = 0;
  for (const Heads& heads : {Heads{2, 4, 64}, {1, 2, 128}}) {
    EmulatedCase c(kPack, heads, false);
    for (const bool direct : {false, true}) {
      expect_bounded(c, {.direct = direct, .out = DType::F16, .blocks = 3, .seed = seed++});
    }
  }
}

// More sequences than a warp has lanes; more blocks than tiles.
TEST(PromptAttentionEmulated, FindsTheTilesOfManySequences) {
  std::vector<SequenceShape> many;
  for (int i = 0; i < 70; ++i) many.push_back({1 + i % 3, 1 + i % 3 + i % 40});
  EmulatedCase c(many, {1, 1, 64}, true);
  expect_exact(c, {.blocks = 5, .seed = 3});
  EmulatedCase few({{5, 5}}, {1, 1, 64}, true);
  expect_exact(few, {.blocks = 9, .seed = 1});
}

// A token's bits have nothing to do with the step's others, nor with where its tile begins.
TEST(PromptAttentionEmulated, GivesTheSameBitsWhateverElseIsInTheStep) {
  const Heads heads = {1, 4, 64};
  EmulatedCase alone({{70, 300}}, heads, false);
  EmulatedCase company({{70, 300}, {9, 80}, {33, 33}}, heads, false);
  const Setting setting = {.out = DType::F16};
  const std::vector<std::uint8_t> one = alone.run(setting);
  const std::vector<std::uint8_t> all =
      company.run({.direct = true, .out = DType::F16, .blocks = 7});
  std::vector<std::size_t> same(one.size());
  std::iota(same.begin(), same.end(), 0);
  EXPECT_TRUE(std::all_of(same.begin(), same.end(), [&](auto i) { return one[i] == all[i]; }));
}

}  // namespace
}  // namespace fut::test
