// gate_up_swiglu on the GPU, INT4 weights. Contract in ops.h.
// launch  one of the two INT4 main loops (int4_launch.cuh), dependent launch; gate and up
//         of a channel are rows g and g + 8 of a strip
// bound   memory: bytes of the packed matrix
//
// A token's exponent depends on the largest of its outputs, which no block knows before all have
// finished. It is 0 for all ordinary tokens, so outputs are stored for that, and in float32 beside. A
// block that met an output above 2^15 says so; of those blocks one waits for all others and does the
// rounding again for the tokens concerned. The others neither wait nor ask.
#include <algorithm>
#include <cuda/atomic>

#include "kernels/cuda/int4_launch.cuh"
#include "kernels/cuda/int4_normed_operand.cuh"
#include "kernels/cuda/int4_ops.h"
#include "kernels/cuda/ptx/matrix_fragments.cuh"
#include "kernels/cuda/ptx/reduction.cuh"
#include "kernels/numeric/activation_scales.h"

namespace fut::cuda {
namespace {

// How far the blocks of a launch are. Everything but `done` is zero between launches.
struct SwigluProgress {
  // Blocks that have finished, counted for ever, apart for launches of different sizes: before and
  // after a launch of n blocks done[n] is a multiple of n.
  unsigned long long done[kMaxInt4Blocks + 1];
  unsigned claims;                   // blocks that met a large output
  unsigned largest[kMaxInt4Tokens];  // bits of |h|, of tokens above 2^15; 0: none
};

template <class T>
using DeviceAtomic = ::cuda::atomic_ref<T, ::cuda::thread_scope_device>;

struct SwigluEpilogue {
  static constexpr bool kFetches = false;
  static constexpr bool kFinishes = true;
  std::uint16_t* out;
  std::int64_t stride;
  std::int32_t* exponents;
  float* numbers;  // [token][channel] float32, of this launch
  SwigluProgress* progress;
  int channels;
  int num_tokens;

  __device__ void begin() const {
    if (blockIdx.x == 0 && threadIdx.x < num_tokens) exponents[threadIdx.x] = 0;
  }

  // Whether the output was a large one.
  __device__ bool store(const Int4Output& output, float lower, float upper, float r,
                        const float*) const {
    const int channel = output.strip * layout::RowOrder::kHalfStrip + output.g;
    const int token = output.token;
    if (channel >= channels) return false;
    const float gate = lower * r;
    const float silu = __fdiv_rn(gate, 1.0F + expf(-gate));
    const float h = silu * (upper * r);
    out[token * stride + channel] = ptx::saturated_f16(h);
    numbers[static_cast<std::int64_t>(token) * channels + channel] = h;
    const bool large = fabsf(h) > 0x1p15F;
    ptx::global_max_if(large, &progress->largest[token], __float_as_uint(fabsf(h)));
    return large;
  }

  // `large`: of any thread's store(). All threads of all blocks.
  __device__ void finish(bool large) const {
    const bool claims = __syncthreads_or(large) != 0;
    DeviceAtomic<unsigned long long> done(progress->done[gridDim.x]);
    if (!claims) {
      if (threadIdx.x == 0) done.fetch_add(1, ::cuda::memory_order_release);
      return;
    }
    __shared__ bool mine;
    if (threadIdx.x == 0) {
      mine =
          DeviceAtomic<unsigned>(progress->claims).fetch_add(1, ::cuda::memory_order_relaxed) == 0;
      unsigned long long count = done.fetch_add(1, ::cuda::memory_order_acq_rel) + 1;
      // All blocks of a launch run at a time, so those that are missing get there.
      while (mine && count % gridDim.x != 0) count = done.load(::cuda::memory_order_acquire);
    }
    __syncthreads();
    if (mine) round_again();
  }

 private:
  __device__ __noinline__ void round_again() const {
    for (int token = 0; token < num_tokens; ++token) {
      const float largest = __uint_as_float(progress->largest[token]);
      if (largest == 0.0F) continue;
      const std::int32_t e = swiglu_exponent(largest);
      const float* h = numbers + static_cast<std::int64_t>(token) * channels;
      for (int i = threadIdx.x; i < channels; i += blockDim.x) {
        out[token * stride + i] = ptx::saturated_f16(ldexpf(h[i], -e));
      }
      if (threadIdx.x == 0) exponents[token] = e;
    }
    __syncthreads();
    if (threadIdx.x < num_tokens) progress->largest[threadIdx.x] = 0;
    if (threadIdx.x == 0) progress->claims = 0;
  }
};

}  // namespace

void int4_gate_up_swiglu(const GateUpSwigluArgs& a, const Int4Matrix& w, LaunchContext& context) {
  check_int4_operand(a.x.data, a.x.row_stride, sizeof(float));
  auto* numbers = static_cast<float*>(
      context.scratch(ScratchUse::SwigluNumbers, sizeof(float) * kMaxInt4Tokens * a.out.cols));
  auto* progress = static_cast<SwigluProgress*>(
      context.scratch(ScratchUse::SwigluProgress, sizeof(SwigluProgress)));
  for (std::int64_t first = 0; first < a.x.rows; first += kMaxInt4Tokens) {
    const auto count = static_cast<int>(std::min<std::int64_t>(kMaxInt4Tokens, a.x.rows - first));
    const SwigluEpilogue epilogue{a.out.row<std::uint16_t>(first),
                                  a.out.row_stride,
                                  a.out_exponents + first,
                                  numbers,
                                  progress,
                                  static_cast<int>(a.out.cols),
                                  count};
    const NormedOperand operand{a.x.row<float>(first), a.x.row_stride, a.eps};
    launch_int4_projection<kFewBatchWarpgroups>("gate_up_swiglu", w, count, operand, epilogue,
                                                context);
  }
}

}  // namespace fut::cuda
