// Times of the four INT4 products of a layer, by rows (tokens), on the GPU: graphs of dependent launches
// over copies of the matrix that the second-level cache does not hold until their turn comes again. Prints
// microseconds a launch and bytes of weights a second; with --cliffs every row count from 1 to 33 and
// each step between neighbours that is larger than 8 %.
//
//   int4_ops_cuda_bench [--shape 8b|70b] [--rows FIRST[-LAST]] [--group 64|128] [--cliffs] [PRODUCT ...]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/support/backends.h"

#if FUT_CUDA
#include "kernels/cuda/cuda_backend.h"
#include "kernels/numeric/formats.h"

namespace fut::test {
namespace {

constexpr double kLargestStep = 1.08;
constexpr int kMostRows = 33;                    // one launch takes 32
constexpr std::int64_t kAllBytes = 400LL << 20;  // of the copies of a matrix
constexpr int kLeastCopies = 8;
constexpr int kLeastLaunches = 256;

struct ModelShape {
  const char* name;
  int hidden, ffn, num_q_heads, num_kv_heads;
};
constexpr ModelShape kShapes[] = {{"8b", 4096, 14336, 32, 8}, {"70b", 8192, 28672, 64, 8}};
constexpr int kHeadDim = 128;
constexpr const char* kProducts[] = {"qkv", "o", "gate_up", "down"};

struct Options {
  ModelShape shape = kShapes[0];
  std::vector<int> rows = {1, 2, 4, 8, 16, 32};
  int group = 128;
  bool cliffs = false;
  std::vector<std::string> products;
};

class Arrays {
 public:
  explicit Arrays(Backend& backend) : backend_(backend) {}

  template <class T>
  T* put(std::span<const T> values) {
    buffers_.push_back(backend_.allocate(values.size_bytes()));
    backend_.upload(buffers_.back().as<void>(), std::as_bytes(values));
    return buffers_.back().as<T>();
  }
  template <class T>
  T* zeros(std::int64_t count) {
    return put(std::span<const T>(std::vector<T>(static_cast<std::size_t>(count))));
  }
  float* normal(std::int64_t count) { return put(std::span<const float>(normal_values(count, 1))); }

 private:
  Backend& backend_;
  std::vector<DeviceBuffer> buffers_;
};

// A matrix of random codes, several times.
class Matrix {
 public:
  Matrix(Arrays& arrays, const layout::RowOrder& order, int cols, int group) {
    matrix_.tile = {order.packed_rows(), cols, group};
    matrix_.order = order;
    matrix_.rows = order.source_rows;
    matrix_.cols = cols;
    std::vector<std::uint8_t> packed(static_cast<std::size_t>(bytes()));
    std::mt19937 engine(1);
    for (std::uint8_t& byte : packed) byte = static_cast<std::uint8_t>(engine());
    const std::uint16_t scale = f32_to_bf16(1e-3F);
    const auto record = static_cast<std::size_t>(matrix_.tile.record_bytes());
    for (std::size_t end = record; end <= packed.size(); end += record) {
      for (std::size_t i = layout::Int4Tile::kScaleBytes; i > 0; i -= sizeof(scale)) {
        std::memcpy(packed.data() + end - i, &scale, sizeof(scale));
      }
    }
    const auto copies = std::max<std::int64_t>(kLeastCopies, (kAllBytes + bytes() - 1) / bytes());
    for (std::int64_t i = 0; i < copies; ++i) {
      places_.push_back(arrays.put(std::span<const std::uint8_t>(packed)));
    }
  }

  [[nodiscard]] std::int64_t bytes() const { return matrix_.tile.bytes(); }
  [[nodiscard]] int copies() const { return static_cast<int>(places_.size()); }
  [[nodiscard]] Weights copy(int i) const {
    Int4Matrix m = matrix_;
    m.packed = places_[static_cast<std::size_t>(i % copies())];
    return m;
  }

