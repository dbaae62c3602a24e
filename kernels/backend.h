// The seam: memory and ops. Two final implementations, nothing derives further. The forward pass
// above it is written once; the virtual calls below are all that differ between devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/nvml.h"
#include "kernels/ops.h"
#include "kernels/ops_offline.h"
#include "kernels/step_advance.h"

namespace fut {

class Backend;

// One allocation in a backend's memory; freed with the object. Move-only.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Backend* owner, void* data, std::size_t bytes)
      : owner_(owner), data_(data), bytes_(bytes) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  template <class T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data_);
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  Backend* owner_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Host memory that uploads start from, in pieces that are filled and sent over and over: how much comes
// in fast. Threads may use different pieces at a time; a piece belongs to the thread that took it last.
class Staging {
 public:
  virtual ~Staging() = default;  // what is under way has ended

  // The memory of a piece, once nothing is copied from it any more.
  [[nodiscard]] virtual std::span<std::byte> take(int piece) = 0;
  // Begins to copy bytes of the piece to the device.
  virtual void send(int piece, std::span<const std::byte> source, void* destination) = 0;
  // Waits for all that was sent. Throws Runtime where some of it failed.
  virtual void finish() = 0;
};

// How many numbers were clipped to the largest of E4M3 since the backend was made: unseen text whose
// values outgrow the scales that calibration froze. A sequence that ended while the device was ahead of
// the host has its last step counted again.
struct SaturationCounts {
  std::uint64_t operands = 0;  // normalised inputs; 0 by the choice of their scale
  std::uint64_t attention_outputs = 0;
  std::uint64_t swiglu_outputs = 0;
};

// Of a backend's memory.
struct MemoryState {
  std::size_t total_bytes = 0;
  std::size_t free_bytes = 0;  // what allocations can still take
  bool is_the_hosts = false;
};

// What kernels depend on of a model.
struct ModelSizes {
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  bool plain = false;  // float32 throughout
};

class Backend {
 public:
  using Procedure = std::function<void()>;

  virtual ~Backend() = default;

  [[nodiscard]] virtual std::string description() const = 0;  // "CPU, 2 threads"
  // Why the ops cannot run a model of these sizes, with the numbers; empty where they can.
  [[nodiscard]] virtual std::string fault(const ModelSizes& sizes) const = 0;

  [[nodiscard]] virtual MemoryState memory() const = 0;
  // 256-byte aligned, contents undefined. Throws Capacity with wanted and free bytes. Zero bytes is
  // an empty buffer.
  [[nodiscard]] virtual DeviceBuffer allocate(std::size_t bytes) = 0;
  // Memory that the host reads and writes, too; 256-byte aligned.
  [[nodiscard]] virtual DeviceBuffer allocate_shared(std::size_t bytes) = 0;
  // In the order of the ops; the source may change once it returns.
  virtual void upload(void* destination, std::span<const std::byte> source) = 0;
  // For what comes in beside the ops, which must not be using it. Throws Capacity.
  [[nodiscard]] virtual std::unique_ptr<Staging> make_staging(int pieces,
                                                              std::size_t bytes_each) = 0;
  virtual void download(std::span<std::byte> destination, const void* source) = 0;
  virtual void synchronize() = 0;
  // Whether ops return before they are done.
  [[nodiscard]] virtual bool runs_ahead() const = 0;
  // Whether all that was launched is done. Throws where some of it failed.
  [[nodiscard]] virtual bool idle() = 0;
  // Records `body`, which must only launch ops, for replay. A backend without recording returns it.
  [[nodiscard]] virtual Procedure capture(Procedure body) = 0;
  // Which of the ways to hand out a decode step suits so many sequences times KV heads and this
  // RaggedBatch::longest_context: who replays a step that was recorded for another kind gets the same results,
  // later.
  [[nodiscard]] virtual int context_kind(int items, int longest_context) const = 0;

  [[nodiscard]] virtual SaturationCounts saturations() const = 0;

  // Microseconds of each of `runs` runs of `body`, one after the other, by the device's own clock.
  [[nodiscard]] virtual std::vector<double> time_runs(const Procedure& body, int runs) = 0;
  // Bytes a second of nothing but reading memory that no cache holds: the roof of what is bound by it.
  // Takes memory for the time being, more than caches hold. Throws Capacity.
  [[nodiscard]] virtual double measure_read_roof() = 0;

  // Operations a second of nothing but products of E4M3 numbers, at the clock that they leave: the roof of
  // prompts' products. 0 on the CPU, which has no such thing.
  [[nodiscard]] virtual double measure_product_roof() = 0;

  virtual void expand(const ExpandArgs& a) = 0;
  virtual void embed(const EmbedArgs& a) = 0;
  virtual void qkv_rope_append(const QkvRopeAppendArgs& a) = 0;
  virtual void attention(const AttentionArgs& a) = 0;
  virtual void linear_residual(const LinearResidualArgs& a) = 0;
  virtual void gate_up_swiglu(const GateUpSwigluArgs& a) = 0;
  virtual void lm_head(const LmHeadArgs& a) = 0;
  virtual void sample(const SampleArgs& a) = 0;
  virtual void advance(const StepState& state) = 0;

  // What quantising asks; null where the host's own loops serve.
  [[nodiscard]] virtual OfflineOps* offline_ops() = 0;

 protected:
  friend class DeviceBuffer;
  virtual void deallocate(void* data) noexcept = 0;
};

// What --device asks for.
struct DeviceRequest {
  enum class Kind { Auto, Cpu, Cuda };
  Kind kind = Kind::Auto;
  int cuda_index = 0;
  int cpu_threads = 0;         // 0: all cores
  bool record_graphs = true;   // Cuda: launches of a decode step are recorded once
  int failing_allocation = 0;  // for tests: the backend's n-th allocation fails; 0: none does
  int long_context = 0;        // for tests: the first context of another kind; 0: as measured
};

// A device that was looked for and how that went; one line each for --list-devices.
struct DeviceReport {
  std::string name;  // "cuda:0 NVIDIA H200, compute capability 9.0, 139.8 GiB"
  bool usable = false;
  std::string reason;  // why not, when not usable
};
[[nodiscard]] std::vector<DeviceReport> list_devices();

// Everything about GPUs that decides whether one can be used, for whoever has to find out why not.
struct GpuState {
  int index = 0;  // as in cuda:N; -1: the CUDA runtime does not show it
  std::string name, uuid, pci_bus_id;
  std::string capability;                // "9.0"; empty: not known
  std::string fault;                     // why the kernels cannot run on it
  MemoryState memory;                    // zeros: not known
  std::vector<nvml::Process> processes;  // others' on it
};
struct GpuSurvey {
  std::string kernels_for;  // the compute capability of this build's kernels; empty: it has none
  std::string runtime_version;  // of the CUDA runtime in this build, "13.0"
  std::string driver_version;   // "580.159.04"; empty: not known
  std::string driver_cuda;      // the newest CUDA that the driver runs, "13.0"; empty: no driver
  nvml::Fault management_fault = nvml::Fault::None;  // why less is known
  std::string management_reason;                     // the same in words
  std::string fault;  // why the runtime shows no device; empty: it shows some
  std::vector<GpuState> devices;
};
[[nodiscard]] GpuSurvey survey_gpus();

// Makes the backend that `request` names. Auto takes the CPU where no GPU can run this build's
// kernels and puts the reason into `notice`. Throws Device, naming what is missing, where Cuda was
// asked for.
[[nodiscard]] std::unique_ptr<Backend> make_backend(const DeviceRequest& request,
                                                    std::string& notice);

}  // namespace fut
