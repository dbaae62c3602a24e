// Where a key or value lies in a page of the KV cache. A page holds kPageTokens tokens of one
// layer: all its keys, head by head, then all its values. Standard C++ only, so that host code,
// kernels and tests include the same text.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fut::layout {

inline constexpr int kPageTokens = 64;

[[nodiscard]] constexpr std::int64_t pages_for_tokens(std::int64_t tokens) {
  return (tokens + kPageTokens - 1) / kPageTokens;
}

// The dense page: [K | V][kv head][slot][head_dim].
struct KvPageDense {
  int num_kv_heads = 0;
  int head_dim = 0;

  [[nodiscard]] constexpr std::int64_t elements() const {
    return 2LL * num_kv_heads * kPageTokens * head_dim;
  }
  [[nodiscard]] constexpr std::int64_t k_offset(int head, int slot) const {
    return (static_cast<std::int64_t>(head) * kPageTokens + slot) * head_dim;
  }
  [[nodiscard]] constexpr std::int64_t v_offset(int head, int slot) const {
    return (static_cast<std::int64_t>(num_kv_heads + head) * kPageTokens + slot) * head_dim;
  }
};

// What a GPU's attention of prompts wants for one layer's pages of codes, widened to BF16.
[[nodiscard]] constexpr std::size_t widened_history_bytes(const KvPageDense& page,
                                                          std::int64_t num_pages) {
  return static_cast<std::size_t>(2 * page.elements() * num_pages);
}

}  // namespace fut::layout
