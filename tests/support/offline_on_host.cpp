// Contracts are in kernels/ops_offline.h; each op is the loader's or engine's loop on a copy.
#include "tests/support/offline_on_host.h"

#include <algorithm>
#include <cmath>

#include "engine/quantize_layer.h"
#include "kernels/numeric/formats.h"
#include "loader/packers.h"
#include "tests/support/forwarding_backend.h"
#include "tests/support/gptq_on_host.h"

namespace fut::test {
namespace {

template <class T>
HostMatrix copy_of(const MatrixView<T>& w) {
  HostMatrix out("w", w.rows, w.cols);
  std::copy_n(w.data, out.values.size(), out.values.data());
  return out;
}

QuantizedMatrix codes_of(std::int64_t rows, std::int64_t cols, int group_size,
                         const std::int8_t* codes, const std::uint16_t* scales) {
  QuantizedMatrix q(rows, cols, group_size);
  std::copy_n(codes, q.codes.size(), q.codes.data());
  std::copy_n(scales, q.scales.size(), q.scales.data());
  return q;
}

class HostOfflineOps final : public OfflineOps {
 public:
  void round_to_bf16(const RoundToBf16Args& a) override {
    check(a);
    std::transform(a.values, a.values + a.count, a.out, f32_to_bf16);
  }

  void normalise(const NormaliseArgs& a) override {
    check(a);
    for (std::int64_t t = 0; t < a.x.rows; ++t) {
      const auto* x = a.x.row<std::uint16_t>(t);
      float squares = 0;
      for (std::int64_t c = 0; c < a.x.cols; ++c) squares += bf16_to_f32(x[c]) * bf16_to_f32(x[c]);
      const float r = 1 / std::sqrt(squares / static_cast<float>(a.x.cols) + a.eps);
      for (std::int64_t c = 0; c < a.x.cols; ++c) {
        a.out.row<std::uint16_t>(t)[c] = f32_to_bf16(bf16_to_f32(x[c]) * r);
      }
    }
  }

  void column_sums(const ColumnSumsArgs& a) override {
    check(a);
    for (std::int64_t t = 0; t < a.x.rows; ++t) {
      for (std::int64_t c = 0; c < a.x.cols; ++c) {
        const float value = bf16_to_f32(a.x.row<std::uint16_t>(t)[c]);
        a.squares[c] += static_cast<double>(value) * value;
        a.largest[c] = std::max(a.largest[c], std::fabs(value));
      }
    }
  }

  void shift(const ShiftArgs& a) override {
    check(a);
    for (std::int64_t r = 0; r < a.w.rows; ++r) {
      for (std::int64_t c = 0; c < a.w.cols; ++c) {
        const int of_row = a.row_exponents == nullptr ? 0 : a.row_exponents[r];
        const int of_column = a.column_exponents == nullptr ? 0 : a.column_exponents[c];
        a.w.row(r)[c] = std::ldexp(a.w.row(r)[c], of_row - of_column);
      }
    }
  }

  void round_to_int4(const RoundToInt4Args& a) override {
    check(a);
    const HostMatrix w = copy_of(a.w);
    const auto bad =
        std::ranges::find_if_not(w.values, [](float value) { return std::fabs(value) < 0x1p127F; });
    *a.first_bad = std::min(*a.first_bad, bad == w.values.end()
                                              ? *a.first_bad
                                              : static_cast<std::uint64_t>(bad - w.values.begin()));
    if (bad != w.values.end()) return;
    std::vector<float> importance;
    if (a.importance != nullptr) importance.assign(a.importance, a.importance + w.cols);
    const QuantizedMatrix q = quantize_rtn(
        w, importance, a.group_size, a.searched ? ScaleRule::Searched : ScaleRule::MinMax, {});
    std::ranges::copy(q.codes, a.codes);
    std::ranges::copy(q.scales, a.scales);
  }

  // A row at a time: relative_error() gives a row's quotient alone.
  void weighted_errors(const WeightedErrorsArgs& a) override {
    check(a);
    const HostMatrix w = copy_of(a.w);
    const QuantizedMatrix q = codes_of(w.rows, w.cols, a.group_size, a.codes, a.scales);
    for (std::int64_t r = 0; r < w.rows; ++r) {
      double error = 0, energy = 0;
      for (std::int64_t c = 0; c < w.cols; ++c) {
        const double value = w.row(r)[c];
        const double off = value - decode_int4(q.row(r)[c], {q.row_scales(r)[c / q.group_size]});
        error += static_cast<double>(a.importance[c]) * off * off;
        energy += static_cast<double>(a.importance[c]) * value * value;
      }
      a.errors[r] = error;
      a.energies[r] = energy;
    }
  }

  void pack_int4(const PackInt4Args& a) override {
    check(a);
    const QuantizedMatrix q =
        codes_of(a.order.source_rows, a.tile.cols, a.tile.group, a.codes, a.scales);
    std::ranges::copy(fut::pack_int4(q, a.order, {}), a.packed);
  }

  void pack_e4m3(const PackE4m3Args& a) override {
    check(a);
    HostMatrix w = copy_of(a.w);
    for (std::int64_t r = 0; a.divisors != nullptr && r < w.rows; ++r) {
      for (std::int64_t c = 0; c < w.cols; ++c) {
        w.row(r)[c] /= a.divisors[c / a.columns_per_divisor];
      }
    }
    const PackedE4m3 packed = fut::pack_e4m3(w, {});
    std::ranges::copy(packed.codes, a.codes);
    std::ranges::copy(packed.scales, a.scales);
  }

  [[nodiscard]] GptqOps& gptq() override { return gptq_; }

 private:
  HostGptqOps gptq_;
};

std::unique_ptr<Backend> make_cpu() {
  std::string notice;
  return make_backend({.kind = DeviceRequest::Kind::Cpu, .cpu_threads = 1}, notice);
}

// The CPU backend must live before it is handed on to.
struct OwnedCpu {
  std::unique_ptr<Backend> cpu = make_cpu();
};

class OfflineCpuBackend final : private OwnedCpu, public ForwardingBackend {
 public:
  explicit OfflineCpuBackend(std::uint64_t* allocated)
      : ForwardingBackend(*cpu), allocated_(allocated) {}
  [[nodiscard]] DeviceBuffer allocate(std::size_t bytes) override {
    if (allocated_ != nullptr) *allocated_ += bytes;
    return ForwardingBackend::allocate(bytes);
  }
  [[nodiscard]] OfflineOps* offline_ops() override { return &offline_; }

 private:
  HostOfflineOps offline_;
  std::uint64_t* allocated_;
};

}  // namespace

std::unique_ptr<Backend> offline_cpu_backend(std::uint64_t* allocated) {
  return std::make_unique<OfflineCpuBackend>(allocated);
}

}  // namespace fut::test
