// The free list of cache pages.
#include "engine/page_pool.h"

#include "kernels/check.h"

namespace fut {

PagePool::PagePool(int num_pages) : num_pages_(num_pages) {
  FUT_CHECK(num_pages >= 0, "{} pages", num_pages);
  // Taken from the back: page 0 first, so that a lone sequence lies in order.
  free_.reserve(static_cast<std::size_t>(num_pages));
  for (int page = num_pages - 1; page >= 0; --page) free_.push_back(page);
}

std::optional<std::vector<std::int32_t>> PagePool::take(std::int64_t pages) {
  FUT_CHECK(pages >= 0, "{} pages", pages);
  if (pages > num_free()) return std::nullopt;
  std::vector<std::int32_t> taken(free_.rbegin(), free_.rbegin() + pages);
  free_.resize(free_.size() - static_cast<std::size_t>(pages));
  return taken;
}

void PagePool::give_back(const std::vector<std::int32_t>& pages) {
  FUT_CHECK(pages.size() + free_.size() <= static_cast<std::size_t>(num_pages_),
            "{} pages given back with {} of {} free", pages.size(), free_.size(), num_pages_);
  free_.insert(free_.end(), pages.rbegin(), pages.rend());
}

}  // namespace fut
