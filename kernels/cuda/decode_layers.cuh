// Whole layers of a decode step in one kernel: INT4 weights, up to eight tokens, INT4 cache. What the ops one
// by one do (ops.h), with their own inner loops and in their order of sums: the same bits.
// launch  one block a multiprocessor, all at a time; 16 warps, each with a segment of K, and eight of them
//         with keys. Between products all blocks meet at a counter (grid_barrier.cuh), five times a layer;
//         copies of weights run on meanwhile (decode_layers_stream.cuh)
// bound   memory: bytes of the packed matrices; at these sizes the meetings are a quarter of the time
//
// Down of more than a few tokens: no block holds them all, so four blocks share rows, each with a quarter of
// K, and exchange sums through memory. Attention: blocks leave what their splits come to in memory; the one of
// a sequence and KV head that comes last merges it.
#pragma once

#include "kernels/cuda/attention_decode.cuh"
#include "kernels/cuda/decode_layers_stream.cuh"
#include "kernels/cuda/grid_barrier.cuh"
#include "kernels/cuda/int4_epilogue.cuh"
#include "kernels/cuda/int4_f16_operand.cuh"
#include "kernels/cuda/int4_normed_operand.cuh"
#include "kernels/cuda/int4_output.h"
#include "kernels/cuda/int4_products.cuh"
#include "kernels/cuda/int4_tokens.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/position.cuh"
#include "kernels/cuda/ptx/reduction.cuh"
#include "kernels/cuda/tree_sum.cuh"
#include "kernels/numeric/activation_scales.h"

namespace fut::cuda {

// Outputs of gate and up once more, of tokens whose largest is above 2^15; others as they are.
struct ScaledFfnOperand {
  static constexpr bool kNormalised = false;
  F16Operand halves;
  const float* numbers;
  int channels;
  const unsigned* largest;

  __device__ uint2 load(int token, int k, float& squares) const {
    const float amax = __uint_as_float(largest[token]);
    if (amax == 0) return halves.load(token, k, squares);
    const int e = swiglu_exponent(amax);
    const float* h = numbers + static_cast<std::int64_t>(token) * channels + k;
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = ldexpf(h[i], -e);
    return make_uint2(ptx::f16x2_saturating(v[0], v[1]), ptx::f16x2_saturating(v[2], v[3]));
  }
};

template <class Config, int D>
class DecodeLayers {
 public:
  __device__ __forceinline__ DecodeLayers(const DecodeLayersArgs& args, std::uint8_t* shared)
      : args_(args),
        shared_(shared),
        warp_(ptx::warp_index()),
        tokens_(args.num_tokens),
        weights_(args, shared, warp_),
        grid_(reinterpret_cast<unsigned long long*>(args.counters), &kept().grid_target) {}

  __device__ __forceinline__ void run() {
    ptx::wait_for_predecessors();
    look_at_batch();
    forget_largest(0);
#pragma unroll 1
    for (layer_ = 0; layer_ < args_.num_layers; ++layer_) {
      forget_largest(layer_ + 1);  // of the layer before: nobody looks at it any more
#pragma unroll 1
      for (int product = 0; product < kNumLayerProducts; ++product) {
        const bool is_last = product + 1 == kNumLayerProducts && layer_ + 1 == args_.num_layers;
        if (is_last) ptx::let_successors_start();
        multiply(product);
        if (is_last) return;
        grid_.arrive();
        if (product == kQkvProduct) {
          product = kQkvProduct;  // what is known need not be kept across attention
          attend();
          grid_.arrive();
        }
        grid_.wait();
      }
    }
  }

 private:
  static constexpr int kPartSegments = layout::kNumKSegments / kDownParts;

  // What an output needs besides its sums: cosine and sine, or what stands there. Nothing is done with them
  // before they are used: that would wait for them.
  struct Inputs {
    float first = 0, second = 0;
  };

