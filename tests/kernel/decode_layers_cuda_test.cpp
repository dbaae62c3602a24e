// Whole layers of a decode step in one kernel on the GPU: residual and cache have the bits of the ops one by
// one, at every number of tokens, again and again, alone and recorded; what it does not take runs op by op.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <random>

#include "kernels/numeric/formats.h"
#include "kernels/numeric/rope_table.h"
#include "tests/support/ragged_case.h"

#if FUT_CUDA
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/decode_layers.h"
#endif

namespace fut::test {
namespace {

#if FUT_CUDA

struct ModelShape {
  int hidden, ffn, q_heads, kv_heads, head_dim, group;
  int rotation_block = 0;
  float gate_up_scale = 1;

  [[nodiscard]] cuda::DecodeLayersShape with(int tokens) const {
    return {hidden, ffn, q_heads, kv_heads, head_dim, group, tokens};
  }
  [[nodiscard]] std::string name() const {
    return fmt::format("{} x {}, {}/{} heads of {}, groups of {}", hidden, ffn, q_heads, kv_heads,
                       head_dim, group);
  }
};
constexpr ModelShape kLlama8b = {4096, 14336, 32, 8, 128, 128, 128};
constexpr ModelShape kLlama70b = {8192, 28672, 64, 8, 128, 128, 128};

// Random codes under scales that keep sums near one.
std::vector<std::uint8_t> random_matrix(const layout::Int4Tile& tile, float size,
                                        std::uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(tile.bytes()));
  for (std::uint8_t& byte : packed) byte = static_cast<std::uint8_t>(engine() >> 24);
  const float scale = size / (4.6F * std::sqrt(static_cast<float>(tile.cols)));
  for (int row = 0; row < 16 * tile.num_strips(); ++row) {
    for (int g = 0; g < tile.num_groups(); ++g) {
      const float number = scale * (0.5F + static_cast<float>(engine() % 256) / 256);
      const std::uint16_t bits = f32_to_bf16(number);
      std::memcpy(packed.data() + tile.scale_offset(row, g), &bits, 2);
    }
  }
  return packed;
}

class Matrix {
 public:
  Matrix(Backend& backend, const layout::RowOrder& order, int cols, int group, float size,
         std::uint32_t seed)
      : order_(order),
        tile_{order.packed_rows(), cols, group},
        packed_(backend, random_matrix(tile_, size, seed)) {}
  [[nodiscard]] Int4Matrix view() const {
    return {packed_.data(), tile_, order_, order_.source_rows, tile_.cols};
  }

 private:
  layout::RowOrder order_;
  layout::Int4Tile tile_;
  Guarded<std::uint8_t> packed_;
};

// One layer's weights and cache; the cache begins as numbers without a pattern.
class Layer {
 public:
  Layer(Backend& backend, const ModelShape& s, int num_pages, int num_slots, std::uint32_t seed)
      : qkv(backend, layout::RowOrder::qkv(s.q_heads, s.kv_heads, s.head_dim), s.hidden, s.group, 1,
            seed),
        o(backend, layout::RowOrder::natural(s.hidden), s.q_heads * s.head_dim, s.group, 1,
          seed + 1),
        gate_up(backend, layout::RowOrder::gate_up(s.ffn), s.hidden, s.group, s.gate_up_scale,
                seed + 2),
        down(backend, layout::RowOrder::natural(s.hidden), s.ffn, s.group, 1, seed + 3),
        page_{s.kv_heads, s.head_dim, s.head_dim},
        store_{s.kv_heads, s.head_dim},
        num_pages_(num_pages),
        num_slots_(num_slots),
        first_pages_(random_pages(seed + 4)),
        first_raw_(random_rows(seed + 5)),
        pages_(backend, first_pages_),
        raw_(backend, first_raw_) {}

  Matrix qkv, o, gate_up, down;

