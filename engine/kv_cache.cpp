// One allocation for all layers' pages, one for their raw rows.
#include "engine/kv_cache.h"

#include <algorithm>

#include "kernels/check.h"

namespace fut {
namespace {

layout::KvPageDense dense_page(int num_kv_heads, int head_dim) {
  return {num_kv_heads, head_dim};
}
layout::KvPageInt4 int4_page(int num_kv_heads, int head_dim, int group) {
  return {num_kv_heads, head_dim, group};
}
DType dense_dtype(KvCacheDtype type) {
  return type == KvCacheDtype::F32 ? DType::F32 : DType::BF16;
}
int raw_slots(const KvCacheOptions& options, int max_sequences) {
  return options.dtype == KvCacheDtype::Int4 ? max_sequences : 0;
}

}  // namespace

std::int64_t kv_page_bytes(const ModelConfig& config, const KvCacheOptions& options) {
  if (options.dtype == KvCacheDtype::Int4) {
    return int4_page(config.num_kv_heads, config.head_dim, options.group).bytes();
  }
  return dense_page(config.num_kv_heads, config.head_dim).elements() *
         dtype_bytes(dense_dtype(options.dtype));
}

std::int64_t kv_read_bytes(const ModelConfig& config, const KvCacheOptions& options,
                           std::int64_t tokens) {
  return kv_page_bytes(config, options) * tokens / layout::kPageTokens;
}

KvCacheBytes kv_cache_bytes(const ModelConfig& config, const KvCacheOptions& options, int num_pages,
                            int max_sequences) {
  const auto layers = static_cast<std::size_t>(config.num_layers);
  const layout::KvRawStore rows{config.num_kv_heads, config.head_dim};
  const int slots = raw_slots(options, max_sequences);
  return {static_cast<std::size_t>(kv_page_bytes(config, options)) *
              static_cast<std::size_t>(num_pages) * layers,
          static_cast<std::size_t>(rows.elements()) * sizeof(std::uint16_t) *
              static_cast<std::size_t>(slots) * layers};
}

KvCache::KvCache(Backend& backend, const ModelConfig& config, const KvCacheOptions& options,
                 int num_pages, int max_sequences)
    : options_(options),
      num_kv_heads_(config.num_kv_heads),
      head_dim_(config.head_dim),
      num_pages_(num_pages),
      num_raw_slots_(raw_slots(options, max_sequences)) {
  const KvCacheBytes wanted = kv_cache_bytes(config, options, num_pages, max_sequences);
  pool_ = backend.allocate(wanted.pool);
  raw_ = backend.allocate(wanted.raw);
}

void KvCache::clear(Backend& backend) {
  const std::vector<std::byte> zeros(std::min<std::size_t>(bytes(), 16 << 20));
  for (const DeviceBuffer* buffer : {&pool_, &raw_}) {
    for (std::size_t done = 0; done < buffer->bytes(); done += zeros.size()) {
      const std::size_t count = std::min(zeros.size(), buffer->bytes() - done);
      backend.upload(buffer->as<std::byte>() + done, std::span(zeros).first(count));
    }
  }
}

KvCacheView KvCache::layer(int i) const {
  if (options_.dtype != KvCacheDtype::Int4) {
    const layout::KvPageDense page = dense_page(num_kv_heads_, head_dim_);
    const DType dtype = dense_dtype(options_.dtype);
    const std::int64_t bytes = page.elements() * num_pages_ * dtype_bytes(dtype);
    return KvPages{pool_.as<std::byte>() + i * bytes, num_pages_, page, dtype};
  }
  const layout::KvPageInt4 page = int4_page(num_kv_heads_, head_dim_, options_.group);
  const layout::KvRawStore rows{num_kv_heads_, head_dim_};
  return KvPagesInt4{
      pool_.as<std::uint8_t>() + i * page.bytes() * num_pages_,        num_pages_,     page,
      raw_.as<std::uint16_t>() + i * rows.elements() * num_raw_slots_, num_raw_slots_, rows};
}

}  // namespace fut
