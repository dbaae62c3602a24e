// See the header.
#include "engine/memory_needs.h"

#include "engine/forward.h"

namespace fut {
namespace {

// Of CUDA 13 on an H200, where nothing is allocated yet: estimates, held against the driver by the test
// of plans on a GPU.
constexpr std::size_t kContextBytes = std::size_t{512} << 20;
constexpr std::size_t kKernelBytes = std::size_t{64} << 20;  // code and scratch, when first needed
constexpr std::size_t kGraphBytesOfLaunch = 4096;
constexpr std::size_t kContextKinds = 2;  // Backend::context_kind

// Embedding, layers, head, sampler, advance.
std::size_t launches_of_step(const ModelConfig& config) {
  return static_cast<std::size_t>(config.num_layers) * std::size(kLayerOps) + 4;
}

// The largest value from `least` to `most` for which `fits` holds, which holds below it too; 0: none.
template <class Fits>
int largest(int least, int most, const Fits& fits) {
  if (least > most || !fits(least)) return 0;
  while (least < most) {
    const int middle = least + (most - least + 1) / 2;
    if (fits(middle)) {
      least = middle;
    } else {
      most = middle - 1;
    }
  }
  return least;
}

}  // namespace

MemoryNeeds memory_needs(const WeightBytes& weights, const ModelConfig& config,
                         const EngineOptions& options, MemoryOwner owner) {
  MemoryNeeds needs{weights, engine_bytes(config, weights.precision, options), 0, 0, 0};
  needs.total = weights.total() + needs.engine.kv_cache + needs.engine.workspace;
  if (owner == MemoryOwner::Cpu) {
    needs.total += needs.engine.shared;
    return needs;
  }
  needs.graphs = launches_of_step(config) * kGraphBytesOfLaunch * kContextKinds *
                 static_cast<std::size_t>(options.max_sequences);
  needs.driver = kKernelBytes + (owner == MemoryOwner::UnseenGpu ? kContextBytes : 0);
  needs.total += needs.engine.history + needs.engine.operands + needs.graphs + needs.driver;
  return needs;
}

LargestFit largest_fit(const WeightBytes& weights, const ModelConfig& config,
                       const EngineOptions& options, MemoryOwner owner, std::size_t bytes) {
  const auto fits = [&](const EngineOptions& changed) {
    return memory_needs(weights, config, changed, owner).total <= bytes;
  };
  LargestFit fit;
  EngineOptions changed = options;
  fit.context_tokens =
      largest(kLeastContextTokens, config.max_position_embeddings, [&](int tokens) {
        changed.context_tokens = tokens;
        return fits(changed);
      });
  changed = options;
  fit.sequences = largest(1, kMostSequences, [&](int sequences) {
    changed.max_sequences = sequences;
    return fits(changed);
  });
  return fit;
}

}  // namespace fut
