// What the weights of a model take in a backend's memory, and for what: the sizes by which Model::load
// and Model::load_packed allocate, known from headers or from config.json alone.
#pragma once

#include <cstddef>

#include "engine/model.h"

namespace fut {

struct WeightBytes {
  Precision precision = Precision::F32;  // that they serve
  std::size_t embedding = 0;
  std::size_t layers = 0;  // f32 and bf16: the one copy
  std::size_t fp8_copy = 0;
  std::size_t int4_copy = 0;
  std::size_t expanded = 0;  // one matrix of INT4 codes in E4M3, where prefill has no copy
  std::size_t head = 0;      // 0: the embedding serves
  std::size_t rescoring_head = 0;
  // Of the host, while they are read: for one tensor at a time, or for pieces of a quantised folder.
  std::size_t passing = 0;

  [[nodiscard]] std::size_t total() const {
    return embedding + layers + fp8_copy + int4_copy + expanded + head + rescoring_head;
  }
};

// Of a checkpoint in f32 or bf16.
[[nodiscard]] WeightBytes checkpoint_weight_bytes(const Checkpoint& checkpoint,
                                                  const ModelConfig& config, Precision precision);
// The same of one that is not there: tensors of torch_dtype in the shapes of config.json.
[[nodiscard]] WeightBytes checkpoint_weight_bytes(const ModelConfig& config, Precision precision);

// Of a quantised folder in fp8 or int4, for a model that check_packable lets pass.
[[nodiscard]] WeightBytes packed_weight_bytes(const ModelConfig& config, int group_size,
                                              Precision precision, HeadChoice head,
                                              PrefillWeights prefill = PrefillWeights::Fp8);
// Of the place for one matrix in E4M3: its codes, and what lies before the scales of its rows.
struct ExpandedBytes {
  std::size_t codes = 0;
  std::size_t total = 0;
};
[[nodiscard]] ExpandedBytes expanded_bytes(const ModelConfig& config);

}  // namespace fut
