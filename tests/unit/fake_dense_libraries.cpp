// Stand-ins for cuBLAS and cuSOLVER whose device is the host: what GPTQ calls of them, columns first as
// they count, element by element. Only what is asked of them is done: another type or a missing stream is a
// status.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/dense_numbers.h"
#include "kernels/numeric/formats.h"

namespace {

using namespace fut::cuda;

constexpr int kInvalid = 7;
struct Handle {
  void* stream = nullptr;
};

int create(void** handle) {
  *handle = new Handle;
  return 0;
}
int destroy(void* handle) {
  delete static_cast<Handle*>(handle);
  return 0;
}
int set_stream(void* handle, void* stream) {
  static_cast<Handle*>(handle)->stream = stream;
  return 0;
}
bool has_stream(void* handle) {
  return static_cast<Handle*>(handle)->stream != nullptr;
}

// The workspace is written, as the real one is.
bool use_room(void* on_device, std::size_t device_bytes, void* on_host, std::size_t host_bytes) {
  if (device_bytes != 64 || host_bytes != 16) return false;
  std::memset(on_device, 0x7F, device_bytes);
  std::memset(on_host, 0x7F, host_bytes);
  return true;
}

template <class T, class Read>
void multiply(int transposed_a, int transposed_b, int m, int n, int k, T alpha, const Read& a,
              int lda, const Read& b, int ldb, T beta, T* c, int ldc) {
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < m; ++i) {
      T sum = 0;
      for (int p = 0; p < k; ++p) {
        const std::int64_t at_a =
            transposed_a != 0 ? p + std::int64_t{i} * lda : i + std::int64_t{p} * lda;
        const std::int64_t at_b =
            transposed_b != 0 ? j + std::int64_t{p} * ldb : p + std::int64_t{j} * ldb;
        sum += a(at_a) * b(at_b);
      }
      T& out = c[i + std::int64_t{j} * ldc];
      out = beta == 0 ? alpha * sum : alpha * sum + beta * out;
    }
  }
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default"))) int

EXPORTED cublasCreate_v2(void** handle) {
  return create(handle);
}
EXPORTED cublasDestroy_v2(void* handle) {
  return destroy(handle);
}
EXPORTED cublasSetStream_v2(void* handle, void* stream) {
  return set_stream(handle, stream);
}
EXPORTED cublasGetVersion_v2(void*, int* version) {
  *version = 130100;
  return 0;
}
EXPORTED cusolverGetVersion(int* version) {
  *version = 12004;
  return 0;
}
EXPORTED cublasDgemm_v2(void* handle, int op_a, int op_b, int m, int n, int k, const double* alpha,
                        const double* a, int lda, const double* b, int ldb, const double* beta,
                        double* c, int ldc) {
  if (!has_stream(handle) || lda < (op_a == kAsItIs ? m : k) || ldc < m) return kInvalid;
  if (c == nullptr) return kCublasNoMemory;
  struct Read {
    const double* data;
    double operator()(std::int64_t i) const { return data[i]; }
  };
  multiply(op_a, op_b, m, n, k, *alpha, Read{a}, lda, Read{b}, ldb, *beta, c, ldc);
  return 0;
}
EXPORTED cublasGemmEx(void* handle, int op_a, int op_b, int m, int n, int k, const void* alpha,
                      const void* a, int type_a, int lda, const void* b, int type_b, int ldb,
                      const void* beta, void* c, int type_c, int ldc, int compute, int algorithm) {
  if (!has_stream(handle) || type_a != kBf16 || type_b != kBf16 || type_c != kF32 ||
      compute != kComputeF32 || algorithm != kAnyAlgorithm) {
    return kInvalid;
  }
  struct Read {
    const std::uint16_t* data;
    float operator()(std::int64_t i) const { return fut::bf16_to_f32(data[i]); }
  };
  multiply(op_a, op_b, m, n, k, *static_cast<const float*>(alpha),
           Read{static_cast<const std::uint16_t*>(a)}, lda,
           Read{static_cast<const std::uint16_t*>(b)}, ldb, *static_cast<const float*>(beta),
           static_cast<float*>(c), ldc);
  return 0;
}

EXPORTED cusolverDnCreate(void** handle) {
  return create(handle);
}
EXPORTED cusolverDnDestroy(void* handle) {
  return destroy(handle);
}
EXPORTED cusolverDnSetStream(void* handle, void* stream) {
  return set_stream(handle, stream);
}
EXPORTED cusolverDnCreateParams(void** parameters) {
  return create(parameters);
}
EXPORTED cusolverDnDestroyParams(void* parameters) {
  return destroy(parameters);
}
EXPORTED cusolverDnXpotrf_bufferSize(void*, void*, int, std::int64_t, int, const void*,
                                     std::int64_t, int, std::size_t* on_device,
                                     std::size_t* on_host) {
  *on_device = 64;
  *on_host = 16;
  return 0;
}
// A = U^T U, columns first; the strict lower triangle is poison to whoever reads it.
EXPORTED cusolverDnXpotrf(void* handle, void*, int uplo, std::int64_t n, int type, void* matrix,
                          std::int64_t lda, int compute, void* on_device, std::size_t device_bytes,
                          void* on_host, std::size_t host_bytes, int* info) {
  if (!has_stream(handle) || uplo != kUpper || type != kF64 || compute != kF64 ||
      !use_room(on_device, device_bytes, on_host, host_bytes)) {
    return kInvalid;
  }
  auto* a = static_cast<double*>(matrix);
  const auto at = [&](std::int64_t row, std::int64_t col) -> double& { return a[row + col * lda]; };
  *info = 0;
  for (std::int64_t j = 0; j < n; ++j) {
    for (std::int64_t i = 0; i <= j; ++i) {
      double sum = at(i, j);
      for (std::int64_t k = 0; k < i; ++k) sum -= at(k, i) * at(k, j);
      if (i < j) {
        at(i, j) = sum / at(i, i);
      } else if (sum > 0) {
        at(j, j) = std::sqrt(sum);
      } else {
        *info = static_cast<int>(j + 1);
        return 0;
      }
    }
  }
  return 0;
}
EXPORTED cusolverDnXtrtri_bufferSize(void*, int, int, std::int64_t, int, void*, std::int64_t,
                                     std::size_t* on_device, std::size_t* on_host) {
  *on_device = 64;
  *on_host = 16;
  return 0;
}
EXPORTED cusolverDnXtrtri(void* handle, int uplo, int diagonal, std::int64_t n, int type,
                          void* matrix, std::int64_t lda, void* on_device, std::size_t device_bytes,
                          void* on_host, std::size_t host_bytes, int* info) {
  if (!has_stream(handle) || uplo != kUpper || diagonal != kAnyDiagonal || type != kF64 ||
      !use_room(on_device, device_bytes, on_host, host_bytes)) {
    return kInvalid;
  }
  auto* a = static_cast<double*>(matrix);
  const auto at = [&](std::int64_t row, std::int64_t col) -> double& { return a[row + col * lda]; };
  *info = 0;
  for (std::int64_t j = 0; j < n; ++j) {  // column by column, from the diagonal up
    const double own = 1 / at(j, j);
    for (std::int64_t i = 0; i < j; ++i) {
      double sum = 0;
      for (std::int64_t k = i; k < j; ++k) sum += at(i, k) * at(k, j);
      at(i, j) = -sum * own;
    }
    at(j, j) = own;
  }
  return 0;
}