  [[nodiscard]] KvPagesInt4 kv() const {
    return {pages_.data(), num_pages_, page_, raw_.data(), num_slots_, store_};
  }
  void reset(Backend& backend) const {
    backend.upload(pages_.data(), std::as_bytes(std::span(first_pages_)));
    backend.upload(raw_.data(), std::as_bytes(std::span(first_raw_)));
  }
  [[nodiscard]] std::pair<std::vector<std::uint8_t>, std::vector<std::uint16_t>> bytes() const {
    return {pages_.values(), raw_.values()};
  }

 private:
  [[nodiscard]] std::vector<std::uint8_t> random_pages(std::uint32_t seed) const {
    std::mt19937 engine(seed);
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(num_pages_ * page_.bytes()));
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(engine() >> 24);
    for (int page = 0; page < num_pages_; ++page) {
      for (const auto part : {layout::KvPart::Key, layout::KvPart::Value}) {
        for (int head = 0; head < page_.num_kv_heads; ++head) {
          for (int token = 0; token < layout::kPageTokens; ++token) {
            const float scale = 0.1F + static_cast<float>(engine() % 64) / 256;
            const std::uint16_t params[2] = {f32_to_f16_saturating(scale),
                                             f32_to_f16_saturating(-7.5F * scale)};
            std::memcpy(
                bytes.data() + page * page_.bytes() + page_.params_offset(part, head, token, 0),
                params, sizeof params);
          }
        }
      }
    }
    return bytes;
  }
  [[nodiscard]] std::vector<std::uint16_t> random_rows(std::uint32_t seed) const {
    std::vector<std::uint16_t> rows;
    for (const float v : normal_values(num_slots_ * store_.elements(), seed)) {
      rows.push_back(f32_to_bf16(v));
    }
    return rows;
  }

  layout::KvPageInt4 page_;
  layout::KvRawStore store_;
  int num_pages_, num_slots_;
  std::vector<std::uint8_t> first_pages_;
  std::vector<std::uint16_t> first_raw_;
  Guarded<std::uint8_t> pages_;
  Guarded<std::uint16_t> raw_;
};

std::vector<SequenceShape> sequences_of(const std::vector<int>& lengths) {
  std::vector<SequenceShape> sequences;
  for (const int length : lengths) sequences.push_back({1, length});
  return sequences;
}

// Some layers, and a step of one token for each of some sequences.
class LayersCase {
 public:
  LayersCase(cuda::CudaBackend& backend, const ModelShape& shape, const std::vector<int>& lengths,
             int num_layers)
      : backend_(backend),
        shape_(shape),
        tokens_(static_cast<std::int64_t>(lengths.size())),
        arrays_(sequences_of(lengths)),
        batch_(backend, arrays_),
        rope_(
            make_rope_table({}, shape.head_dim, *std::max_element(lengths.begin(), lengths.end()))),
        cos_(backend, rope_.cos),
        sin_(backend, rope_.sin),
        first_residual_(normal_values(tokens_ * shape.hidden, 77)),
        residual_(backend, DType::F32, {tokens_, shape.hidden}, first_residual_),
        q_(backend, DType::F32, {tokens_, shape.q_heads * shape.head_dim}),
        k_(backend, DType::F32, {tokens_, shape.kv_heads * shape.head_dim}),
        v_(backend, DType::F32, {tokens_, shape.kv_heads * shape.head_dim}),
        attention_(backend, DType::F16, {tokens_, shape.q_heads * shape.head_dim}),
        ffn_(backend, DType::F16, {tokens_, shape.ffn}),
        exponents_(backend, std::vector<std::int32_t>(lengths.size(), -1)) {
    for (int i = 0; i < num_layers; ++i) {
      layers_.push_back(std::make_unique<Layer>(backend, shape, arrays_.num_pages,
                                                arrays_.num_raw_slots,
                                                static_cast<std::uint32_t>(100 * i + 1)));
    }
  }

