// How much memory a model wants on a device before anything of it is loaded: weights, cache and
// workspace by the formulas that allocate them, and what a GPU's driver takes beside, estimated.
#pragma once

#include <cstddef>

#include "engine/engine.h"
#include "engine/weight_bytes.h"

namespace fut {

enum class MemoryOwner {
  Cpu,
  Gpu,       // one that is in use: its driver took its own already
  UnseenGpu  // one that is planned for
};

struct MemoryNeeds {
  WeightBytes weights;
  EngineBytes engine;
  std::size_t graphs = 0;  // GPU: recorded decode steps, one for each number of sequences and kind
  std::size_t driver = 0;  // GPU: context, kernels, their scratch memory
  std::size_t total = 0;   // of the owner's memory
};

// Throws as resolve_context_tokens.
[[nodiscard]] MemoryNeeds memory_needs(const WeightBytes& weights, const ModelConfig& config,
                                       const EngineOptions& options, MemoryOwner owner);

// The most of each that fits into `bytes` while the other stays as it is: tokens of context (at most
// the model's own), sequences (at most kMostSequences). 0: not even the least.
inline constexpr int kMostSequences = 4096;
struct LargestFit {
  int context_tokens = 0;
  int sequences = 0;
};
[[nodiscard]] LargestFit largest_fit(const WeightBytes& weights, const ModelConfig& config,
                                     const EngineOptions& options, MemoryOwner owner,
                                     std::size_t bytes);

}  // namespace fut