  [[nodiscard]] __device__ __forceinline__ bool is_shared(int product) const {
    return product == kDownProduct && args_.plan.down_parts > 1;
  }
  [[nodiscard]] __device__ __forceinline__ unsigned* largest(int layer) const {
    return reinterpret_cast<unsigned*>(args_.counters + args_.places.largest) +
           layer % 2 * kFewTokens;
  }
  __device__ __forceinline__ void forget_largest(int layer) const {
    if (ptx::block_index() == 0 && threadIdx.x < kFewTokens) largest(layer)[threadIdx.x] = 0;
  }
  [[nodiscard]] __device__ __forceinline__ float* numbers() const {
    return reinterpret_cast<float*>(args_.memory + args_.places.numbers);
  }

  // ---- products ---------------------------------------------------------------------------------

  __device__ __forceinline__ void multiply(int product) {
    const Int4Share share = share_of(args_, product, warp_);
    // Columns before the block's first one are not in shared memory.
    const int base = is_shared(product)
                         ? layout::k_segment_begin(ptx::block_index() % kDownParts * kPartSegments,
                                                   args_.products[product].num_groups) *
                               Config::kGroup
                         : 0;
    const int cols = columns(product);
    const int stride = 2 * cols + 16;
    std::uint8_t* rows = shared_ + args_.plan.layout.tokens - 2 * base;
    stage(product, share, rows, stride);
    if (is_shared(product)) {
      __syncthreads();
    } else {
      __syncwarp();  // a warp reads what it wrote itself
    }
    const Inputs inputs = first_inputs(product, share.first_strip);
    // A token past the last one reads the last one's, and its sums are dropped.
    const int token = min(ptx::lane() / 4, tokens_ - 1);
    const Int4Products<Config> products(
        ptx::shared_address(rows) + token * stride,
        reinterpret_cast<float2*>(shared_ + args_.plan.layout.biases) +
            (warp_ * args_.plan.segment_groups - share.first_group) * 4);
    products.template make_biases<4>(share.first_group, share.end_group);
    __syncwarp();
    int first = share.first_strip;
    bool is_first = true;
    do {
      const int end = min(first + args_.plan.round_strips, share.end_strip);
#pragma unroll 1
      for (int strip = first; strip < end; ++strip) {
        float sums[4] = {};
#pragma unroll 1
        for (int group = share.first_group; group < share.end_group;
             group += Config::kPieceGroups) {
          products.add_piece(weights_.wait(), group, share.end_group, sums);
          weights_.release();  // behind the loads of all lanes, see int4_gemm.cuh
        }
        store_segment_sums(own_partial(product, strip - first), tokens_, sums);
      }
      __syncthreads();
      if (is_shared(product)) {
        finish_part(inputs);
      } else {
        finish(product, first, end, is_first, inputs);
      }
      parity_ ^= 1;
      first = end;
      is_first = false;
    } while (first < share.end_strip);
  }

  // Of a row as it lies in shared memory.
  [[nodiscard]] __device__ __forceinline__ int columns(int product) const {
    const int groups = args_.products[product].num_groups;
    if (!is_shared(product)) return groups * Config::kGroup;
    const int first = ptx::block_index() % kDownParts * kPartSegments;
    return (layout::k_segment_begin(first + kPartSegments, groups) -
            layout::k_segment_begin(first, groups)) *
           Config::kGroup;
  }

  // ---- tokens -----------------------------------------------------------------------------------

  __device__ __forceinline__ void stage(int product, const Int4Share& share, std::uint8_t* rows,
                                        int stride) {
    auto* squares = reinterpret_cast<float*>(shared_ + args_.plan.layout.squares);
    const int begin = share.first_group * Config::kGroup;
    const int end = share.end_group * Config::kGroup;
    const int segment = segment_of(args_, product, warp_);
    if (product == kQkvProduct || product == kGateUpProduct) {
      const NormedOperand operand{args_.residual, args_.residual_stride, 0};
      const Int4Tokens tokens(rows, stride, tokens_, squares);
      if (tokens_ == 1) {
        tokens.template stage<1, 2>(operand, segment, begin, end);
      } else {
        tokens.template stage<4, 2>(operand, segment, begin, end);
      }
    } else if (product == kOProduct) {
      const F16Operand operand{args_.attention_out, args_.attention_stride};
      const Int4Tokens tokens(rows, stride, tokens_, squares);
      if (tokens_ == 1) {
        tokens.template stage<1, 2>(operand, segment, begin, end);
      } else {
        tokens.template stage<4, 2>(operand, segment, begin, end);
      }
    } else {
      stage_ffn(segment, begin, end, rows, stride);
    }
  }

