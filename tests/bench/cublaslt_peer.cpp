// Looking for the library, and its calls.
#include "tests/bench/cublaslt_peer.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cublasLt.h>
#include <dlfcn.h>
#include <stdexcept>
#include <string>

namespace fut::test {
namespace {

constexpr std::size_t kWorkspaceBytes = 64U << 20;
constexpr int kMostWays = 8;

void require(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw std::runtime_error(std::string(what) + ": " + std::to_string(static_cast<int>(status)));
}

}  // namespace

struct CublasLtPeer::State {
  void* library = nullptr;
  cublasLtHandle_t handle = nullptr;
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_product = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_product = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) find = nullptr;
  decltype(&cublasLtMatmul) multiply = nullptr;
  // Of the shape chosen last; a benchmark does not give back the few before.
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t weights = nullptr, x = nullptr, out = nullptr;
  std::array<cublasLtMatmulHeuristicResult_t, kMostWays> ways{};
  cuda::DeviceMemory workspace{kWorkspaceBytes};

  template <class Function>
  bool look_up(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
    return function != nullptr;
  }
  bool look_up_all() {
    return look_up(create, "cublasLtCreate") && look_up(destroy, "cublasLtDestroy") &&
           look_up(create_product, "cublasLtMatmulDescCreate") &&
           look_up(set_product, "cublasLtMatmulDescSetAttribute") &&
           look_up(create_layout, "cublasLtMatrixLayoutCreate") &&
           look_up(create_preference, "cublasLtMatmulPreferenceCreate") &&
           look_up(set_preference, "cublasLtMatmulPreferenceSetAttribute") &&
           look_up(find, "cublasLtMatmulAlgoGetHeuristic") && look_up(multiply, "cublasLtMatmul");
  }
};

CublasLtPeer::CublasLtPeer() {
  const char* named = std::getenv("FUT_CUBLASLT");
  for (const char* name : {named, "libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13"}) {
    if (name == nullptr) continue;
    void* library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    auto state = std::make_unique<State>();
    state->library = library;
    if (!state->look_up_all() || state->create(&state->handle) != CUBLAS_STATUS_SUCCESS) continue;
    std::printf("cuBLASLt: %s\n", name);
    state_ = std::move(state);
    return;
  }
  std::puts("cuBLASLt: not found; FUT_CUBLASLT may name its file");
}

CublasLtPeer::~CublasLtPeer() {
  if (state_ != nullptr) static_cast<void>(state_->destroy(state_->handle));
}

int CublasLtPeer::choose(const PeerShape& s) {
  State& state = *state_;
  const cudaDataType_t type = s.code_bytes == 1 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
  require(state.create_product(&state.product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "product");
  // Columns first, as the library has them: out^T[N, M] = (weights^T[K, N])^T x^T[K, M].
  const cublasOperation_t transposed = CUBLAS_OP_T;
  require(state.set_product(state.product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                            sizeof(transposed)),
          "transposed weights");
  if (s.code_bytes == 1) {
    const std::int8_t fast = 1;
    require(state.set_product(state.product, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof(fast)),
            "fast accumulation");
  }
  const auto size = [](std::int64_t n) { return static_cast<std::uint64_t>(n); };
  require(state.create_layout(&state.weights, type, size(s.cols), size(s.rows), s.cols), "weights");
  require(state.create_layout(&state.x, type, size(s.cols), size(s.tokens), s.cols), "x");
  require(state.create_layout(&state.out, CUDA_R_16BF, size(s.rows), size(s.tokens), s.rows),
          "out");
  cublasLtMatmulPreference_t preference = nullptr;
  require(state.create_preference(&preference), "preference");
  require(state.set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                               &kWorkspaceBytes, sizeof(kWorkspaceBytes)),
          "workspace");
  int found = 0;
  require(state.find(state.handle, state.product, state.weights, state.x, state.out, state.out,
                     preference, kMostWays, state.ways.data(), &found),
          "heuristics");
  return found;
}

void CublasLtPeer::multiply(int way, const void* x, const void* weights, void* out,
                            const cuda::Stream& stream) const {
  const float one = 1;
  const float zero = 0;
  const auto& algorithm = state_->ways[static_cast<std::size_t>(way)].algo;
  require(state_->multiply(state_->handle, state_->product, &one, weights, state_->weights, x,
                           state_->x, &zero, out, state_->out, out, state_->out, &algorithm,
                           state_->workspace.as<void>(), kWorkspaceBytes, stream.handle()),
          "cublasLtMatmul");
}

}  // namespace fut::test