  [[nodiscard]] std::vector<LayerArgs> args() const {
    std::vector<LayerArgs> all;
    for (const auto& layer : layers_) {
      LayerArgs a;
      a.qkv.x = residual_.const_view();
      a.qkv.eps = 1e-5F;
      a.qkv.weights = Weights(layer->qkv.view());
      a.qkv.num_q_heads = a.attention.num_q_heads = shape_.q_heads;
      a.qkv.num_kv_heads = a.attention.num_kv_heads = shape_.kv_heads;
      a.qkv.head_dim = a.attention.head_dim = shape_.head_dim;
      a.qkv.rope_cos = cos_.data();
      a.qkv.rope_sin = sin_.data();
      a.qkv.rope_positions = rope_.num_positions;
      a.qkv.batch = a.attention.batch = batch_.view();
      a.qkv.q_out = q_.view();
      a.qkv.k_out = k_.view();
      a.qkv.v_out = v_.view();
      a.attention.q = q_.const_view();
      a.attention.k = k_.const_view();
      a.attention.v = v_.const_view();
      a.attention.rotation_block = shape_.rotation_block;
      a.attention.kv = layer->kv();
      a.attention.out = attention_.view();
      a.o_proj = {
          .x = attention_.const_view(), .weight = layer->o.view(), .residual = residual_.view()};
      a.gate_up.x = residual_.const_view();
      a.gate_up.eps = 1e-6F;
      a.gate_up.weights = Weights(layer->gate_up.view());
      a.gate_up.out_exponents = exponents_.data();
      a.gate_up.out = ffn_.view();
      a.down_proj = {.x = ffn_.const_view(),
                     .x_exponents = exponents_.data(),
                     .weight = layer->down.view(),
                     .residual = residual_.view()};
      all.push_back(a);
    }
    return all;
  }

  struct Result {
    std::vector<std::uint32_t> residual;
    std::vector<std::pair<std::vector<std::uint8_t>, std::vector<std::uint16_t>>> caches;
    std::vector<std::int32_t> exponents;
  };
  // What `run` makes of the case, from the beginning.
  template <class Run>
  Result result(const Run& run) {
    for (const auto& layer : layers_) layer->reset(backend_);
    const GuardedActivation fresh(backend_, DType::F32, {tokens_, shape_.hidden}, first_residual_);
    std::vector<std::byte> bytes(static_cast<std::size_t>(fresh.view().row_stride * tokens_ * 4));
    backend_.download(bytes, fresh.view().data);
    backend_.upload(residual_.view().data, bytes);
    run(args());
    Result r;
    r.residual = residual_.bits();
    for (const auto& layer : layers_) r.caches.push_back(layer->bytes());
    r.exponents = exponents_.values();
    return r;
  }

 private:
  cuda::CudaBackend& backend_;
  ModelShape shape_;
  std::int64_t tokens_;
  RaggedArrays arrays_;
  GuardedBatch batch_;
  RopeTable rope_;
  Guarded<float> cos_, sin_;
  std::vector<float> first_residual_;
  GuardedActivation residual_, q_, k_, v_, attention_, ffn_;
  Guarded<std::int32_t> exponents_;
  std::vector<std::unique_ptr<Layer>> layers_;
};

// Lengths around every border of blocks, pages and splits, in no order.
std::vector<int> lengths_of(int tokens, int seed) {
  constexpr int kLengths[] = {1,  33,  16, 64,   17, 1000, 2,   1024,
                              15, 128, 65, 1040, 32, 48,   700, 129};
  std::vector<int> lengths;
  for (int t = 0; t < tokens; ++t) {
    lengths.push_back(kLengths[static_cast<std::size_t>(seed + 3 * t) % std::size(kLengths)]);
  }
  return lengths;
}

