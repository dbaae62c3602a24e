// round_to_int4 on the GPU; contract in ops_offline.h, arithmetic in int4_round.cuh.
// launch  256 threads, 32 groups a block
// bound   arithmetic: see int4_round.cuh
#include <cuda_runtime.h>

#include "kernels/cuda/int4_round.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/offline_ops.h"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/warp.cuh"

namespace fut::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kGroupsOfBlock = kThreads / kGroupLanes;

template <int kPerLane>
__global__ void __launch_bounds__(kThreads) round_int4_kernel(RoundToInt4Args a) {
  ptx::take_turn();
  const std::int64_t group = std::int64_t{blockIdx.x} * kGroupsOfBlock + threadIdx.x / kGroupLanes;
  round_group<kPerLane>(a, group, ptx::lane());
}

template <int kPerLane>
void launch(const RoundToInt4Args& a, LaunchContext& context) {
  const std::int64_t groups = a.w.rows * (a.w.cols / a.group_size);
  const LaunchShape shape{dim3(blocks_for(groups, kGroupsOfBlock)), dim3(kThreads)};
  launch_dependent("round_to_int4", round_int4_kernel<kPerLane>, shape, context.handle(), a);
}

}  // namespace

void round_to_int4(const RoundToInt4Args& a, LaunchContext& context) {
  check(a);
  if (a.group_size == 128) {
    launch<128 / kGroupLanes>(a, context);
  } else {
    launch<64 / kGroupLanes>(a, context);
  }
}

}  // namespace fut::cuda
