// What attention stores in an INT4 cache, after it. Contract in ops.h.
// launch  for each sequence and KV head as many blocks of 8 warps as a step of so many tokens can
//         complete blocks of the cache; those without work leave. The first one alone reads the old
//         tail, and then writes the rows that stay raw over it. Dependent launch
// bound   memory: the step's k and v once, 4 bytes in for 1.3 out
#include <algorithm>

#include "kernels/cuda/kv_pack.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/prompt_attention.h"
#include "kernels/cuda/ptx/dependent_launch.cuh"

namespace fut::cuda {
namespace {

using layout::KvPart;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kPartWarps = kWarps / 2;  // that pack the same part
constexpr unsigned kMostBlocks = 64;    // of a grid, for one sequence and head
constexpr int kBlockTokens = layout::KvPageInt4::kBlockTokens;

struct StoreArgs {
  const std::uint16_t* rows[2] = {};  // of the step: keys, values
  std::int64_t strides[2] = {};
  RaggedBatch batch;
  std::uint8_t* pages = nullptr;
  std::uint16_t* raw = nullptr;
  layout::KvPageInt4 page;
  layout::KvRawStore raw_rows;
};

// One sequence and KV head.
struct Storing {
  const StoreArgs& a;
  int head;
  int first_token;  // of the step, at position `begin`
  int begin, end;
  const std::int32_t* page_table;
  std::uint16_t* raw;

  __device__ const std::uint16_t* step_row(KvPart part, int position) const {
    const int i = static_cast<int>(part);
    return a.rows[i] + (first_token + position - begin) * a.strides[i] + head * a.page.head_dim;
  }
  __device__ std::uint16_t* raw_row(KvPart part, int position) const {
    return raw + a.raw_rows.offset(part, head, position);
  }
};

__device__ Storing storing_of(const StoreArgs& a) {
  const auto s = static_cast<int>(blockIdx.x);
  const int first = a.batch.q_indptr[s];
  const int end = a.batch.kv_lengths[s];
  return {a,
          static_cast<int>(blockIdx.y),
          first,
          end - (a.batch.q_indptr[s + 1] - first),
          end,
          a.batch.page_table + a.batch.kv_indptr[s],
          a.raw + a.batch.raw_slots[s] * a.raw_rows.elements()};
}

// The own share of the blocks that are complete now and were not at `begin`. Only the first of them all
// can have tokens from before the step.
template <int kHeadDim>
__device__ void pack_blocks(const Storing& s, std::uint8_t* codes_of_parts) {
  const auto sinks = static_cast<int>(layout::kSinkTokens);
  const int first = max(sinks, s.begin / kBlockTokens * kBlockTokens);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const KvPart part = warp < kPartWarps ? KvPart::Key : KvPart::Value;
  std::uint8_t* codes = codes_of_parts + static_cast<int>(part) * kBlockTokens * kHeadDim;
  // A step of n tokens completes n / 16 blocks, rounded down, and one that was begun before it.
  for (int position = first + static_cast<int>(blockIdx.z) * kBlockTokens;
       position + kBlockTokens <= s.end; position += static_cast<int>(gridDim.z) * kBlockTokens) {
    const int token = position % layout::kPageTokens;
    std::uint8_t* page =
        s.a.pages + s.page_table[position / layout::kPageTokens] * s.a.page.bytes();
    const auto row = [&](int i) {
      return position + i < s.begin ? s.raw_row(part, position + i)
                                    : s.step_row(part, position + i);
    };
    encode_kv_block<kHeadDim, kPartWarps>(s.a.page, page, part, s.head, token, row, codes,
                                          warp % kPartWarps);
    __syncthreads();
    store_kv_block<kHeadDim, kPartWarps>(s.a.page, page, part, s.head, token, codes,
                                         warp % kPartWarps);
    __syncthreads();  // codes are free again
  }
}

// The step's rows of the sinks and of the tail, a warp each.
template <int kHeadDim>
__device__ void keep_rows(const Storing& s) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto sinks = static_cast<int>(layout::kSinkTokens);
  const int first_tail = max(sinks, s.end / kBlockTokens * kBlockTokens);
  const auto keep = [&](int first, int end) {
    for (int i = 2 * first + static_cast<int>(threadIdx.x) / 32; i < 2 * end; i += kWarps) {
      const KvPart part = i % 2 == 0 ? KvPart::Key : KvPart::Value;
      const std::uint16_t* from = s.step_row(part, i / 2);
      std::uint16_t* to = s.raw_row(part, i / 2);
      for (int d = lane; d < kHeadDim; d += 32) to[d] = from[d];
    }
  };
  keep(s.begin, min(s.end, sinks));
  keep(max(s.begin, first_tail), s.end);
}

template <int kHeadDim>
__global__ void __launch_bounds__(kThreads) store_kernel(StoreArgs a) {
  __shared__ std::uint8_t codes[2 * kBlockTokens * kHeadDim];
  ptx::take_turn();
  const Storing storing = storing_of(a);
  pack_blocks<kHeadDim>(storing, codes);
  __syncthreads();  // nobody needs the old tail any more
  if (blockIdx.z == 0) keep_rows<kHeadDim>(storing);
}

}  // namespace

void store_step_rows(const AttentionArgs& a, const KvPagesInt4& kv, LaunchContext& context) {
  StoreArgs args;
  args.rows[0] = static_cast<const std::uint16_t*>(a.k.data);
  args.rows[1] = static_cast<const std::uint16_t*>(a.v.data);
  args.strides[0] = a.k.row_stride;
  args.strides[1] = a.v.row_stride;
  args.batch = a.batch;
  args.pages = kv.data;
  args.raw = kv.raw;
  args.page = kv.page;
  args.raw_rows = kv.raw_rows;
  const auto blocks = static_cast<unsigned>(a.batch.num_tokens / kBlockTokens) + 1;
  launch_dependent("attention: storing keys and values",
                   a.head_dim == 64 ? store_kernel<64> : store_kernel<128>,
                   {dim3(static_cast<unsigned>(a.batch.num_sequences),
                         static_cast<unsigned>(a.num_kv_heads), std::min(blocks, kMostBlocks)),
                    dim3(kThreads)},
                   context.handle(), args);
}

}  // namespace fut::cuda
