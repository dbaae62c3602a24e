// The ops of ops.h on the CPU: one function each, same arguments, same check(). What they share is
// in Workers; they keep nothing between calls.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/vector_loops.h"
#include "kernels/ops.h"
#include "kernels/step_advance.h"

namespace fut::cpu {

// Memory for what an op needs in passing: taken piece by piece, given back when the op ends.
class Scratch {
 public:
  // Makes room for `elements` floats and `pieces` pieces; what was taken before is void.
  void reserve(std::int64_t elements, std::int64_t pieces);
  // `elements` floats, undefined, at a cache line of their own.
  [[nodiscard]] float* take(std::int64_t elements);

 private:
  struct alignas(64) CacheLine {
    float values[16];
  };
  std::vector<CacheLine> lines_;  // grows to the largest need so far
  std::size_t num_taken_ = 0;
};

// How many numbers were clipped to E4M3's largest, for Backend::saturations(). Threads add what one
// row had.
struct SaturationCounters {
  std::atomic<std::uint64_t> operands{0};
  std::atomic<std::uint64_t> attention_outputs{0};
  std::atomic<std::uint64_t> swiglu_outputs{0};
};
inline void add_clipped(std::atomic<std::uint64_t>& counter, std::int64_t num_clipped) {
  if (num_clipped > 0) {
    counter.fetch_add(static_cast<std::uint64_t>(num_clipped), std::memory_order_relaxed);
  }
}

// The threads, and the inner loops that suit this machine.
struct Workers {
  ThreadPool pool;
  const VectorLoops& loops;
  Scratch scratch;
  SaturationCounters saturations;
};

// Row r of a matrix whatever its type, as the vector loops take it.
[[nodiscard]] inline void* row_address(const ActivationView& view, std::int64_t r) {
  return static_cast<std::byte*>(view.data) + r * view.row_stride * dtype_bytes(view.dtype);
}
[[nodiscard]] inline const void* row_address(const ConstActivationView& view, std::int64_t r) {
  return static_cast<const std::byte*>(view.data) + r * view.row_stride * dtype_bytes(view.dtype);
}

void expand(Workers& workers, const ExpandArgs& a);
void embed(Workers& workers, const EmbedArgs& a);
void qkv_rope_append(Workers& workers, const QkvRopeAppendArgs& a);
void attention(Workers& workers, const AttentionArgs& a);
void linear_residual(Workers& workers, const LinearResidualArgs& a);
void gate_up_swiglu(Workers& workers, const GateUpSwigluArgs& a);
void lm_head(Workers& workers, const LmHeadArgs& a);
void sample(Workers& workers, const SampleArgs& a);
void advance(const StepState& state);

}  // namespace fut::cpu
