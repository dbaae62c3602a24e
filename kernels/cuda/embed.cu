// embed on the GPU: rows of the table, widened and rounded to the type of out. Contract in ops.h.
// launch  one block of 256 threads for each token; threads stride over the columns
// bound   memory: M * H * (dtype + out dtype) bytes, neighbouring threads on neighbouring columns
#include <cuda_runtime.h>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/numeric/formats.h"

namespace fut::cuda {
namespace {

constexpr int kThreads = 256;

template <DType kDType>
__device__ float widened(const void* table, std::int64_t i) {
  if constexpr (kDType == DType::F32) {
    return static_cast<const float*>(table)[i];
  } else {
    const std::uint16_t bits = static_cast<const std::uint16_t*>(table)[i];
    return kDType == DType::BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
  }
}

__device__ void store(float value, float* out) {
  *out = value;
}
__device__ void store(float value, std::uint16_t* out) {
  *out = f32_to_bf16(value);
}

// Out is float, or std::uint16_t for BF16.
template <DType kDType, class Out>
__global__ void __launch_bounds__(kThreads)
    embed_kernel(const std::int32_t* token_ids, const void* table, ActivationView out) {
  ptx::take_turn();
  const std::int64_t token = blockIdx.x;
  const std::int64_t first = token_ids[token] * out.cols;
  Out* row = static_cast<Out*>(out.data) + token * out.row_stride;
  for (std::int64_t k = threadIdx.x; k < out.cols; k += kThreads) {
    store(widened<kDType>(table, first + k), row + k);
  }
}

template <DType kDType>
void launch(const EmbedArgs& a, StreamHandle stream) {
  const LaunchShape shape{dim3(static_cast<unsigned>(a.num_tokens)), dim3(kThreads)};
  if (a.out.dtype == DType::F32) {
    launch_dependent("embed", embed_kernel<kDType, float>, shape, stream, a.token_ids,
                     a.weight.data, a.out);
  } else {
    launch_dependent("embed", embed_kernel<kDType, std::uint16_t>, shape, stream, a.token_ids,
                     a.weight.data, a.out);
  }
}

}  // namespace

void embed(const EmbedArgs& a, LaunchContext& context) {
  check(a);
  switch (a.weight.dtype) {
    case DType::F32:
      launch<DType::F32>(a, context.handle());
      break;
    case DType::F16:
      launch<DType::F16>(a, context.handle());
      break;
    case DType::BF16:
      launch<DType::BF16>(a, context.handle());
      break;
    case DType::E4M3:
    case DType::U8:
      break;  // check() has refused them
  }
}

}  // namespace fut::cuda
