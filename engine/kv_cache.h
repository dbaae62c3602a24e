// The device side of the KV cache: one pool of pages for each layer, in one allocation.
#pragma once

#include "kernels/backend.h"
#include "loader/model_config.h"

namespace fut {

class KvCache {
 public:
  // Throws Capacity with the bytes that were wanted.
  KvCache(Backend& backend, const ModelConfig& config, int num_pages);
  [[nodiscard]] KvPages layer(int i) const;
  [[nodiscard]] std::size_t bytes() const { return pool_.bytes(); }

 private:
  layout::KvPageF32 page_;
  int num_pages_;
  DeviceBuffer pool_;
};

}  // namespace fut
