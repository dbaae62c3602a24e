// The device side of the KV cache: one pool of pages for each layer, in one allocation; with INT4
// pages also the rows that each running sequence keeps as BF16.
#pragma once

#include "engine/precision.h"
#include "kernels/backend.h"
#include "loader/model_config.h"

namespace fut {

class KvCache {
 public:
  // `max_sequences`: how many raw slots, 0 .. max_sequences - 1. Throws Capacity with the bytes that
  // were wanted.
  KvCache(Backend& backend, const ModelConfig& config, const KvCacheOptions& options, int num_pages,
          int max_sequences);
  // All zeros: keys and values of 0, whatever the type.
  void clear(Backend& backend);
  [[nodiscard]] KvCacheView layer(int i) const;
  [[nodiscard]] const KvCacheOptions& options() const { return options_; }
  [[nodiscard]] std::size_t bytes() const { return pool_.bytes() + raw_.bytes(); }

 private:
  KvCacheOptions options_;
  int num_kv_heads_;
  int head_dim_;
  int num_pages_;
  int num_raw_slots_;
  DeviceBuffer pool_;
  DeviceBuffer raw_;
};

// Bytes of one page of one layer.
[[nodiscard]] std::int64_t kv_page_bytes(const ModelConfig& config, const KvCacheOptions& options);

// What a decode step reads of one layer's cache behind a sequence of so many tokens.
[[nodiscard]] std::int64_t kv_read_bytes(const ModelConfig& config, const KvCacheOptions& options,
                                         std::int64_t tokens);

// What such a cache allocates: its pages, its raw rows.
struct KvCacheBytes {
  std::size_t pool = 0;
  std::size_t raw = 0;
};
[[nodiscard]] KvCacheBytes kv_cache_bytes(const ModelConfig& config, const KvCacheOptions& options,
                                          int num_pages, int max_sequences);

}  // namespace fut
