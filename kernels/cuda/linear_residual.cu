// linear_residual on the GPU, INT4 weights: R += x W^T for 1 to 32 tokens. Contract in ops.h.
// launch  the INT4 main loop (int4_gemm.cuh), one block a multiprocessor, dependent launch
// bound   memory: bytes of the packed matrix
#include <algorithm>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/int4_gemm_launch.cuh"

namespace fut::cuda {
namespace {

// Tokens that are F16 already.
struct F16Operand {
  static constexpr bool kNormalised = false;
  const std::uint16_t* x;
  std::int64_t stride;

  // Columns k .. k + 3 of a token.
  __device__ uint2 load(int token, int k, float&) const {
    return *reinterpret_cast<const uint2*>(x + token * stride + k);
  }
};

// Adds to a float32 residual.
struct ResidualEpilogue {
  float* residual;
  std::int64_t stride;
  const std::int32_t* exponents;  // may be null
  int rows;

  __device__ void store(int strip, int g, int token, float lower, float upper, float) const {
    const float power = exponents == nullptr ? 1.0F : ldexpf(1.0F, exponents[token]);
    float* row = residual + token * stride + strip * layout::Int4Tile::kStripRows;
    const int first = strip * layout::Int4Tile::kStripRows + g;
    if (first < rows) row[g] += lower * power;
    if (first + 8 < rows) row[g + 8] += upper * power;
  }
};

void launch_tokens(const LinearResidualArgs& a, const Int4Matrix& w, std::int64_t first, int count,
                   const Int4GemmMachine& machine, StreamHandle stream) {
  auto plan = plan_int4_gemm(w.tile, count, machine);
  if (!plan && count == 1) no_such_instance({});
  if (!plan) {
    launch_tokens(a, w, first, count / 2, machine, stream);
    launch_tokens(a, w, first + count / 2, count - count / 2, machine, stream);
    return;
  }
  plan->args.packed = w.packed;
  const F16Operand operand{a.x.row<std::uint16_t>(first), a.x.row_stride};
  const ResidualEpilogue epilogue{a.residual.row<float>(first), a.residual.row_stride,
                                  a.x_exponents == nullptr ? nullptr : a.x_exponents + first,
                                  static_cast<int>(w.rows)};
  launch_int4_gemm("linear_residual", w.tile.group, *plan, operand, epilogue, stream);
}

template <int kCluster>
int max_clusters() {
  const auto kernel =
      int4_gemm_kernel<Int4GemmConfig<1, kCluster, 2, 2, 0, 128>, F16Operand, ResidualEpilogue>;
  FUT_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes));
  cudaLaunchConfig_t launch = {};
  launch.gridDim = kCluster;
  launch.blockDim = kInt4GemmThreads;
  launch.dynamicSmemBytes = kMaxSharedBytes;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {kCluster, 1, 1};
  launch.attrs = &attribute;
  launch.numAttrs = 1;
  int clusters = 0;
  FUT_CUDA_CHECK(cudaOccupancyMaxActiveClusters(&clusters, kernel, &launch));
  return clusters;
}

}  // namespace

Int4GemmMachine query_int4_gemm_machine() {
  int device = 0;
  FUT_CUDA_CHECK(cudaGetDevice(&device));
  Int4GemmMachine machine;
  FUT_CUDA_CHECK(
      cudaDeviceGetAttribute(&machine.num_multiprocessors, cudaDevAttrMultiProcessorCount, device));
  machine.max_clusters_of_2 = max_clusters<2>();
  machine.max_clusters_of_4 = max_clusters<4>();
  machine.max_clusters_of_8 = max_clusters<8>();
  return machine;
}

void linear_residual(const LinearResidualArgs& a, const Int4GemmMachine& machine,
                     StreamHandle stream) {
  check(a);
  const auto* w = std::get_if<Int4Matrix>(&a.weight);
  check_int4_operand(a.x.data, a.x.row_stride, w != nullptr);
  for (std::int64_t first = 0; first < a.x.rows; first += kMaxInt4Tokens) {
    const auto count = static_cast<int>(std::min<std::int64_t>(kMaxInt4Tokens, a.x.rows - first));
    launch_tokens(a, *w, first, count, machine, stream);
  }
}

}  // namespace fut::cuda
