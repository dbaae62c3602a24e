// Numbers of the libraries' interfaces, as cublas_api.h, cusolverDn.h and library_types.h have them.
#pragma once

namespace fut::cuda {

inline constexpr int kAsItIs = 0;         // CUBLAS_OP_N
inline constexpr int kTransposed = 1;     // CUBLAS_OP_T
inline constexpr int kUpper = 1;          // CUBLAS_FILL_MODE_UPPER
inline constexpr int kAnyDiagonal = 0;    // CUBLAS_DIAG_NON_UNIT
inline constexpr int kF32 = 0;            // CUDA_R_32F
inline constexpr int kF64 = 1;            // CUDA_R_64F
inline constexpr int kBf16 = 14;          // CUDA_R_16BF
inline constexpr int kComputeF32 = 68;    // CUBLAS_COMPUTE_32F
inline constexpr int kAnyAlgorithm = -1;  // CUBLAS_GEMM_DEFAULT

// Statuses of a library that had no memory.
inline constexpr int kCublasNoMemory = 3;    // CUBLAS_STATUS_ALLOC_FAILED
inline constexpr int kCusolverNoMemory = 2;  // CUSOLVER_STATUS_ALLOC_FAILED

}  // namespace fut::cuda
