// Which layers the kernel for whole layers takes, and its arguments.
#include "kernels/cuda/decode_layers_plan.h"

#include <algorithm>

#include "kernels/check.h"

namespace fut::cuda {
namespace {

constexpr int kWarps = kInt4GemmThreads / 32;
constexpr int kMostRoundStrips = 7;

int aligned(int bytes) {
  return (bytes + 127) / 128 * 128;
}
int divided_up(int a, int b) {
  return (a + b - 1) / b;
}

// The most groups of a run of `segments` segments.
int most_groups(int num_groups, int segments) {
  int most = 0;
  for (int s = 0; s < layout::kNumKSegments; s += segments) {
    most = std::max(most, layout::k_segment_begin(s + segments, num_groups) -
                              layout::k_segment_begin(s, num_groups));
  }
  return most;
}

struct Sizes {
  LayerMatrix products[kNumLayerProducts];
  int group = 0;
};

Sizes sizes_of(const DecodeLayersShape& s) {
  const auto groups = [&](int cols) { return divided_up(cols, s.weight_group); };
  const int q_cols = s.num_q_heads * s.head_dim;
  const int qkv_rows = q_cols + 2 * s.num_kv_heads * s.head_dim;
  Sizes sizes;
  sizes.group = s.weight_group;
  sizes.products[kQkvProduct] = {qkv_rows / 16, groups(s.hidden_size)};
  sizes.products[kOProduct] = {divided_up(s.hidden_size, 16), groups(q_cols)};
  sizes.products[kGateUpProduct] = {divided_up(s.intermediate_size, 8), groups(s.hidden_size)};
  sizes.products[kDownProduct] = {divided_up(s.hidden_size, 16), groups(s.intermediate_size)};
  return sizes;
}

// As few blocks a sequence and head as the stand-alone kernel would take, so many that all have work.
AttentionDistribution distribution(const DecodeLayersShape& s, int num_blocks) {
  const int items = s.num_tokens * s.num_kv_heads;
  AttentionDistribution d;
  while (d.cluster < kMaxAttentionCluster && 2 * d.cluster * items <= num_blocks) d.cluster *= 2;
  return d;
}

AttentionLayout lay_attention_out(const DecodeLayersShape& s, const AttentionDistribution& d) {
  const int heads = s.num_q_heads / s.num_kv_heads;
  AttentionLayout l = attention_layout(s.head_dim, 1, heads, d);
  // The block that comes last finishes all outputs, out of what rings of codes had.
  l.share *= d.cluster;
  while (1 << l.log2_share < l.share) ++l.log2_share;
  l.incoming = l.coded;
  l.incoming_rows = l.incoming + d.cluster * l.share * 16;
  const int rows_bytes = d.cluster * 3 * kAttentionHeads * 4;
  l.bytes =
      std::max(l.states + kAttentionWarps * l.slots * l.slot_bytes, l.incoming_rows + rows_bytes);
  return l;
}

// What a block's shared memory holds besides; true where it fits.
bool lay_out(const DecodeLayersShape& s, const Sizes& sizes, DecodeLayersPlan& plan) {
  const int record = layout::Int4Tile{16, sizes.group, sizes.group}.record_bytes();
  const int down_segments = layout::kNumKSegments / plan.down_parts;
  int cols = most_groups(sizes.products[kDownProduct].num_groups, down_segments) * sizes.group;
  plan.segment_groups = 1;
  for (int p = 0; p < kNumLayerProducts; ++p) {
    const int groups = sizes.products[p].num_groups;
    plan.segment_groups = std::max(plan.segment_groups, most_groups(groups, 1));
    if (p != kDownProduct) cols = std::max(cols, groups * sizes.group);
  }
  DecodeLayersLayout& l = plan.layout;
  l.kept = aligned(kWarps * plan.stages * 8);
  l.kept_rings = l.kept + aligned(sizeof(KeptState));
  l.squares = l.kept_rings + aligned(kWarps * 32);
  l.biases = l.squares + aligned(layout::kNumKSegments * kFewTokens * 4);
  l.ring = l.biases + aligned(kWarps * plan.segment_groups * 32);
  l.tokens = l.ring + aligned(kWarps * plan.stages * 2 * record);
  l.partial = l.tokens + aligned(s.num_tokens * (cols * 2 + 16));
  l.partial_bytes = plan.round_strips * layout::kNumKSegments * 16 * s.num_tokens * 4;
  plan.attention_layout = lay_attention_out(s, plan.attention);
  l.bytes = std::max(l.partial + 2 * l.partial_bytes, l.tokens + plan.attention_layout.bytes);
  return l.bytes <= kMaxSharedBytes;
}

// Strips of a warp in each of `parts` parts of the blocks' groups.
int strips_of_part(int num_strips, int num_blocks) {
  const int most = divided_up(num_strips, num_blocks / kDownParts);
  return divided_up(most, kDownParts);
}

bool same(const ConstActivationView& a, const ConstActivationView& b) {
  return a.data == b.data && a.dtype == b.dtype && a.rows == b.rows && a.cols == b.cols &&
         a.row_stride == b.row_stride;
}

const Int4Matrix* int4_of(const Weights& w) {
  return std::get_if<Int4Matrix>(&w);
}
template <class Stacked>
const Int4Matrix* int4_of(const Stacked& weights) {
  const auto* stacked = std::get_if<Weights>(&weights);
  return stacked == nullptr ? nullptr : std::get_if<Int4Matrix>(stacked);
}

struct LayerMatrices {
  const Int4Matrix* products[kNumLayerProducts];
};
LayerMatrices matrices_of(const LayerArgs& layer) {
  return {int4_of(layer.qkv.weights), int4_of(layer.o_proj.weight), int4_of(layer.gate_up.weights),
          int4_of(layer.down_proj.weight)};
}

// Whether one layer's ops hand on to each other what the kernel hands on, and in these types.
bool is_chain(const LayerArgs& l) {
  const auto* kv = std::get_if<KvPagesInt4>(&l.attention.kv);
  if (kv == nullptr || kv->page.num_groups() != 1) return false;
  const ConstActivationView residual = l.qkv.x;
  return !l.attention.of_prompts && residual.dtype == DType::F32 &&
         l.qkv.q_out.dtype == DType::F32 && l.qkv.kv.data == nullptr && l.qkv.rotation_block == 0 &&
         l.qkv.gain == nullptr && l.gate_up.gain == nullptr && same(l.qkv.q_out, l.attention.q) &&
         same(l.qkv.k_out, l.attention.k) && same(l.qkv.v_out, l.attention.v) &&
         l.attention.out.dtype == DType::F16 && same(l.attention.out, l.o_proj.x) &&
         same(residual, l.o_proj.residual) && l.o_proj.x_exponents == nullptr &&
         same(residual, l.gate_up.x) && l.gate_up.out.dtype == DType::F16 &&
         same(l.gate_up.out, l.down_proj.x) && same(residual, l.down_proj.residual) &&
         l.gate_up.out_exponents != nullptr && l.gate_up.out_exponents == l.down_proj.x_exponents &&
         l.attention.batch.num_tokens == l.attention.batch.num_sequences &&
         l.attention.batch.positions == l.qkv.batch.positions &&
         l.attention.batch.kv_lengths == l.qkv.batch.kv_lengths;
}

// Whether two layers differ in their addresses alone.
bool alike(const LayerArgs& a, const LayerArgs& b) {
  return same(a.qkv.x, b.qkv.x) && same(a.qkv.q_out, b.qkv.q_out) &&
         same(a.qkv.k_out, b.qkv.k_out) && same(a.qkv.v_out, b.qkv.v_out) &&
         same(a.attention.out, b.attention.out) && same(a.gate_up.out, b.gate_up.out) &&
         a.qkv.eps == b.qkv.eps && a.gate_up.eps == b.gate_up.eps &&
         a.qkv.num_q_heads == b.qkv.num_q_heads && a.qkv.num_kv_heads == b.qkv.num_kv_heads &&
         a.qkv.head_dim == b.qkv.head_dim && a.qkv.rope_cos == b.qkv.rope_cos &&
         a.qkv.rope_sin == b.qkv.rope_sin && same(a.attention.q, b.attention.q) &&
         same(a.attention.k, b.attention.k) && same(a.attention.v, b.attention.v) &&
         a.attention.num_q_heads == b.attention.num_q_heads &&
         a.attention.num_kv_heads == b.attention.num_kv_heads &&
         a.attention.head_dim == b.attention.head_dim &&
         a.attention.rotation_block == b.attention.rotation_block &&
         a.attention.batch.kv_indptr == b.attention.batch.kv_indptr &&
         a.attention.batch.raw_slots == b.attention.batch.raw_slots &&
         a.attention.batch.positions == b.attention.batch.positions &&
         a.attention.batch.kv_lengths == b.attention.batch.kv_lengths &&
         a.attention.batch.page_table == b.attention.batch.page_table;
}

bool reads_16_bytes(const ConstActivationView& view) {
  return reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0 &&
         view.row_stride * dtype_bytes(view.dtype) % 16 == 0;
}

}  // namespace

std::optional<DecodeLayersPlan> plan_decode_layers(const DecodeLayersShape& s,
                                                   const Int4GemmMachine& machine) {
  if (s.num_tokens < 1 || s.num_tokens > kFewTokens) return std::nullopt;
  if (s.head_dim != 64 && s.head_dim != 128) return std::nullopt;
  if (s.num_q_heads / s.num_kv_heads > kAttentionHeads) return std::nullopt;
  if (s.weight_group != 64 && s.weight_group != 128) return std::nullopt;
  const int blocks = machine.num_multiprocessors;
  const Sizes sizes = sizes_of(s);
  int most_strips = 1;
  for (const LayerMatrix& p : sizes.products) {
    most_strips = std::max(most_strips, divided_up(p.num_strips, blocks));
  }
  // Sums of at least two strips at a time rather than one; all of down's sums in a block rather than parts;
  // then stages of the rings of weights, and slots of those of keys.
  constexpr int kRings[][2] = {{3, 8}, {3, 4}, {2, 4}, {2, 2}};
  for (const int wanted_strips : {2, 1}) {
    for (const int parts : {1, kDownParts}) {
      if (blocks < parts) continue;
      const int needed =
          parts == 1 ? 1 : strips_of_part(sizes.products[kDownProduct].num_strips, blocks);
      const int least = std::max(needed, std::min(wanted_strips, most_strips));
      for (const auto& [stages, slots] : kRings) {
        DecodeLayersPlan plan;
        plan.stages = stages;
        plan.down_parts = parts;
        plan.attention = distribution(s, blocks);
        plan.attention.slots = slots;
        plan.round_strips = std::max(least, std::min(most_strips, kMostRoundStrips));
        for (; plan.round_strips >= least; --plan.round_strips) {
          if (lay_out(s, sizes, plan)) return plan;
        }
      }
    }
  }
  return std::nullopt;
}

std::optional<DecodeLayersShape> decode_layers_shape(std::span<const LayerArgs> layers) {
  if (layers.empty()) return std::nullopt;
  const LayerArgs& first = layers.front();
  DecodeLayersShape shape;
  for (const LayerArgs& layer : layers) {
    if (!is_chain(layer) || !alike(first, layer)) return std::nullopt;
    for (const Int4Matrix* m : matrices_of(layer).products) {
      if (m == nullptr) return std::nullopt;
      if (shape.weight_group == 0) shape.weight_group = m->tile.group;
      if (m->tile.group != shape.weight_group) return std::nullopt;
    }
  }
  for (const auto& view : {first.qkv.x, ConstActivationView(first.attention.out),
                           ConstActivationView(first.gate_up.out)}) {
    if (!reads_16_bytes(view)) return std::nullopt;
  }
  shape.hidden_size = static_cast<int>(first.qkv.x.cols);
  shape.intermediate_size = static_cast<int>(first.gate_up.out.cols);
  shape.num_q_heads = first.qkv.num_q_heads;
  shape.num_kv_heads = first.qkv.num_kv_heads;
  shape.head_dim = first.qkv.head_dim;
  shape.num_tokens = static_cast<int>(std::min<std::int64_t>(first.qkv.x.rows, kFewTokens + 1));
  return shape;
}

DecodeLayersMemory decode_layers_memory(const DecodeLayersShape& s, const DecodeLayersPlan& plan,
                                        int num_blocks) {
  const int items = s.num_tokens * s.num_kv_heads;
  const auto groups = static_cast<std::size_t>(num_blocks / kDownParts);
  DecodeLayersMemory m;
  m.largest = m.parts + groups * kCounterBytes;
  m.arrivals = m.largest + kCounterBytes;
  m.counter_bytes = m.arrivals + static_cast<std::size_t>(items) * kCounterBytes;
  m.numbers = m.states + static_cast<std::size_t>(items) *
                             static_cast<std::size_t>(plan.attention.cluster) *
                             static_cast<std::size_t>(plan.attention_layout.slot_bytes);
  m.exchange = m.numbers + static_cast<std::size_t>(s.num_tokens) *
                               static_cast<std::size_t>(s.intermediate_size) * sizeof(float);
  m.bytes = m.exchange;
  if (plan.down_parts > 1) {
    m.bytes += static_cast<std::size_t>(divided_up(s.hidden_size, 16)) * kDownParts * 16 *
               static_cast<std::size_t>(s.num_tokens) * sizeof(float);
  }
  return m;
}

DecodeLayersArgs decode_layers_args(std::span<const LayerArgs> layers,
                                    const DecodeLayersShape& shape, const DecodeLayersPlan& plan,
                                    const Int4GemmMachine& machine, std::uint64_t* saturations) {
  FUT_CHECK(layers.size() <= kMaxRunLayers, "{} layers in one launch, {} at most", layers.size(),
            kMaxRunLayers);
  const LayerArgs& first = layers.front();
  DecodeLayersArgs a;
  a.num_layers = static_cast<int>(layers.size());
  a.num_tokens = shape.num_tokens;
  a.hidden_size = shape.hidden_size;
  a.intermediate_size = shape.intermediate_size;
  a.q_cols = shape.num_q_heads * shape.head_dim;
  a.input_eps = first.qkv.eps;
  a.output_eps = first.gate_up.eps;
  a.plan = plan;
  const Sizes sizes = sizes_of(shape);
  std::copy(std::begin(sizes.products), std::end(sizes.products), std::begin(a.products));
  a.residual = static_cast<float*>(first.o_proj.residual.data);
  a.residual_stride = first.o_proj.residual.row_stride;
  a.q = static_cast<float*>(first.qkv.q_out.data);
  a.q_stride = first.qkv.q_out.row_stride;
  a.k = static_cast<float*>(first.qkv.k_out.data);
  a.k_stride = first.qkv.k_out.row_stride;
  a.v = static_cast<float*>(first.qkv.v_out.data);
  a.v_stride = first.qkv.v_out.row_stride;
  a.attention_out = static_cast<std::uint16_t*>(first.attention.out.data);
  a.attention_stride = first.attention.out.row_stride;
  a.ffn = static_cast<std::uint16_t*>(first.gate_up.out.data);
  a.ffn_stride = first.gate_up.out.row_stride;
  a.positions = first.qkv.batch.positions;
  a.rope_cos = first.qkv.rope_cos;
  a.rope_sin = first.qkv.rope_sin;
  a.attention = attention_decode_args(first.attention, plan.attention, saturations);
  a.attention.layout = plan.attention_layout;
  a.places = decode_layers_memory(shape, plan, machine.num_multiprocessors);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerMatrices m = matrices_of(layers[i]);
    for (int p = 0; p < kNumLayerProducts; ++p) a.layers[i].packed[p] = m.products[p]->packed;
    const auto& kv = std::get<KvPagesInt4>(layers[i].attention.kv);
    a.layers[i].pages = kv.data;
    a.layers[i].raw = kv.raw;
  }
  return a;
}

}  // namespace fut::cuda
