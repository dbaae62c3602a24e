// Times of the ops with weights that lie row after row, on the GPU: graphs of dependent launches, each
// with weights that the second-level cache does not hold any more. Prints microseconds a launch and
// bytes of weights a second. Shapes of Llama-3.1-8B.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tests/support/backends.h"

#if FUT_CUDA
#include "kernels/cuda/cuda_backend.h"

namespace fut::test {
namespace {

constexpr int kTokens[] = {1, 2, 4, 8, 16, 32};
constexpr int kTokensOfTall[] = {1, 2, 4, 8, 9, 16, 17, 24, 32};  // of matrices with many rows
constexpr std::int64_t kAllBytes = 400LL << 20;                   // of the copies of a matrix
constexpr int kHidden = 4096;
constexpr int kFfn = 14336;
constexpr int kVocab = 128256;
constexpr int kQHeads = 32;
constexpr int kKvHeads = 8;
constexpr int kHeadDim = 128;

// Zeros of the GPU are as fast as numbers, and a norm of zeros is none with an eps.
class Arrays {
 public:
  explicit Arrays(cuda::CudaBackend& backend) : backend_(backend) {}
  template <class T>
  T* take(std::int64_t count) {
    buffers_.push_back(backend_.allocate(static_cast<std::size_t>(count) * sizeof(T)));
    const std::vector<std::byte> zeros(buffers_.back().bytes());
    backend_.upload(buffers_.back().as<void>(), zeros);
    return buffers_.back().as<T>();
  }

 private:
  cuda::CudaBackend& backend_;
  std::vector<DeviceBuffer> buffers_;
};

// Launches `op` some times for each copy of its weights, as one graph; the median of some runs of it.
void measure(cuda::CudaBackend& backend, const std::string& name, std::int64_t bytes, int copies,
             const std::function<void(int)>& op) {
  const int launches = 16 * copies;
  const auto graph = backend.capture([&] {
    for (int i = 0; i < launches; ++i) op(i % copies);
  });
  const cuda::Event begin;
  const cuda::Event end;
  std::vector<float> times;
  for (int run = 0; run < 12; ++run) {
    begin.record(backend.context().stream());
    graph();
    end.record(backend.context().stream());
    end.synchronize();
    if (run >= 2) times.push_back(end.milliseconds_since(begin));
  }
  std::sort(times.begin(), times.end());
  const double us = 1e3 * static_cast<double>(times[times.size() / 2]) / launches;
  std::printf("%-28s %8.2f us  %5.2f TB/s\n", name.c_str(), us,
              static_cast<double>(bytes) / us * 1e-6);
  std::fflush(stdout);
}

int copies_of(std::int64_t bytes) {
  return static_cast<int>(std::max<std::int64_t>(2, (kAllBytes + bytes - 1) / bytes));
}

// One matrix of `rows` x `cols`, all its copies.
struct Weights8 {
  std::int64_t rows, cols;
  int copies;
  std::uint8_t* codes;
  float* scales;

  Weights8(Arrays& arrays, std::int64_t n, std::int64_t k)
      : rows(n),
        cols(k),
        copies(copies_of(n * k)),
        codes(arrays.take<std::uint8_t>(n * k * copies)),
        scales(arrays.take<float>(n)) {}
  [[nodiscard]] std::int64_t bytes() const { return rows * cols; }
  [[nodiscard]] Weights e4m3(int i) const {
    return E4m3Matrix{codes + i * bytes(), scales, rows, cols};
  }
  [[nodiscard]] Weights int8(int i) const {
    return Int8Matrix{reinterpret_cast<std::int8_t*>(codes + i * bytes()), scales, rows, cols};
  }
  // The same bytes as half as many rows of BF16.
  [[nodiscard]] Weights bf16(int i) const {
    return DenseMatrix{DType::BF16, codes + i * bytes(), rows / 2, cols};
  }
};

class Bench {
 public:
  explicit Bench(cuda::CudaBackend& backend)
      : backend_(backend),
        arrays_(backend),
        x_(arrays_.take<float>(32 * kFfn)),
        out_(arrays_.take<float>(32LL * kVocab)),
        rows_(arrays_.take<std::int32_t>(32)),
        indptr_(arrays_.take<std::int32_t>(64)),
        pages_(arrays_.take<std::uint16_t>(layout::KvPageDense{kKvHeads, kHeadDim}.elements())) {}

  void head() {
    const Weights8 w(arrays_, kVocab, kHidden);
    std::printf("%-28s %8.2f us\n", "lm_head INT8, read alone",
                1e6 * static_cast<double>(w.bytes()) / backend_.measure_read_roof());
    for (const int m : kTokensOfTall) {
      measure(backend_, "lm_head INT8, M " + std::to_string(m), w.bytes(), w.copies, [&](int i) {
        backend_.lm_head({view(x_, DType::F32, m, kHidden),
                          rows_,
                          m,
                          nullptr,
                          1e-5F,
                          w.int8(i),
                          {},
                          MatrixView<float>{out_, m, kVocab, kVocab}});
      });
    }
    rescored_head(w);
  }