  // Four warps share a segment, and its tokens, where blocks share down's sums.
  __device__ __forceinline__ void stage_ffn(int segment, int begin, int end, std::uint8_t* rows,
                                            int stride) {
    const bool shared = is_shared(kDownProduct);
    const int column = warp_ / kPartSegments;
    const int first_token = shared ? share_begin(tokens_, column, kDownParts) : 0;
    const int end_token = shared ? share_begin(tokens_, column + 1, kDownParts) : tokens_;
    const int lane = ptx::lane();
    const unsigned amax = lane < tokens_ ? largest(layer_)[lane] : 0;
    const F16Operand operand{args_.ffn, args_.ffn_stride};
    const Int4Tokens tokens(rows, stride, end_token, nullptr);
    if (end_token - first_token == 1) {
      tokens.template stage<1, 8>(operand, segment, begin, end, first_token);
    } else {
      tokens.template stage<2, 8>(operand, segment, begin, end, first_token);
    }
    if (warp_ == 0 && lane < tokens_) kept().largest[lane] = amax;
    if (!__any_sync(0xFFFFFFFFU, amax != 0)) return;
    const ScaledFfnOperand scaled{operand, numbers(), args_.intermediate_size, largest(layer_)};
    tokens.template stage<1, 1>(scaled, segment, begin, end, first_token);
  }

  // ---- sums of a block --------------------------------------------------------------------------

  [[nodiscard]] __device__ __forceinline__ float* partial(int tile) const {
    return reinterpret_cast<float*>(shared_ + args_.plan.layout.partial +
                                    parity_ * args_.plan.layout.partial_bytes) +
           tile * 16 * tokens_;
  }
  // [strip][segment]; where blocks share down's sums [column of warps][strip][segment of the block].
  [[nodiscard]] __device__ __forceinline__ float* own_partial(int product, int strip) const {
    if (!is_shared(product)) return partial(strip * layout::kNumKSegments + warp_);
    return partial((warp_ / kPartSegments * args_.plan.round_strips + strip) * kPartSegments +
                   warp_ % kPartSegments);
  }

  // Output i of strips from `first` on.
  [[nodiscard]] __device__ __forceinline__ Int4Output output(int first, int i) const {
    const int row = i / 8;  // of all strips' tokens
    return {first + row / tokens_, i % 8, row % tokens_};
  }

  __device__ __forceinline__ void finish(int product, int first, int end, bool is_first,
                                         const Inputs& first_ones) {
    const int count = (end - first) * 8 * tokens_;
#pragma unroll 1
    for (int i = ptx::thread_index(); i < count; i += kInt4GemmThreads) {
      const Int4Output out = output(first, i);
      const bool is_known = is_first && i < kInt4GemmThreads;
      const Inputs inputs = is_known ? first_ones : inputs_of(product, out);
      const float* rows =
          partial((out.strip - first) * layout::kNumKSegments) + out.g * tokens_ + out.token;
      const float lower = tree_sum<layout::kNumKSegments>(rows, 16 * tokens_);
      const float upper = tree_sum<layout::kNumKSegments>(rows + 8 * tokens_, 16 * tokens_);
      store(product, out, lower * (1 / layout::kInt4LowUnit), upper * (1 / layout::kInt4HighUnit),
            inputs);
    }
  }

