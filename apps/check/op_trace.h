// What each op of a decode step wrote, on any backend: the material of a comparison with the reference.
#pragma once

#include <string>
#include <vector>

#include "engine/forward.h"

namespace fut::app {

struct OpValues {
  std::string op;
  int layer = -1;  // -1: outside the layers
  std::vector<float> values;
};

// A model that is fed one token after the other, one sequence, by the decode path.
class TracedModel {
 public:
  // `backend` and `model` must outlive it.
  TracedModel(Backend& backend, const Model& model, const KvCacheOptions& kv_cache, int max_tokens);

  // Feeds the token at the next position. With `trace` every op's values are kept there.
  void feed(std::int32_t token, std::vector<OpValues>* trace = nullptr);
  // Of the last token fed.
  [[nodiscard]] std::vector<float> logits() const;

 private:
  Backend& backend_;
  const Model& model_;
  KvCache cache_;
  Workspace workspace_;
  int pages_;
  int position_ = 0;
};

// The elements of a view in device memory, row by row.
[[nodiscard]] std::vector<float> values_of(Backend& backend, const ConstActivationView& view);

}  // namespace fut::app
