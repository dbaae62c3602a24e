// The libraries count columns first: a row-major matrix is to them its own transpose, and its lower
// triangle the upper one. Types and numbers are of cublas_api.h, cusolverDn.h and library_types.h, whose
// names with a version never change; builds with CUDA compare them.
#include "kernels/cuda/dense_libraries.h"

#include <algorithm>
#include <dlfcn.h>

#include "kernels/check.h"
#include "kernels/cuda/dense_numbers.h"
#include "kernels/error.h"

namespace fut::cuda {
namespace {

constexpr std::int64_t kInverseBlock = 256;  // rows that are inverted in one call

using Handle = void*;

// A library that stays in the process for good: what it has left with the driver or with threads may point
// into it.
class Library {
 public:
  // no_memory: its status for that.
  Library(const std::string& name, int no_memory) : name_(name), no_memory_(no_memory) {
    for (const std::string& place : {name, "/usr/local/cuda/lib64/" + name}) {
      handle_ = ::dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
      if (handle_ != nullptr) return;
      if (reason_.empty()) reason_ = ::dlerror();
    }
    throw device_error(
        "{} cannot be opened ({}), and GPTQ on a GPU needs cuBLAS and cuSOLVER of CUDA 13; install "
        "them, or quantise with --device cpu or --method rtn",
        name, reason_);
  }

  template <class Function>
  void look_up(Function*& function, const char* symbol) const {
    function = reinterpret_cast<Function*>(::dlsym(handle_, symbol));
    if (function == nullptr) {
      throw device_error(
          "{} has no {}: another version than CUDA 13's; install that one, or quantise with "
          "--device cpu or --method rtn",
          name_, symbol);
    }
  }
  // Of a call that starts the library.
  void require_start(int status) const {
    if (status == 0) return;
    refuse_shortage(status, "starting");
    throw device_error("{} does not start (status {}); quantise with --device cpu or --method rtn",
                       name_, status);
  }
  void require(int status, const char* call) const {
    if (status == 0) return;
    refuse_shortage(status, call);
    throw runtime_failure("{} of {} failed with status {}; quantise with --device cpu", call, name_,
                          status);
  }

 private:
  void refuse_shortage(int status, const char* call) const {
    if (status != no_memory_) return;
    throw capacity_error(
        "{} of {}: it has no memory left; free some of the device's, or quantise with --device cpu",
        call, name_);
  }

  std::string name_, reason_;
  int no_memory_;
  void* handle_ = nullptr;
};

int narrow(std::int64_t value) {
  FUT_CHECK(value >= 0 && value <= INT32_MAX, "{} rows or columns", value);
  return static_cast<int>(value);
}

}  // namespace

struct DenseLibraries::Functions {
  Library cublas, cusolver;
  Handle blas = nullptr, solver = nullptr, parameters = nullptr;

  int (*create_blas)(Handle*);
  int (*destroy_blas)(Handle);
  int (*set_blas_stream)(Handle, StreamHandle);
  int (*blas_version)(Handle, int*);
  int (*multiply)(Handle, int, int, int, int, int, const double*, const double*, int, const double*,
                  int, const double*, double*, int);
  int (*multiply_any)(Handle, int, int, int, int, int, const void*, const void*, int, int,
                      const void*, int, int, const void*, void*, int, int, int, int);
  int (*create_solver)(Handle*);
  int (*destroy_solver)(Handle);
  int (*set_solver_stream)(Handle, StreamHandle);
  int (*solver_version)(int*);
  int (*create_parameters)(Handle*);
  int (*destroy_parameters)(Handle);
  int (*factor_room)(Handle, Handle, int, std::int64_t, int, const void*, std::int64_t, int,
                     std::size_t*, std::size_t*);
  int (*factor)(Handle, Handle, int, std::int64_t, int, void*, std::int64_t, int, void*,
                std::size_t, void*, std::size_t, std::int32_t*);
  int (*invert_room)(Handle, int, int, std::int64_t, int, void*, std::int64_t, std::size_t*,
                     std::size_t*);
  int (*invert)(Handle, int, int, std::int64_t, int, void*, std::int64_t, void*, std::size_t, void*,
                std::size_t, std::int32_t*);