 private:
  Int4Matrix matrix_;
  std::vector<const std::uint8_t*> places_;
};

ActivationView view(void* data, DType dtype, std::int64_t rows, std::int64_t cols) {
  return {data, dtype, rows, cols, cols};
}

class Bench {
 public:
  Bench(Backend& backend, const ModelShape& shape)
      : backend_(backend), shape_(shape), arrays_(backend) {
    x_ = arrays_.normal(std::int64_t{kMostRows} * shape.hidden);
    const std::vector<std::uint16_t> halves(
        static_cast<std::size_t>(std::int64_t{kMostRows} * shape.ffn), f32_to_f16(0.5F));
    f16_ = arrays_.put(std::span<const std::uint16_t>(halves));
    out_ = arrays_.zeros<float>(std::int64_t{kMostRows} * shape.ffn);
    k_ = arrays_.zeros<float>(std::int64_t{kMostRows} * shape.num_kv_heads * kHeadDim);
    v_ = arrays_.zeros<float>(std::int64_t{kMostRows} * shape.num_kv_heads * kHeadDim);
    rope_ = arrays_.normal(kHeadDim / 2);
    zeros_ = arrays_.zeros<std::int32_t>(2 * kMostRows);
    exponents_ = arrays_.zeros<std::int32_t>(kMostRows);
  }

  // Microseconds of a launch for each number of rows.
  std::vector<double> run(const std::string& product, const Options& options) {
    Arrays weights(backend_);
    const int heads = shape_.num_q_heads * kHeadDim;
    const bool down = product == "down";
    using layout::RowOrder;
    if (product == "qkv") {
      const RowOrder order = RowOrder::qkv(shape_.num_q_heads, shape_.num_kv_heads, kHeadDim);
      const Matrix w(weights, order, shape_.hidden, options.group);
      return sweep(product, w, options, [&](int m, int i) { qkv(m, w.copy(i)); });
    }
    if (product == "gate_up") {
      const Matrix w(weights, RowOrder::gate_up(shape_.ffn), shape_.hidden, options.group);
      return sweep(product, w, options, [&](int m, int i) {
        backend_.gate_up_swiglu({.x = view(x_, DType::F32, m, shape_.hidden),
                                 .eps = 1e-5F,
                                 .weights = w.copy(i),
                                 .out_exponents = exponents_,
                                 .out = view(out_, DType::F16, m, shape_.ffn)});
      });
    }
    const int cols = down ? shape_.ffn : heads;
    const Matrix w(weights, RowOrder::natural(shape_.hidden), cols, options.group);
    return sweep(product, w, options, [&](int m, int i) {
      backend_.linear_residual({.x = view(f16_, DType::F16, m, cols),
                                .x_exponents = down ? exponents_ : nullptr,
                                .weight = w.copy(i),
                                .residual = view(out_, DType::F32, m, shape_.hidden)});
    });
  }

 private:
  void qkv(int m, Weights w) {
    QkvRopeAppendArgs a;
    a.x = view(x_, DType::F32, m, shape_.hidden);
    a.eps = 1e-5F;
    a.weights = std::move(w);
    a.num_q_heads = shape_.num_q_heads;
    a.num_kv_heads = shape_.num_kv_heads;
    a.head_dim = kHeadDim;
    a.rope_cos = rope_;
    a.rope_sin = rope_;
    a.rope_positions = 1;
    a.batch = {m, m, zeros_, zeros_, zeros_, zeros_, zeros_, zeros_, zeros_};
    a.q_out = view(out_, DType::F32, m, shape_.num_q_heads * kHeadDim);
    a.k_out = view(k_, DType::F32, m, shape_.num_kv_heads * kHeadDim);
    a.v_out = view(v_, DType::F32, m, shape_.num_kv_heads * kHeadDim);
    backend_.qkv_rope_append(a);
  }

  std::vector<double> sweep(const std::string& product, const Matrix& w, const Options& options,
                            const std::function<void(int rows, int copy)>& op) {
    std::vector<double> times;
    for (const int m : options.rows) {
      times.push_back(measure(w.copies(), [&](int i) { op(m, i); }));
      std::printf("%-8s %-4s group %-3d rows %-2d %8.2f us  %5.2f TB/s\n", product.c_str(),
                  shape_.name, options.group, m, times.back(),
                  static_cast<double>(w.bytes()) / times.back() * 1e-6);
      std::fflush(stdout);
    }
    return times;
  }

