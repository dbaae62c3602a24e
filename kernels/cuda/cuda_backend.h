// The GPU as a Backend: memory of one device, one stream, the ops of cuda_ops.h, and graphs. Includes no
// CUDA header.
#pragma once

#include <string>
#include <unordered_map>

#include "kernels/backend.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/offline_ops.h"
#include "kernels/cuda/staging.h"

namespace fut::cuda {

class CudaBackend final : public Backend {
 public:
  // Makes device `index` the current one of this thread, which alone may use the backend.
  // record_graphs false: capture() returns what it is given. The rest: as in DeviceRequest.
  explicit CudaBackend(int index, bool record_graphs = true, int failing_allocation = 0,
                       int long_context = 0);

  [[nodiscard]] std::string description() const override { return description_; }
  [[nodiscard]] std::string fault(const ModelSizes& sizes) const override;
  [[nodiscard]] MemoryState memory() const override;
  [[nodiscard]] DeviceBuffer allocate(std::size_t bytes) override;
  [[nodiscard]] DeviceBuffer allocate_shared(std::size_t bytes) override;
  void upload(void* destination, std::span<const std::byte> source) override;
  [[nodiscard]] std::unique_ptr<Staging> make_staging(int pieces, std::size_t bytes_each) override;
  void download(std::span<std::byte> destination, const void* source) override;
  void synchronize() override { context_.stream().synchronize(); }
  [[nodiscard]] bool runs_ahead() const override { return true; }
  [[nodiscard]] bool idle() override;
  [[nodiscard]] Procedure capture(Procedure body) override;
  [[nodiscard]] int context_kind(int items, int longest_context) const override {
    return static_cast<int>(
        attention_meeting(items, context_.attention_contexts(longest_context), context_.machine()));
  }
  [[nodiscard]] SaturationCounts saturations() const override;
  [[nodiscard]] std::vector<double> time_runs(const Procedure& body, int runs) override;
  [[nodiscard]] double measure_read_roof() override;
  [[nodiscard]] double measure_product_roof() override;

  void expand(const ExpandArgs& a) override { cuda::expand(a, context_); }
  void embed(const EmbedArgs& a) override { cuda::embed(a, context_); }
  void qkv_rope_append(const QkvRopeAppendArgs& a) override { cuda::qkv_rope_append(a, context_); }
  void attention(const AttentionArgs& a) override { cuda::attention(a, context_); }
  void linear_residual(const LinearResidualArgs& a) override { cuda::linear_residual(a, context_); }
  void gate_up_swiglu(const GateUpSwigluArgs& a) override { cuda::gate_up_swiglu(a, context_); }
  void lm_head(const LmHeadArgs& a) override { cuda::lm_head(a, context_); }
  void sample(const SampleArgs& a) override { cuda::sample(a, context_); }
  void advance(const StepState& state) override { cuda::advance(state, context_); }
  [[nodiscard]] OfflineOps* offline_ops() override { return &offline_; }

  [[nodiscard]] LaunchContext& context() { return context_; }

 protected:
  void deallocate(void* data) noexcept override;

 private:
  // Chooses the device before anything that lies on it is made.
  struct Chosen {
    Chosen(int chosen, int failing_allocation);
    int index;
  };
  Chosen chosen_;
  std::string description_;
  bool record_graphs_;
  LaunchContext context_;
  UploadRing uploads_;
  CudaOfflineOps offline_{context_};
  std::unordered_map<void*, DeviceMemory> live_;
  std::unordered_map<void*, PinnedMemory> live_shared_;
};

}  // namespace fut::cuda
