// The ops of ops_offline.h on the GPU: launchers, as cuda_ops.h has them for a model's. Includes no CUDA
// header.
#pragma once

#include <memory>

#include "kernels/cuda/launch_context.h"
#include "kernels/ops_offline.h"

namespace fut::cuda {

void round_to_bf16(const RoundToBf16Args& a, LaunchContext& context);
void normalise(const NormaliseArgs& a, LaunchContext& context);
void column_sums(const ColumnSumsArgs& a, LaunchContext& context);
void shift(const ShiftArgs& a, LaunchContext& context);
void round_to_int4(const RoundToInt4Args& a, LaunchContext& context);
void weighted_errors(const WeightedErrorsArgs& a, LaunchContext& context);
void pack_int4(const PackInt4Args& a, LaunchContext& context);
void pack_e4m3(const PackE4m3Args& a, LaunchContext& context);

class CudaOfflineOps final : public OfflineOps {
 public:
  // `context` must outlive it.
  explicit CudaOfflineOps(LaunchContext& context) : context_(context) {}
  void round_to_bf16(const RoundToBf16Args& a) override { cuda::round_to_bf16(a, context_); }
  void normalise(const NormaliseArgs& a) override { cuda::normalise(a, context_); }
  void column_sums(const ColumnSumsArgs& a) override { cuda::column_sums(a, context_); }
  void shift(const ShiftArgs& a) override { cuda::shift(a, context_); }
  void round_to_int4(const RoundToInt4Args& a) override { cuda::round_to_int4(a, context_); }
  void weighted_errors(const WeightedErrorsArgs& a) override { cuda::weighted_errors(a, context_); }
  void pack_int4(const PackInt4Args& a) override { cuda::pack_int4(a, context_); }
  void pack_e4m3(const PackE4m3Args& a) override { cuda::pack_e4m3(a, context_); }
  [[nodiscard]] GptqOps& gptq() override;

 private:
  LaunchContext& context_;
  std::unique_ptr<GptqOps> gptq_;  // once it was asked for
};

}  // namespace fut::cuda
