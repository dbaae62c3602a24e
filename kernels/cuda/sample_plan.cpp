// How many blocks share a row of logits.
#include "kernels/cuda/sample_plan.h"

#include <bit>

#include "kernels/error.h"

namespace fut::cuda {

SamplePlan plan_sample(std::int64_t vocabulary, int fixed_bytes) {
  constexpr int kCluster = kSampleCluster;
  const std::int64_t slice_ids = ((vocabulary + kCluster - 1) / kCluster + 3) / 4 * 4;
  const std::int64_t bytes = fixed_bytes + slice_ids * 4;
  if (bytes > kSampleSharedLimit) {
    throw capacity_error("sample: a vocabulary of {} ids, the GPU kernel takes {} at most",
                         vocabulary, (kSampleSharedLimit - fixed_bytes) / 4 * kCluster);
  }
  return {.slice_ids = static_cast<int>(slice_ids),
          .id_bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(vocabulary - 1))),
          .shared_bytes = static_cast<int>(bytes)};
}

}  // namespace fut::cuda
