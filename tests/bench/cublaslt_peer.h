// cuBLASLt's plain products beside the program's own, in the same run: the library is looked for while
// running, not linked, and may be missing.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/runtime.h"

namespace fut::test {

// Y[M, N] = X[M, K] W[N, K]^T, results in BF16, operands E4M3 (1 byte, fast accumulation) or BF16 (2).
struct PeerShape {
  std::int64_t tokens = 0, rows = 0, cols = 0;
  int code_bytes = 1;
};

class CublasLtPeer {
 public:
  // FUT_CUBLASLT names the library's file; without it the usual names are tried.
  CublasLtPeer();
  ~CublasLtPeer();
  CublasLtPeer(const CublasLtPeer&) = delete;
  CublasLtPeer& operator=(const CublasLtPeer&) = delete;

  [[nodiscard]] bool is_there() const { return state_ != nullptr; }
  // How many ways to do it the library offers, at most 8, the one it likes best first.
  int choose(const PeerShape& shape);
  // One of them; what it launches can be recorded.
  void multiply(int way, const void* x, const void* weights, void* out,
                const cuda::Stream& stream) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fut::test