  // Down's rows of four blocks: each adds up its segments of all of them, then all parts of its own rows.
  __device__ __forceinline__ void finish_part(const Inputs& first_ones) {
    const DownGroup group(args_.products[kDownProduct].num_strips);
    if (group.index >= group.count) return;
    auto* exchange = reinterpret_cast<float*>(args_.memory + args_.places.exchange);
    const int in_strip = 16 * tokens_;
    const int count = (group.end_strip - group.first_strip) * in_strip;
#pragma unroll 1
    for (int i = ptx::thread_index(); i < count; i += kInt4GemmThreads) {
      const int strip = group.first_strip + i / in_strip;
      int column = 0;
      while (strip >= group.part_begin(column + 1)) ++column;
      const int tile =
          (column * args_.plan.round_strips + strip - group.part_begin(column)) * kPartSegments;
      const float sum = tree_sum<kPartSegments>(partial(tile) + i % in_strip, in_strip);
      exchange[(strip * kDownParts + group.part) * in_strip + i % in_strip] = sum;
    }
    meet_group(group.index);
    const int first = group.part_begin(group.part);
    const int end = group.part_begin(group.part + 1);
#pragma unroll 1
    for (int i = ptx::thread_index(); i < (end - first) * 8 * tokens_; i += kInt4GemmThreads) {
      const Int4Output out = output(first, i);
      const Inputs inputs = i < kInt4GemmThreads ? first_ones : inputs_of(kDownProduct, out);
      const float* rows =
          exchange + out.strip * kDownParts * in_strip + out.g * tokens_ + out.token;
      const float lower = tree_sum<kDownParts>(rows, in_strip);
      const float upper = tree_sum<kDownParts>(rows + 8 * tokens_, in_strip);
      store(kDownProduct, out, lower * (1 / layout::kInt4LowUnit),
            upper * (1 / layout::kInt4HighUnit), inputs);
    }
  }
  __device__ __forceinline__ void meet_group(int group) const {
    __syncthreads();
    if (ptx::thread_index() == 0) {
      auto* counter = reinterpret_cast<unsigned long long*>(
          args_.counters + args_.places.parts + static_cast<unsigned>(group) * kCounterBytes);
      const unsigned long long before = ptx::arrive_and_look(counter);
      ptx::wait_for_count(counter, before - before % kDownParts + kDownParts);
    }
    __syncthreads();
  }

  // ---- outputs ----------------------------------------------------------------------------------

  // Of this thread's first output, asked for early.
  [[nodiscard]] __device__ __forceinline__ Inputs first_inputs(int product, int first_strip) const {
    int end = min(first_strip + args_.plan.round_strips, share_of(args_, product, 0).end_strip);
    if (is_shared(product)) {
      const DownGroup group(args_.products[kDownProduct].num_strips);
      first_strip = group.part_begin(group.part);
      end = group.part_begin(group.part + 1);
    }
    const int i = ptx::thread_index();
    return i < (end - first_strip) * 8 * tokens_ ? inputs_of(product, output(first_strip, i))
                                                 : Inputs{};
  }

  [[nodiscard]] __device__ __forceinline__ Inputs inputs_of(int product,
                                                            const Int4Output& out) const {
    Inputs inputs;
    const int row = out.strip * layout::Int4Tile::kStripRows;
    if (product == kQkvProduct) {
      const std::int64_t angle =
          std::int64_t{kept().positions[out.token]} * (D / 2) + row % D / 2 + out.g;
      inputs.first = args_.rope_cos[angle];
      inputs.second = args_.rope_sin[angle];
    } else if (product != kGateUpProduct) {
      const float* value = args_.residual + out.token * args_.residual_stride + row + out.g;
      if (row + out.g < args_.hidden_size) inputs.first = value[0];
      if (row + out.g + 8 < args_.hidden_size) inputs.second = value[8];
    }
    return inputs;
  }

  __device__ __forceinline__ void store(int product, const Int4Output& out, float lower,
                                        float upper, const Inputs& inputs) const {
    if (product == kQkvProduct) {
      store_qkv(out, lower, upper, inputs);
    } else if (product == kGateUpProduct) {
      store_ffn(out, lower, upper);
    } else {
      const int row = out.strip * layout::Int4Tile::kStripRows + out.g;
      float* value = args_.residual + out.token * args_.residual_stride + row;
      const unsigned amax = product == kDownProduct ? kept().largest[out.token] : 0;
      const float power = ldexpf(1.0F, swiglu_exponent(__uint_as_float(amax)));
      if (row < args_.hidden_size) value[0] = inputs.first + lower * power;
      if (row + 8 < args_.hidden_size) value[8] = inputs.second + upper * power;
    }
  }