  explicit Functions(const DenseLibraryNames& names)
      : cublas(names.cublas, kCublasNoMemory), cusolver(names.cusolver, kCusolverNoMemory) {
    cublas.look_up(create_blas, "cublasCreate_v2");
    cublas.look_up(destroy_blas, "cublasDestroy_v2");
    cublas.look_up(set_blas_stream, "cublasSetStream_v2");
    cublas.look_up(blas_version, "cublasGetVersion_v2");
    cublas.look_up(multiply, "cublasDgemm_v2");
    cublas.look_up(multiply_any, "cublasGemmEx");
    cusolver.look_up(create_solver, "cusolverDnCreate");
    cusolver.look_up(destroy_solver, "cusolverDnDestroy");
    cusolver.look_up(set_solver_stream, "cusolverDnSetStream");
    cusolver.look_up(solver_version, "cusolverGetVersion");
    cusolver.look_up(create_parameters, "cusolverDnCreateParams");
    cusolver.look_up(destroy_parameters, "cusolverDnDestroyParams");
    cusolver.look_up(factor_room, "cusolverDnXpotrf_bufferSize");
    cusolver.look_up(factor, "cusolverDnXpotrf");
    cusolver.look_up(invert_room, "cusolverDnXtrtri_bufferSize");
    cusolver.look_up(invert, "cusolverDnXtrtri");
  }
  Functions(const Functions&) = delete;
  Functions& operator=(const Functions&) = delete;
  ~Functions() {
    if (parameters != nullptr) static_cast<void>(destroy_parameters(parameters));
    if (solver != nullptr) static_cast<void>(destroy_solver(solver));
    if (blas != nullptr) static_cast<void>(destroy_blas(blas));
  }
};

DenseLibraries::DenseLibraries(StreamHandle stream, Scratch scratch, const DenseLibraryNames& names)
    : functions_(std::make_unique<Functions>(names)), scratch_(std::move(scratch)) {
  Functions& f = *functions_;
  f.cublas.require_start(f.create_blas(&f.blas));
  f.cublas.require_start(f.set_blas_stream(f.blas, stream));
  f.cusolver.require_start(f.create_solver(&f.solver));
  f.cusolver.require_start(f.set_solver_stream(f.solver, stream));
  f.cusolver.require_start(f.create_parameters(&f.parameters));
}

DenseLibraries::~DenseLibraries() = default;

std::string DenseLibraries::versions() const {
  const Functions& f = *functions_;
  int blas = 0, solver = 0;
  f.cublas.require(f.blas_version(f.blas, &blas), "cublasGetVersion");
  f.cusolver.require(f.solver_version(&solver), "cusolverGetVersion");
  return fmt::format("cuBLAS {}, cuSOLVER {}", blas, solver);
}

void DenseLibraries::multiply(const Product& p) {
  const Functions& f = *functions_;
  f.cublas.require(
      f.multiply(f.blas, p.b_transposed ? kTransposed : kAsItIs, kAsItIs, narrow(p.c.cols),
                 narrow(p.c.rows), narrow(p.a.cols), &p.sign, p.b.data, narrow(p.b.row_stride),
                 p.a.data, narrow(p.a.row_stride), &p.keep, p.c.data, narrow(p.c.row_stride)),
      "cublasDgemm");
}

void DenseLibraries::multiply_tokens(const ConstActivationView& left,
                                     const ConstActivationView& right, float* out) {
  const Functions& f = *functions_;
  const float one = 1, zero = 0;
  const int n = narrow(left.cols);
  f.cublas.require(
      f.multiply_any(f.blas, kAsItIs, kTransposed, n, n, narrow(left.rows), &one, right.data, kBf16,
                     narrow(right.row_stride), left.data, kBf16, narrow(left.row_stride), &zero,
                     out, kF32, n, kComputeF32, kAnyAlgorithm),
      "cublasGemmEx");
}

void DenseLibraries::factor_lower(double* a, std::int64_t n, std::int32_t* failed) {
  const Functions& f = *functions_;
  std::size_t on_device = 0, on_host = 0;
  f.cusolver.require(
      f.factor_room(f.solver, f.parameters, kUpper, n, kF64, a, n, kF64, &on_device, &on_host),
      "cusolverDnXpotrf_bufferSize");
  if (on_host_.size() < on_host) on_host_.resize(on_host);
  f.cusolver.require(f.factor(f.solver, f.parameters, kUpper, n, kF64, a, n, kF64,
                              scratch_(std::max<std::size_t>(on_device, 1)), on_device,
                              on_host_.data(), on_host, failed),
                     "cusolverDnXpotrf");
}

void DenseLibraries::invert_block(double* l, std::int64_t stride, std::int64_t n,
                                  std::int32_t* ignored) {
  const Functions& f = *functions_;
  std::size_t on_device = 0, on_host = 0;
  f.cusolver.require(
      f.invert_room(f.solver, kUpper, kAnyDiagonal, n, kF64, l, stride, &on_device, &on_host),
      "cusolverDnXtrtri_bufferSize");
  if (on_host_.size() < on_host) on_host_.resize(on_host);
  f.cusolver.require(f.invert(f.solver, kUpper, kAnyDiagonal, n, kF64, l, stride,
                              scratch_(std::max<std::size_t>(on_device, 1)), on_device,
                              on_host_.data(), on_host, ignored),
                     "cusolverDnXtrtri");
}

// Rows above a block are done: X21 = -X22 (L21 X11), X22 the block's own inverse. The library's inverse of
// the whole would take an unknown amount of memory.
void DenseLibraries::invert_lower(double* l, std::int64_t n, std::int32_t* ignored) {
  for (std::int64_t begin = 0; begin < n; begin += kInverseBlock) {
    const std::int64_t count = std::min(kInverseBlock, n - begin);
    double* rows = l + begin * n;
    invert_block(rows + begin, n, count, ignored);
    if (begin == 0) continue;
    auto* between = static_cast<double*>(
        scratch_(static_cast<std::size_t>(kInverseBlock * n) * sizeof(double)));
    multiply({{between, count, begin, begin}, {rows, count, begin, n}, {l, begin, begin, n}});
    multiply({{rows, count, begin, n},
              {rows + begin, count, count, n},
              {between, count, begin, begin},
              false,
              -1});
  }
}

}  // namespace fut::cuda
