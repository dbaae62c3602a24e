// One allocation for all layers' pages.
#include "engine/kv_cache.h"

#include "kernels/check.h"

namespace fut {

KvCache::KvCache(Backend& backend, const ModelConfig& config, int num_pages)
    : page_{config.num_kv_heads, config.head_dim},
      num_pages_(num_pages),
      pool_(backend.allocate(static_cast<std::size_t>(page_.elements()) * sizeof(float) *
                             static_cast<std::size_t>(num_pages) *
                             static_cast<std::size_t>(config.num_layers))) {}

KvPages KvCache::layer(int i) const {
  return {pool_.as<float>() + i * page_.elements() * num_pages_, num_pages_, page_};
}

}  // namespace fut
