// One decode step of a model on made-up sequences, whole and op by op, for measuring. No scheduler, no
// text: all sequences stand at the same position, step after step.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/forward.h"
#include "engine/sampling.h"

namespace fut {

struct DecodeBenchOptions {
  int sequences = 1;
  int depth_tokens = 0;  // of each sequence, in the cache already
  KvCacheOptions kv_cache;
  SamplingParams sampling;
};

// What a step has to read: weights and cache once. What it writes, and activations, is little beside.
struct DecodePart {
  std::string_view name;   // an op
  int calls = 0;           // of a step
  std::int64_t bytes = 0;  // of all of them
  double flops = 0;        // of all of them
  Backend::Procedure run;  // all of them, one after the other
};

class DecodeBench {
 public:
  // `backend` and `model` must outlive it. Throws Capacity.
  DecodeBench(Backend& backend, const Model& model, const DecodeBenchOptions& options);

  // A step, sampling included, recorded where the backend records.
  [[nodiscard]] Backend::Procedure step();
  // The ops of all layers: what a layer costs among others. The embedding begins them, which takes no time
  // to speak of and keeps the residual from growing; head and sampling do not follow.
  [[nodiscard]] Backend::Procedure layers();
  // The ops of a step apart, in order.
  [[nodiscard]] std::vector<DecodePart> parts();
  [[nodiscard]] std::int64_t bytes_per_step();

 private:
  void sample();
  [[nodiscard]] std::int64_t layer_bytes(LayerOp op) const;
  [[nodiscard]] double layer_flops(LayerOp op) const;  // of one layer

  Backend& backend_;
  const Model& model_;
  DecodeBenchOptions options_;
  KvCache cache_;
  Workspace workspace_;
  SampleBuffers sample_buffers_;
};

}  // namespace fut