  // 1 / rms of a token.
  [[nodiscard]] __device__ __forceinline__ float row_scale(int token, float eps) const {
    const auto* squares =
        reinterpret_cast<const float*>(shared_ + args_.plan.layout.squares) + token;
    return inverse_rms(tree_sum<layout::kNumKSegments>(squares, kFewTokens),
                       args_.products[kQkvProduct].num_groups * Config::kGroup, eps);
  }

  __device__ __forceinline__ void store_qkv(const Int4Output& out, float lower, float upper,
                                            const Inputs& inputs) const {
    const float r = row_scale(out.token, args_.input_eps);
    lower *= r;
    upper *= r;
    const int row = out.strip * layout::Int4Tile::kStripRows;
    const int kv_cols = args_.attention.num_kv_heads * D;
    if (row >= args_.q_cols + kv_cols) {
      float* place = args_.v + out.token * args_.v_stride + (row - args_.q_cols - kv_cols) + out.g;
      place[0] = lower;
      place[layout::RowOrder::kHalfStrip] = upper;
      return;
    }
    turn_pair(lower, upper, inputs.first, inputs.second);
    float* place = row < args_.q_cols
                       ? args_.q + out.token * args_.q_stride + row / D * D
                       : args_.k + out.token * args_.k_stride + (row - args_.q_cols) / D * D;
    place += row % D / 2 + out.g;
    place[0] = lower;
    place[D / 2] = upper;
  }

  // As int4_gate_up_swiglu.cu: a token's exponent is 0 but for large ones, whose operand is made again by
  // those who read it.
  __device__ __forceinline__ void store_ffn(const Int4Output& out, float lower, float upper) const {
    const int channel = out.strip * layout::RowOrder::kHalfStrip + out.g;
    if (channel >= args_.intermediate_size) return;
    const float h = swiglu(lower, upper, row_scale(out.token, args_.output_eps));
    args_.ffn[out.token * args_.ffn_stride + channel] = ptx::saturated_f16(h);
    numbers()[static_cast<std::int64_t>(out.token) * args_.intermediate_size + channel] = h;
    ptx::global_max_if(fabsf(h) > 0x1p15F, largest(layer_) + out.token, __float_as_uint(fabsf(h)));
  }

  // ---- attention --------------------------------------------------------------------------------

  [[nodiscard]] __device__ __forceinline__ KeptState& kept() const {
    return *reinterpret_cast<KeptState*>(shared_ + args_.plan.layout.kept);
  }
  [[nodiscard]] __device__ __forceinline__ uint4* kept_ring(int warp) const {
    return reinterpret_cast<uint4*>(shared_ + args_.plan.layout.kept_rings) + 2 * warp;
  }

  // What does not change from layer to layer, and is asked for in the middle of everything.
  __device__ __forceinline__ void look_at_batch() const {
    const int token = threadIdx.x;
    if (token < tokens_) {
      kept().positions[token] = args_.positions[token];
      kept().first_pages[token] = args_.attention.kv_indptr[token];
      kept().raw_slots[token] = args_.attention.raw_slots[token];
    }
    __syncthreads();
  }

  // Takes all registers: what is known is kept in shared memory meanwhile. The blocks' meeting for queries has
  // begun, and ends here.
  __device__ __forceinline__ void attend() {
    weights_.keep(kept_ring(warp_));
    if (ptx::thread_index() == 0) {
      kept().layer = layer_;
      kept().parity = parity_;
      kept().pages = args_.layers[layer_].pages;
      kept().raw = args_.layers[layer_].raw;
      kept().unit = ptx::block_index();
    }
    __syncthreads();
    if (kept().unit >= num_units()) grid_.wait();
#pragma unroll 1
    while (kept().unit < num_units()) {
      attend_to_share();
      hand_share_on();
      __syncthreads();
      if (ptx::thread_index() == 0) kept().unit += ptx::num_blocks();
      __syncthreads();
    }
    layer_ = kept().layer;
    parity_ = kept().parity;
    warp_ = ptx::warp_index();
    weights_.recall(kept_ring(warp_), shared_, warp_);
  }
  [[nodiscard]] __device__ __forceinline__ int num_units() const {
    return tokens_ * args_.attention.num_kv_heads * args_.attention.cluster;
  }

