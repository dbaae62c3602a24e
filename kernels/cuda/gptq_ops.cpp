// With J the reversal of indices, J H J = L L^T gives U = J L^-1 J; see inverse_upper_factor of
// loader/dense_linear.h. Interfaces of the libraries are compared with their headers here.
#include "kernels/cuda/gptq_ops.h"

#include <cublas_v2.h>
#include <cusolverDn.h>
#include <fmt/format.h>
#include <type_traits>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/dense_numbers.h"
#include "kernels/cuda/offline_ops.h"

namespace fut::cuda {
namespace {

static_assert(kAsItIs == CUBLAS_OP_N && kTransposed == CUBLAS_OP_T &&
              kUpper == CUBLAS_FILL_MODE_UPPER && kAnyDiagonal == CUBLAS_DIAG_NON_UNIT);
static_assert(kF32 == CUDA_R_32F && kF64 == CUDA_R_64F && kBf16 == CUDA_R_16BF &&
              kComputeF32 == CUBLAS_COMPUTE_32F && kAnyAlgorithm == CUBLAS_GEMM_DEFAULT);
static_assert(CUBLAS_STATUS_SUCCESS == 0 && CUSOLVER_STATUS_SUCCESS == 0 &&
              CUBLAS_STATUS_ALLOC_FAILED == kCublasNoMemory &&
              CUSOLVER_STATUS_ALLOC_FAILED == kCusolverNoMemory);
static_assert(
    std::is_same_v<decltype(&cublasGetVersion_v2), cublasStatus_t (*)(cublasHandle_t, int*)> &&
    std::is_same_v<decltype(&cusolverGetVersion), cusolverStatus_t (*)(int*)>);
static_assert(
    std::is_same_v<decltype(&cublasDgemm_v2),
                   cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int,
                                      int, int, const double*, const double*, int, const double*,
                                      int, const double*, double*, int)>);
static_assert(
    std::is_same_v<decltype(&cusolverDnXpotrf_bufferSize),
                   cusolverStatus_t (*)(cusolverDnHandle_t, cusolverDnParams_t, cublasFillMode_t,
                                        std::int64_t, cudaDataType, const void*, std::int64_t,
                                        cudaDataType, std::size_t*, std::size_t*)>);
static_assert(std::is_same_v<decltype(&cusolverDnXpotrf),
                             cusolverStatus_t (*)(cusolverDnHandle_t, cusolverDnParams_t,
                                                  cublasFillMode_t, std::int64_t, cudaDataType,
                                                  void*, std::int64_t, cudaDataType, void*,
                                                  std::size_t, void*, std::size_t, int*)>);
static_assert(
    std::is_same_v<decltype(&cusolverDnXtrtri_bufferSize),
                   cusolverStatus_t (*)(cusolverDnHandle_t, cublasFillMode_t, cublasDiagType_t,
                                        std::int64_t, cudaDataType, void*, std::int64_t,
                                        std::size_t*, std::size_t*)>);
static_assert(
    std::is_same_v<decltype(&cusolverDnXtrtri),
                   cusolverStatus_t (*)(cusolverDnHandle_t, cublasFillMode_t, cublasDiagType_t,
                                        std::int64_t, cudaDataType, void*, std::int64_t, void*,
                                        std::size_t, void*, std::size_t, int*)>);
// C has one function of this name, C++ another one beside it.
static_assert(
    std::is_same_v<
        decltype(cublasGemmEx(cublasHandle_t{}, cublasOperation_t{}, cublasOperation_t{}, 0, 0, 0,
                              static_cast<const void*>(nullptr), static_cast<const void*>(nullptr),
                              cudaDataType{}, 0, static_cast<const void*>(nullptr), cudaDataType{},
                              0, static_cast<const void*>(nullptr), static_cast<void*>(nullptr),
                              cudaDataType{}, 0, cublasComputeType_t{}, cublasGemmAlgo_t{})),
        cublasStatus_t>);

}  // namespace

CudaGptqOps::CudaGptqOps(LaunchContext& context)
    : context_(context),
      libraries_(context.handle(),
                 [this](std::size_t bytes) {
                   // Freeing the one before waits for what uses it.
                   if (!room_ || room_->bytes() < bytes) room_.emplace(bytes);
                   return room_->as<void>();
                 }),
      ignored_(sizeof(std::int32_t)) {}

std::string CudaGptqOps::made_by() const {
  int device = 0;
  FUT_CUDA_CHECK(cudaGetDevice(&device));
  cudaDeviceProp properties = {};
  FUT_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  return fmt::format("{}, {} multiprocessors, {}", properties.name, properties.multiProcessorCount,
                     libraries_.versions());
}

void CudaGptqOps::add_token_products(const TokenProductsArgs& a) {
  check(a);
  libraries_.multiply_tokens(a.left, a.right, a.partial);
  add_partial_sums(a, context_);
}

void CudaGptqOps::inverse_factor(const InverseFactorArgs& a) {
  check(a);
  reverse_hessian(a, context_);
  libraries_.factor_lower(a.upper, a.n, a.failed);
  clear_upper(a.upper, a.n, context_);
  libraries_.invert_lower(a.upper, a.n, ignored_.as<std::int32_t>());
  turn_round(a.upper, a.n, context_);
}

void CudaGptqOps::add_product(const AddProductArgs& a) {
  check(a);
  libraries_.multiply({a.c, a.a, a.b, a.b_transposed, 1, a.adds ? 1.0 : 0.0});
}

GptqOps& CudaOfflineOps::gptq() {
  if (gptq_ == nullptr) gptq_ = std::make_unique<CudaGptqOps>(context_);
  return *gptq_;
}

}  // namespace fut::cuda
