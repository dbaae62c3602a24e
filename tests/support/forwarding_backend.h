// A backend that hands everything on to another one: what a test changes of it, it overrides.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"

namespace fut::test {

// Memory comes from `inner`, which outlives this, and goes back to it through the buffers themselves.
class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(Backend& inner) : inner_(inner) {}

  [[nodiscard]] std::string description() const override { return inner_.description(); }
  [[nodiscard]] std::string fault(const ModelSizes& sizes) const override {
    return inner_.fault(sizes);
  }
  [[nodiscard]] MemoryState memory() const override { return inner_.memory(); }
  [[nodiscard]] DeviceBuffer allocate(std::size_t bytes) override { return inner_.allocate(bytes); }
  [[nodiscard]] DeviceBuffer allocate_shared(std::size_t bytes) override {
    return inner_.allocate_shared(bytes);
  }
  void upload(void* destination, std::span<const std::byte> source) override {
    inner_.upload(destination, source);
  }
  [[nodiscard]] std::unique_ptr<Staging> make_staging(int pieces, std::size_t bytes_each) override {
    return inner_.make_staging(pieces, bytes_each);
  }
  void download(std::span<std::byte> destination, const void* source) override {
    inner_.download(destination, source);
  }
  void synchronize() override { inner_.synchronize(); }
  [[nodiscard]] bool runs_ahead() const override { return inner_.runs_ahead(); }
  [[nodiscard]] bool idle() override { return inner_.idle(); }
  [[nodiscard]] Procedure capture(Procedure body) override {
    return inner_.capture(std::move(body));
  }
  [[nodiscard]] int context_kind(int items, int longest_context) const override {
    return inner_.context_kind(items, longest_context);
  }
  [[nodiscard]] SaturationCounts saturations() const override { return inner_.saturations(); }
  [[nodiscard]] std::vector<double> time_runs(const Procedure& body, int runs) override {
    return inner_.time_runs(body, runs);
  }
  [[nodiscard]] double measure_read_roof() override { return inner_.measure_read_roof(); }
  [[nodiscard]] double measure_product_roof() override { return inner_.measure_product_roof(); }

  void expand(const ExpandArgs& a) override { inner_.expand(a); }
  void embed(const EmbedArgs& a) override { inner_.embed(a); }
  void qkv_rope_append(const QkvRopeAppendArgs& a) override { inner_.qkv_rope_append(a); }
  void attention(const AttentionArgs& a) override { inner_.attention(a); }
  void linear_residual(const LinearResidualArgs& a) override { inner_.linear_residual(a); }
  void gate_up_swiglu(const GateUpSwigluArgs& a) override { inner_.gate_up_swiglu(a); }
  void lm_head(const LmHeadArgs& a) override { inner_.lm_head(a); }
  void sample(const SampleArgs& a) override { inner_.sample(a); }
  void advance(const StepState& state) override { inner_.advance(state); }
  [[nodiscard]] OfflineOps* offline_ops() override { return inner_.offline_ops(); }

 private:
  void deallocate(void* /*data*/) noexcept override {}  // nothing is this backend's own

  Backend& inner_;
};

}  // namespace fut::test