void expect_same(const LayersCase::Result& expected, const LayersCase::Result& actual,
                 const std::string& name) {
  EXPECT_EQ(expected.residual.size(), actual.residual.size()) << name;
  const auto differ =
      std::mismatch(expected.residual.begin(), expected.residual.end(), actual.residual.begin());
  EXPECT_TRUE(differ.first == expected.residual.end())
      << name << ": residual differs at " << differ.first - expected.residual.begin();
  for (std::size_t i = 0; i < expected.caches.size(); ++i) {
    EXPECT_TRUE(expected.caches[i].first == actual.caches[i].first) << name << ", pages of " << i;
    EXPECT_TRUE(expected.caches[i].second == actual.caches[i].second) << name << ", rows of " << i;
  }
}

// Three steps each, so that what one launch leaves behind is met by the next.
void expect_bits(cuda::CudaBackend& backend, const ModelShape& shape,
                 const std::vector<int>& lengths, int num_layers) {
  const std::string name =
      fmt::format("{}, {} tokens, first length {}", shape.name(), lengths.size(), lengths[0]);
  SCOPED_TRACE(name);
  LayersCase layers(backend, shape, lengths, num_layers);
  constexpr int kSteps = 3;
  const auto expected = layers.result([&](const std::vector<LayerArgs>& args) {
    for (int i = 0; i < kSteps; ++i) run_op_by_op(backend, args);
  });
  for (const std::uint32_t bits : expected.residual) {
    ASSERT_TRUE(std::isfinite(value_of(DType::F32, bits))) << name;
  }
  const auto actual = layers.result([&](const std::vector<LayerArgs>& args) {
    for (int i = 0; i < kSteps; ++i) {
      ASSERT_EQ(cuda::try_decode_layers(args, backend.context()), args.size());
    }
  });
  expect_same(expected, actual, name);
}

constexpr ModelShape kSmallShapes[] = {
    {256, 512, 4, 2, 64, 128, 64},  {384, 640, 3, 3, 64, 64, 0},
    {128, 960, 8, 1, 64, 64, 32},   {512, 1536, 4, 1, 128, 128, 128},
    {256, 384, 2, 2, 128, 128, 0},  {1024, 4096, 16, 2, 128, 64, 128},
    {640, 1152, 10, 5, 64, 128, 64}};

TEST(DecodeLayersCuda, GivesTheBitsOfTheOpsOneByOneInSmallModels) {
  FUT_REQUIRE_GPU_DEVICE();
  cuda::CudaBackend backend(0);
  int seed = 0;
  for (const ModelShape& shape : kSmallShapes) {
    for (const int tokens : {1, 2, 3, 5, 8}) {
      expect_bits(backend, shape, lengths_of(tokens, seed++), 3);
    }
  }
}

TEST(DecodeLayersCuda, GivesTheBitsOfTheOpsOneByOneInLlama8b) {
  FUT_REQUIRE_GPU_DEVICE();
  cuda::CudaBackend backend(0);
  for (int tokens = 1; tokens <= 8; ++tokens) {
    expect_bits(backend, kLlama8b, lengths_of(tokens, tokens), 2);
  }
  ModelShape narrow = kLlama8b;
  narrow.group = 64;
  expect_bits(backend, narrow, lengths_of(1, 5), 1);
}

TEST(DecodeLayersCuda, GivesTheBitsOfTheOpsOneByOneInLlama70b) {
  FUT_REQUIRE_GPU_DEVICE();
  cuda::CudaBackend backend(0);
  for (const int tokens : {1, 2, 4}) {
    if (!cuda::plan_decode_layers(kLlama70b.with(tokens), backend.context().machine())) continue;
    expect_bits(backend, kLlama70b, lengths_of(tokens, tokens), 1);
  }
}

TEST(DecodeLayersCuda, GivesTheBitsOfTheOpsOneByOneBehindLongContexts) {
  FUT_REQUIRE_GPU_DEVICE();
  cuda::CudaBackend backend(0);
  const ModelShape shape = {512, 512, 8, 2, 128, 128, 128};
  for (const int length : {8191, 32768, 131072}) expect_bits(backend, shape, {length}, 1);
  expect_bits(backend, shape, {40000, 3, 16384, 16385}, 1);
}