  // Logits that differ: all alike is the selection's worst case.
  void rescored_head(const Weights8& w) {
    const DenseMatrix wide{DType::BF16, w.codes, kVocab, kHidden};
    const auto ones = std::vector<std::byte>(static_cast<std::size_t>(w.bytes()), std::byte{1});
    backend_.upload(w.codes + w.bytes(), ones);
    const std::vector<float> scales = normal_values(kVocab, 1);
    backend_.upload(w.scales, std::as_bytes(std::span(scales)));
    float* x = arrays_.take<float>(kHidden);
    const std::vector<float> numbers(kHidden, 1.0F);
    backend_.upload(x, std::as_bytes(std::span(numbers)));
    measure(backend_, "the same with rescoring, M 1", w.bytes(), 1, [&](int) {
      backend_.lm_head({view(x, DType::F32, 1, kHidden), rows_, 1, nullptr, 1e-5F, w.int8(1), wide,
                        MatrixView<float>{out_, 1, kVocab, kVocab}});
    });
  }

  void qkv() {
    const Weights8 w(arrays_, (kQHeads + 2 * kKvHeads) * kHeadDim, kHidden);
    for (const int m : kTokens) {
      measure(backend_, "qkv FP8, M " + std::to_string(m), w.bytes(), w.copies, [&](int i) {
        QkvRopeAppendArgs a;
        a.x = view(x_, DType::F32, m, kHidden);
        a.eps = 1e-5F;
        a.weights = w.e4m3(i);
        a.num_q_heads = kQHeads;
        a.num_kv_heads = kKvHeads;
        a.head_dim = kHeadDim;
        a.rope_cos = x_;
        a.rope_sin = x_;
        a.rope_positions = 1;
        a.batch = {m, m, rows_, rows_, indptr_, indptr_, indptr_, indptr_, indptr_};
        a.kv = {pages_, 1, {kKvHeads, kHeadDim}, DType::BF16};
        a.q_out = view(out_, DType::BF16, m, kQHeads * kHeadDim);
        backend_.qkv_rope_append(a);
      });
    }
  }

  void gate_up() {
    const Weights8 w(arrays_, 2 * kFfn, kHidden);
    for (const int m : kTokensOfTall) {
      measure(backend_, "gate_up FP8, M " + std::to_string(m), w.bytes(), w.copies, [&](int i) {
        backend_.gate_up_swiglu({.x = view(x_, DType::F32, m, kHidden),
                                 .eps = 1e-5F,
                                 .weights = w.e4m3(i),
                                 .out = view(out_, DType::E4M3, m, kFfn)});
      });
    }
  }

  void residual(const char* name, std::int64_t cols) {
    const Weights8 w(arrays_, kHidden, cols);
    for (const int m : kTokens) {
      measure(backend_, std::string(name) + " FP8, M " + std::to_string(m), w.bytes(), w.copies,
              [&](int i) {
                backend_.linear_residual({.x = view(x_, DType::E4M3, m, cols),
                                          .weight = w.e4m3(i),
                                          .residual = view(out_, DType::F32, m, kHidden)});
              });
    }
    for (const int m : {1, 8, 32}) {
      measure(backend_, std::string(name) + " BF16 of half the rows, M " + std::to_string(m),
              w.bytes(), w.copies, [&](int i) {
                backend_.linear_residual({.x = view(x_, DType::BF16, m, cols),
                                          .weight = w.bf16(i),
                                          .residual = view(out_, DType::F32, m, kHidden / 2)});
              });
    }
  }

 private:
  static ActivationView view(void* data, DType dtype, std::int64_t rows, std::int64_t cols) {
    return {data, dtype, rows, cols, cols};
  }

  cuda::CudaBackend& backend_;
  Arrays arrays_;
  float* x_;
  float* out_;
  std::int32_t* rows_;
  std::int32_t* indptr_;  // zeros: every token stands at position 0 of one page
  std::uint16_t* pages_;
};

}  // namespace
}  // namespace fut::test

int main() {
  fut::cuda::CudaBackend backend(0);
  std::printf("%s\n", backend.description().c_str());
  const auto run = [&](auto part) { part(fut::test::Bench(backend)); };
  run([](auto&& bench) { bench.head(); });
  run([](auto&& bench) { bench.qkv(); });
  run([](auto&& bench) { bench.residual("o", fut::test::kHidden); });
  run([](auto&& bench) { bench.gate_up(); });
  run([](auto&& bench) { bench.residual("down", fut::test::kFfn); });
  return 0;
}

#else

int main() {
  std::puts("built without CUDA: nothing to measure");
  return 0;
}

#endif
