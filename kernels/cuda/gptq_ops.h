// The ops of ops_gptq.h on the GPU: kernels of this folder, products and the factor by cuBLAS and cuSOLVER.
// Includes no CUDA header.
#pragma once

#include <optional>

#include "kernels/cuda/dense_libraries.h"
#include "kernels/cuda/gptq_kernels.h"

namespace fut::cuda {

class CudaGptqOps final : public GptqOps {
 public:
  // `context` must outlive it. Throws as DenseLibraries.
  explicit CudaGptqOps(LaunchContext& context);
  [[nodiscard]] std::string made_by() const override;
  void add_token_products(const TokenProductsArgs& a) override;
  void finish_moments(const FinishMomentsArgs& a) override { cuda::finish_moments(a, context_); }
  void inverse_factor(const InverseFactorArgs& a) override;
  void add_product(const AddProductArgs& a) override;
  void gather_columns(const GatherColumnsArgs& a) override { cuda::gather_columns(a, context_); }
  void correct_rows(const CorrectRowsArgs& a) override { cuda::correct_rows(a, context_); }
  void residuals(const ResidualsArgs& a) override { cuda::residuals(a, context_); }
  void row_dots(const RowDotsArgs& a) override { cuda::row_dots(a, context_); }
  void sweep_block(const SweepBlockArgs& a) override { cuda::sweep_block(a, context_); }
  void descend_block(const DescendBlockArgs& a) override { cuda::descend_block(a, context_); }
  void keep_better(const KeepBetterArgs& a) override { cuda::keep_better(a, context_); }
  void dequantise(const DequantiseArgs& a) override { cuda::dequantise(a, context_); }

 private:
  LaunchContext& context_;
  std::optional<DeviceMemory> room_;  // of the libraries
  DenseLibraries libraries_;
  DeviceMemory ignored_;  // a status that the one before it tells
};

}  // namespace fut::cuda
