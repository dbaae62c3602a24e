// GPTQ of one matrix on a device: as quantize_gptq and upstream_target of loader/gptq.h, a slab of rows
// at a time, through the ops of kernels/ops_gptq.h. Where moments come from is quantize_device_gptq.h.
#pragma once

#include <functional>
#include <string>

#include "kernels/backend.h"
#include "loader/gptq.h"
#include "loader/model_config.h"
#include "loader/report_card.h"

namespace fut {

// The largest of the matrices that are quantised.
struct MatrixLimits {
  std::int64_t rows = 0, cols = 0;
};
[[nodiscard]] MatrixLimits matrix_limits(const ModelConfig& config);

// Rows that go through everything at once: enough to keep a device busy, and memory for them beside
// that of three square matrices is little.
[[nodiscard]] std::int64_t gptq_slab_rows(std::int64_t cols);

class GptqOnDevice {
 public:
  // `backend` has offline_ops(); `tick` is called before every slab, and what it throws ends quantize().
  // Throws Device where its libraries are missing, as OfflineOps::gptq, and Capacity.
  GptqOnDevice(Backend& backend, const MatrixLimits& limits, const GptqOptions& options,
               std::function<void()> tick);
  // Bytes that it allocates.
  [[nodiscard]] static std::uint64_t bytes(const MatrixLimits& limits);

  // The moments of a matrix's inputs: first none, then window by window what the matrix sees and what it
  // was made for, BF16.
  void begin(std::int64_t cols);
  void add(ConstActivationView x, ConstActivationView original);

  // Quantises `w`, whose inputs were added, into q. The report has no relative error.
  // slab_rows: gptq_slab_rows or less; changes the time, and no bit but what the device's library of products
  // may make of another height. Throws Data as factor_hessian and quantize_row.
  MatrixReport quantize(const std::string& name, MatrixView<const float> w, const Int4Rows& q,
                        std::int64_t slab_rows);
  // What rounding weighed columns with, [cols]: of the matrix that was quantised last.
  [[nodiscard]] const float* importance() const { return importance_.as<float>(); }

 private:
  struct Losses {
    double rounded = 0, kept = 0, energy = 0;
  };
  [[nodiscard]] GptqFactor factor(const std::string& name);
  void aim(const float* w, std::int64_t rows);
  void quantize_slab(const std::string& name, std::int64_t first, const Int4Rows& q, Losses& sums);
  void refuse_bad_weight(const std::string& name, std::int64_t first);
  void sweep(const Int4Rows& q);
  void descend(const Int4Rows& q, bool fits_scales);
  void measure(const Int4Rows& q, const DeviceBuffer& losses);
  void multiply(const double* rows, const double* square, double* out, std::int64_t count,
                bool transposed = false);
  [[nodiscard]] std::vector<double> numbers(const DeviceBuffer& buffer, std::int64_t count) const;
  [[nodiscard]] MatrixView<const double> square(const DeviceBuffer& buffer) const {
    return {buffer.as<double>(), cols_, cols_, cols_};
  }

  Backend& backend_;
  GptqOps& ops_;
  GptqOptions options_;
  std::function<void()> tick_;
  std::int64_t cols_ = 0;
  bool has_sums_ = false;
  GptqFactor factor_;  // without U
  double ridge_ = 0;
  DeviceBuffer h_, g_, upper_;  // [cols, cols]; upper_ is for partial sums until there is a factor
  DeviceBuffer diagonal_, importance_, order_;
  // Of a slab.
  DeviceBuffer left_, right_, negated_;  // float64, [rows, cols] and [rows, 128]
  DeviceBuffer target_, codes_, scales_;
  DeviceBuffer energies_, rounded_losses_, losses_;
  DeviceBuffer first_bad_, failed_;
};

}  // namespace fut
