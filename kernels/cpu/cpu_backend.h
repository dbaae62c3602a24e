// The CPU as a Backend: host memory with a limit, a pool of threads, and the ops of cpu_ops.h.
#pragma once

#include <unordered_map>

#include "kernels/allocation_count.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_ops.h"

namespace fut::cpu {

// What this process may still use: free memory and swap of the machine, or less where its control
// group allows less.
[[nodiscard]] std::size_t available_memory_bytes();

// "cpu, 2 cores, AVX-512, 6.2 GiB free"
[[nodiscard]] std::string describe_machine();

class CpuBackend final : public Backend {
 public:
  // num_threads 0: one for each core. All live allocations together stay below memory_limit_bytes:
  // the system itself would promise more than it has and end the process later. Vector loops other
  // than the machine's fastest are for tests, and so is long_context: contexts of all kinds are alike.
  explicit CpuBackend(int num_threads, std::size_t memory_limit_bytes = available_memory_bytes(),
                      const VectorLoops& loops = *usable_vector_loops().back(),
                      int failing_allocation = 0, int long_context = 0);

  [[nodiscard]] std::string description() const override;
  [[nodiscard]] std::string fault(const ModelSizes& /*sizes*/) const override { return {}; }
  [[nodiscard]] MemoryState memory() const override {
    return {memory_limit_bytes_, memory_limit_bytes_ - allocated_bytes_, true};
  }
  [[nodiscard]] DeviceBuffer allocate(std::size_t bytes) override;
  [[nodiscard]] DeviceBuffer allocate_shared(std::size_t bytes) override { return allocate(bytes); }
  void upload(void* destination, std::span<const std::byte> source) override;
  [[nodiscard]] std::unique_ptr<Staging> make_staging(int pieces, std::size_t bytes_each) override;
  void download(std::span<std::byte> destination, const void* source) override;
  void synchronize() override {}
  [[nodiscard]] bool runs_ahead() const override { return false; }
  [[nodiscard]] bool idle() override { return true; }
  [[nodiscard]] Procedure capture(Procedure body) override { return body; }
  [[nodiscard]] int context_kind(int /*items*/, int longest_context) const override {
    return long_context_ > 0 && longest_context >= long_context_ ? 1 : 0;
  }
  [[nodiscard]] SaturationCounts saturations() const override;
  [[nodiscard]] std::vector<double> time_runs(const Procedure& body, int runs) override;
  [[nodiscard]] double measure_read_roof() override;
  [[nodiscard]] double measure_product_roof() override { return 0; }

  void expand(const ExpandArgs& a) override { cpu::expand(workers_, a); }
  void embed(const EmbedArgs& a) override { cpu::embed(workers_, a); }
  void qkv_rope_append(const QkvRopeAppendArgs& a) override { cpu::qkv_rope_append(workers_, a); }
  void attention(const AttentionArgs& a) override { cpu::attention(workers_, a); }
  void linear_residual(const LinearResidualArgs& a) override { cpu::linear_residual(workers_, a); }
  void gate_up_swiglu(const GateUpSwigluArgs& a) override { cpu::gate_up_swiglu(workers_, a); }
  void lm_head(const LmHeadArgs& a) override { cpu::lm_head(workers_, a); }
  void sample(const SampleArgs& a) override { cpu::sample(workers_, a); }
  void advance(const StepState& state) override { cpu::advance(state); }

  // The reference is the loader's.
  [[nodiscard]] OfflineOps* offline_ops() override { return nullptr; }

 protected:
  void deallocate(void* data) noexcept override;

 private:
  Workers workers_;
  std::size_t memory_limit_bytes_;
  int long_context_;
  AllocationCount allocations_;
  std::size_t allocated_bytes_ = 0;
  std::unordered_map<void*, std::size_t> live_;  // bytes of each allocation
};

}  // namespace fut::cpu