// Outputs of gate and up above F16's range: exponents, in some of the layers' tokens.
TEST(DecodeLayersCuda, GivesTheBitsOfTheOpsOneByOneWhereOutputsAreLarge) {
  FUT_REQUIRE_GPU_DEVICE();
  cuda::CudaBackend backend(0);
  for (ModelShape shape : {kSmallShapes[0], kSmallShapes[5], kLlama8b}) {
    for (const float scale : {60.0F, 100.0F, 1000.0F}) {
      shape.gate_up_scale = scale;
      expect_bits(backend, shape, lengths_of(1, 2), 3);
      expect_bits(backend, shape, lengths_of(8, 2), 3);
    }
  }
}

TEST(DecodeLayersCuda, GivesTheSameBitsAgainAndRecorded) {
  FUT_REQUIRE_GPU_DEVICE();
  cuda::CudaBackend backend(0);
  for (const int tokens : {1, 8}) {
    LayersCase layers(backend, kLlama8b, lengths_of(tokens, 9), 2);
    const auto once = layers.result([&](const auto& args) { backend.run_layers(args); });
    for (int repeat = 0; repeat < 20; ++repeat) {
      const auto again = layers.result(
          [&](const auto& args) { backend.capture([&] { backend.run_layers(args); })(); });
      expect_same(once, again, fmt::format("{} tokens, repeat {}", tokens, repeat));
    }
  }
}

TEST(DecodeLayersCuda, LeavesToTheOpsWhatItDoesNotTake) {
  FUT_REQUIRE_GPU_DEVICE();
  cuda::CudaBackend backend(0);
  LayersCase many(backend, kSmallShapes[0], lengths_of(9, 0), 2);
  const auto expected = many.result([&](const auto& args) { run_op_by_op(backend, args); });
  const auto actual = many.result([&](const auto& args) {
    EXPECT_EQ(cuda::try_decode_layers(args, backend.context()), 0U);
    backend.run_layers(args);
  });
  expect_same(expected, actual, "nine tokens");
}

// ---- plans: no GPU needed --------------------------------------------------------------------------

cuda::Int4GemmMachine machine_of(int blocks) {
  return {.num_multiprocessors = blocks};
}

TEST(DecodeLayersPlan, TakesLlama8bUpToEightTokens) {
  for (int tokens = 1; tokens <= 8; ++tokens) {
    const auto plan = cuda::plan_decode_layers(kLlama8b.with(tokens), machine_of(132));
    ASSERT_TRUE(plan.has_value()) << tokens;
    EXPECT_LE(plan->layout.bytes, cuda::kMaxSharedBytes);
    EXPECT_GE(plan->attention.slots, 4) << tokens;
    EXPECT_EQ(plan->down_parts, tokens <= 4 ? 1 : cuda::kDownParts);
    fmt::print(
        "8B, {} tokens: {} stages, rounds of {}, {} parts, {} blocks a head, {} slots, {} bytes\n",
        tokens, plan->stages, plan->round_strips, plan->down_parts, plan->attention.cluster,
        plan->attention.slots, plan->layout.bytes);
  }
  EXPECT_FALSE(cuda::plan_decode_layers(kLlama8b.with(9), machine_of(132)).has_value());
}

TEST(DecodeLayersPlan, NamesItsLimits) {
  for (const ModelShape& shape : {kLlama70b, kSmallShapes[1]}) {
    int most = 0;
    for (int tokens = 1; tokens <= 8; ++tokens) {
      if (cuda::plan_decode_layers(shape.with(tokens), machine_of(132))) most = tokens;
    }
    fmt::print("{}: {} tokens at most\n", shape.name(), most);
    EXPECT_GE(most, 2);
  }
}

#else

TEST(DecodeLayersCuda, NeedsABuildWithCuda) {
  GTEST_SKIP() << "a build without CUDA";
}

#endif

}  // namespace
}  // namespace fut::test
