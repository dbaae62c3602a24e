// Sizes of the sampler's kernel, and what it cannot take. Includes no CUDA header.
#pragma once

#include <cstdint>

namespace fut::cuda {

inline constexpr int kSampleThreads = 512;
inline constexpr unsigned kSampleCluster = 8;  // blocks a row, the most that every chip takes
inline constexpr int kSampleBins = 2048;
// Candidates that one block sorts.
inline constexpr int kSampleList = 2048;

// Bytes of shared memory beside the ids.
inline constexpr int kSampleSharedLimit = 227 * 1024;

struct SamplePlan {
  int slice_ids = 0;  // ids a block, a multiple of 4
  int id_bits = 0;    // that hold any id
  int shared_bytes = 0;
};
// Throws Capacity where a row does not fit into the shared memory of a cluster.
[[nodiscard]] SamplePlan plan_sample(std::int64_t vocabulary, int fixed_bytes);

}  // namespace fut::cuda
