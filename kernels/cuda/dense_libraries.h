// cuBLAS and cuSOLVER as GPTQ uses them, in terms of row-major matrices. Opened at run time: hundreds of
// megabytes that nothing else in the program needs. Includes no CUDA header, so that tests open stand-ins.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/runtime.h"
#include "kernels/tensor.h"

namespace fut::cuda {

// Files, with folders or as the loader finds them.
struct DenseLibraryNames {
  std::string cublas = "libcublas.so.13";
  std::string cusolver = "libcusolver.so.12";
};

class DenseLibraries {
 public:
  // Memory of the device for what a call needs beside its matrices, until the next call.
  using Scratch = std::function<void*(std::size_t bytes)>;

  // Work goes into `stream`. Throws Device, naming the library, where one cannot be opened, lacks a
  // function or does not start, Capacity where it has no memory to start with.
  DenseLibraries(StreamHandle stream, Scratch scratch, const DenseLibraryNames& names = {});
  DenseLibraries(const DenseLibraries&) = delete;
  DenseLibraries& operator=(const DenseLibraries&) = delete;
  ~DenseLibraries();

  // "cuBLAS 130100, cuSOLVER 12004": what sums depend on beside the device.
  [[nodiscard]] std::string versions() const;

  // C = sign A B + keep C, or A B^T. Throws Runtime with the library's status, or Capacity where it had no
  // memory, as those below.
  struct Product {
    MatrixView<double> c;
    MatrixView<const double> a, b;
    bool b_transposed = false;
    double sign = 1, keep = 0;
  };
  void multiply(const Product& product);
  // out[i, j] = sum over t of left[t, i] * right[t, j], BF16 to float32; out [n, n].
  void multiply_tokens(const ConstActivationView& left, const ConstActivationView& right,
                       float* out);
  // The lower triangle of a becomes its Cholesky factor L; the other one is not read. `failed` [1], of the
  // device: 0, or where a is not positive definite.
  void factor_lower(double* a, std::int64_t n, std::int32_t* failed);
  // Inverse of a lower triangular matrix in place. The strict upper triangle must be zero.
  // `ignored` [1] is written.
  void invert_lower(double* l, std::int64_t n, std::int32_t* ignored);

 private:
  struct Functions;
  void invert_block(double* l, std::int64_t stride, std::int64_t n, std::int32_t* ignored);

  std::unique_ptr<Functions> functions_;
  Scratch scratch_;
  std::vector<std::byte> on_host_;  // of cuSOLVER, until the stream has passed
};

}  // namespace fut::cuda