  // The median of some runs of a graph.
  double measure(int copies, const std::function<void(int)>& op) {
    constexpr int kWarmUp = 3, kRuns = 15;
    const int launches = (kLeastLaunches + copies - 1) / copies * copies;
    const auto graph = backend_.capture([&] {
      for (int i = 0; i < launches; ++i) op(i);
    });
    std::vector<double> times = backend_.time_runs(graph, kWarmUp + kRuns);
    times.erase(times.begin(), times.begin() + kWarmUp);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2] / launches;
  }

  Backend& backend_;
  ModelShape shape_;
  Arrays arrays_;
  float *x_, *out_, *k_, *v_, *rope_;
  std::uint16_t* f16_;
  std::int32_t *zeros_, *exponents_;
};

// Says where a row more or less costs more than kLargestStep; returns how often.
int print_cliffs(const std::string& product, const Options& o, const std::vector<double>& times) {
  int cliffs = 0;
  for (std::size_t i = 1; i < times.size(); ++i) {
    const double step = times[i] / times[i - 1];
    if (o.rows[i] != o.rows[i - 1] + 1 || std::max(step, 1 / step) <= kLargestStep) continue;
    const bool one_launch = o.rows[i] < kMostRows;
    std::printf("step: %s, %s, rows %d to %d: %.2f to %.2f us, %+.0f %%%s\n", product.c_str(),
                o.shape.name, o.rows[i - 1], o.rows[i], times[i - 1], times[i], 100 * (step - 1),
                one_launch ? "" : " (two launches)");
    if (one_launch) ++cliffs;
  }
  return cliffs;
}

[[noreturn]] void refuse(const char* word) {
  std::fprintf(stderr, "int4_ops_cuda_bench: '%s'; see the head of its source\n", word);
  std::exit(2);
}

std::vector<int> rows_between(int first, int last) {
  std::vector<int> rows;
  for (int m = first; m <= last; ++m) rows.push_back(m);
  return rows;
}

Options parse(std::span<char*> words) {
  Options o;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string word = words[i];
    const char* value = i + 1 < words.size() ? words[i + 1] : "";
    const auto product = std::find(std::begin(kProducts), std::end(kProducts), word);
    if (product != std::end(kProducts)) {
      o.products.push_back(word);
    } else if (word == "--cliffs") {
      o.cliffs = true;
      o.rows = rows_between(1, kMostRows);
    } else if (word == "--shape" || word == "--group" || word == "--rows") {
      ++i;
      int first = 0, last = 0;
      const int numbers = std::sscanf(value, "%d-%d", &first, &last);
      if (word == "--shape") {
        const auto* shape =
            std::find_if(std::begin(kShapes), std::end(kShapes),
                         [&](const ModelShape& s) { return s.name == std::string(value); });
        if (shape == std::end(kShapes)) refuse(value);
        o.shape = *shape;
      } else if (word == "--group") {
        if (first != 64 && first != 128) refuse(value);
        o.group = first;
      } else {
        if (numbers == 1) last = first;
        if (numbers < 1 || first < 1 || last < first || last > kMostRows) refuse(value);
        o.rows = rows_between(first, last);
      }
    } else if (!word.starts_with("--benchmark_")) {  // what all benchmarks are given
      refuse(words[i]);
    }
  }
  if (o.products.empty()) o.products.assign(std::begin(kProducts), std::end(kProducts));
  return o;
}

int run(std::span<char*> words) {
  const Options options = parse(words);
  cuda::CudaBackend backend(0);
  std::printf("%s\n", backend.description().c_str());
  Bench bench(backend, options.shape);
  std::vector<std::vector<double>> times;
  for (const std::string& product : options.products) times.push_back(bench.run(product, options));
  if (!options.cliffs) return 0;
  int cliffs = 0;
  for (std::size_t i = 0; i < times.size(); ++i) {
    cliffs += print_cliffs(options.products[i], options, times[i]);
  }
  std::printf("%d steps over %.0f %% between neighbouring numbers of rows\n", cliffs,
              100 * (kLargestStep - 1));
  return 0;
}

}  // namespace
}  // namespace fut::test

int main(int argc, char** argv) {
  return fut::test::run(std::span(argv, static_cast<std::size_t>(argc)));
}

#else

int main() {
  std::puts("built without CUDA: nothing to measure");
  return 0;
}

#endif
