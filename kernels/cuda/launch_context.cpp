// Memory that ops share.
#include "kernels/cuda/launch_context.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/int4_ops.h"

namespace fut::cuda {
namespace {

// In a stream of its own: the one of the ops may be recording.
void fill_with_zeros(const DeviceMemory& memory) {
  const Stream stream;
  FUT_CUDA_CHECK(cudaMemsetAsync(memory.as<void>(), 0, memory.bytes(), stream.handle()));
  stream.synchronize();
}

// What there was before stays, so more than is asked for: batches that gain a row at a time would leave
// one behind for each.
std::size_t grown(std::size_t before, std::size_t wanted) {
  constexpr std::size_t kMostAhead = std::size_t{16} << 20;
  return std::max(wanted, before + std::min(before, kMostAhead));
}

}  // namespace

LaunchContext::LaunchContext(int long_context)
    : machine_(query_int4_gemm_machine()),
      long_context_(long_context > 0 ? long_context : kLongContext),
      saturations_(3 * sizeof(std::uint64_t)) {
  fill_with_zeros(saturations_);
}

void* LaunchContext::scratch(ScratchUse use, std::size_t bytes) {
  auto& blocks = scratch_[static_cast<std::size_t>(use)];
  if (blocks.empty() || blocks.back().bytes() < bytes) {
    DeviceMemory memory(blocks.empty() ? bytes : grown(blocks.back().bytes(), bytes));
    fill_with_zeros(memory);
    blocks.push_back(std::move(memory));
  }
  return blocks.back().as<void>();
}

}  // namespace fut::cuda
