// The host side of the KV cache: which pages are free. Pure bookkeeping.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace fut {

class PagePool {
 public:
  explicit PagePool(int num_pages);
  // All or nothing; nullopt when fewer are free, which is an expected outcome.
  [[nodiscard]] std::optional<std::vector<std::int32_t>> take(std::int64_t pages);
  void give_back(const std::vector<std::int32_t>& pages);
  [[nodiscard]] int num_free() const { return static_cast<int>(free_.size()); }

 private:
  int num_pages_;
  std::vector<std::int32_t> free_;
};

}  // namespace fut