  // A share of the splits of a sequence and KV head.
  struct Share {
    int item, rank, sequence, kv_head;
  };
  [[nodiscard]] __device__ __forceinline__ Share share() const {
    const int unit = kept().unit;
    const int item = unit >> args_.attention.log2_cluster;
    return {item, unit & (args_.attention.cluster - 1), item / args_.attention.num_kv_heads,
            item % args_.attention.num_kv_heads};
  }
  [[nodiscard]] __device__ __forceinline__ AttentionDecode<D, 1> attention(const Share& s) const {
    return {args_.attention, shared_ + args_.plan.layout.tokens,
            s.rank,          s.kv_head,
            s.sequence,      kept().pages,
            kept().raw};
  }
  [[nodiscard]] __device__ __forceinline__ AttentionResults<D, 1> results(const Share& s) const {
    return {args_.attention, shared_ + args_.plan.layout.tokens, 0, 0, s.kv_head, s.sequence};
  }
  [[nodiscard]] __device__ __forceinline__ auto* place() const {
    return reinterpret_cast<typename AttentionDecode<D, 1>::Place*>(&kept().position);
  }

  // Keys are under way while the last of the blocks comes with queries.
  __device__ __forceinline__ void attend_to_share() {
    const Share s = share();
    AttentionDecode<D, 1> own = attention(s);
    typename AttentionDecode<D, 1>::Ring ring(args_.attention, shared_ + args_.plan.layout.tokens,
                                              ptx::warp_index(), s.kv_head, kept().pages);
    own.ask_for_keys(ring, kept().positions[s.sequence], kept().first_pages[s.sequence],
                     kept().raw_slots[s.sequence]);
    if (kept().unit == ptx::block_index()) {
      grid_.wait();
    } else {
      __syncthreads();
    }
    own.attend_to_share(ring, place());
    __syncthreads();
  }

  // To the other blocks that have one of the same; whoever comes last merges them all.
  __device__ __forceinline__ void hand_share_on() {
    const Share s = share();
    const AttentionDecodeArgs& a = args_.attention;
    std::uint8_t* partials = args_.memory + args_.places.states +
                             static_cast<std::int64_t>(s.item) * a.cluster * a.layout.slot_bytes;
    results(s).send_to(partials + s.rank * a.layout.slot_bytes);
    __syncthreads();
    auto* counter = reinterpret_cast<unsigned long long*>(
        args_.counters + args_.places.arrivals + static_cast<unsigned>(s.item) * kCounterBytes);
    if (ptx::thread_index() == 0) {
      const unsigned long long before = ptx::arrive_and_look(counter);
      kept().comes_last = before + 1 == static_cast<unsigned>(a.cluster) ? 1 : 0;
    }
    AttentionDecode<D, 1> own = attention(s);
    own.recall(*place());
    own.append();
    __syncthreads();
    if (kept().comes_last == 0) return;
    if (ptx::thread_index() == 0) *counter = 0;
    results(s).collect(partials);
    __syncthreads();
    results(s).finish();
  }

  const DecodeLayersArgs& args_;
  std::uint8_t* shared_;
  int warp_, tokens_;
  LayerWeightRing<Config> weights_;
  GridBarrier grid_;
  int layer_ = 0;
  int parity_ = 0;  // of the round of sums
};

template <class Config, int D>
__global__ void __launch_bounds__(kInt4GemmThreads, 1)
    decode_layers_kernel(const __grid_constant__ DecodeLayersArgs args) {
  extern __shared__ __align__(1024) std::uint8_t decode_layers_shared[];
  DecodeLayers<Config, D>(args, decode_layers_shared).run();
}

}  // namespace fut::cuda
