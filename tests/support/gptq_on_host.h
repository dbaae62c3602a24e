// What GPTQ asks of a device, done by the host: products and the factor by the loader's own code, rows
// by plain loops.
#pragma once

#include "kernels/ops_gptq.h"

namespace fut::test {

class HostGptqOps final : public GptqOps {
 public:
  [[nodiscard]] std::string made_by() const override { return "the host"; }
  void add_token_products(const TokenProductsArgs& a) override;
  void finish_moments(const FinishMomentsArgs& a) override;
  void inverse_factor(const InverseFactorArgs& a) override;
  void add_product(const AddProductArgs& a) override;
  void gather_columns(const GatherColumnsArgs& a) override;
  void correct_rows(const CorrectRowsArgs& a) override;
  void residuals(const ResidualsArgs& a) override;
  void row_dots(const RowDotsArgs& a) override;
  void sweep_block(const SweepBlockArgs& a) override;
  void descend_block(const DescendBlockArgs& a) override;
  void keep_better(const KeepBetterArgs& a) override;
  void dequantise(const DequantiseArgs& a) override;
};

}  // namespace fut::test
