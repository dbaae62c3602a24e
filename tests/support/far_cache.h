// Memory of which only the end is touched, and a cache whose pages lie there: every page and slot of it has
// more than 2^32 elements before it, so that an index or an offset of 32 bits anywhere misses it. For the CPU
// and for emulated kernels.
#pragma once

#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <sys/mman.h>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/tensor.h"

namespace fut::test {

inline constexpr std::int64_t kFarElements = std::int64_t{1} << 32;

// Zeros that take memory when they are touched.
class SparseMemory {
 public:
  explicit SparseMemory(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {
    data_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data_ == MAP_FAILED) throw std::runtime_error("no address space for sparse memory");
  }
  SparseMemory(SparseMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  SparseMemory& operator=(SparseMemory&&) = delete;
  ~SparseMemory() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }
  template <class T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_;
  std::size_t bytes_;
};

// `count` records of `record` bytes, as the last of so many that kFarElements of `element` bytes come before.
class FarRecords {
 public:
  FarRecords(void* near, int count, std::int64_t record, std::int64_t element)
      : near_(near),
        bytes_(static_cast<std::size_t>(count * record)),
        first_(static_cast<int>((kFarElements * element + record - 1) / record)),
        count_(count),
        memory_((first_ + std::int64_t{count}) * record),
        place_(memory_.as<std::byte>() + first_ * record) {
    std::memcpy(place_, near, bytes_);
  }
  [[nodiscard]] int first() const { return first_; }
  [[nodiscard]] int count() const { return first_ + count_; }
  template <class T>
  [[nodiscard]] T* data() const {
    return memory_.as<T>();
  }
  void copy_back() const { std::memcpy(near_, place_, bytes_); }

 private:
  void* near_;
  std::size_t bytes_;
  int first_, count_;
  SparseMemory memory_;
  std::byte* place_;
};

// Calls op(args) with the cache of `near` far away, as AttentionArgs and QkvRopeAppendArgs have one. What op
// stored is in the near cache afterwards.
template <class Args, class Op>
void with_far_cache(Args args, const Op& op) {
  const RaggedBatch& near = args.batch;
  std::vector<std::int32_t> table(near.page_table,
                                  near.page_table + near.kv_indptr[near.num_sequences]);
  std::vector<std::int32_t> slots;
  const auto move = [](std::vector<std::int32_t>& indices, int by) {
    for (std::int32_t& index : indices) index += by;
  };
  const auto run = [&](const auto& far_kv) {
    args.kv = far_kv;
    args.batch.page_table = table.data();
    if (!slots.empty()) args.batch.raw_slots = slots.data();
    op(std::as_const(args));
  };
  const auto dense = [&](KvPages kv) {
    const std::int64_t element = dtype_bytes(kv.dtype);
    const FarRecords pages(kv.data, kv.num_pages, kv.page.elements() * element, element);
    kv.data = pages.data<void>();
    kv.num_pages = pages.count();
    move(table, pages.first());
    run(kv);
    pages.copy_back();
  };
  [[maybe_unused]] const auto int4 = [&](auto kv) {
    slots.assign(near.raw_slots, near.raw_slots + near.num_sequences);
    const FarRecords pages(kv.data, kv.num_pages, kv.page.bytes(), 1);
    const FarRecords raw(kv.raw, kv.num_raw_slots, 2 * kv.raw_rows.elements(), 2);
    kv.data = pages.data<std::uint8_t>();
    kv.num_pages = pages.count();
    kv.raw = raw.data<std::uint16_t>();
    kv.num_raw_slots = raw.count();
    move(table, pages.first());
    move(slots, raw.first());
    run(kv);
    pages.copy_back();
    raw.copy_back();
  };
  if constexpr (std::is_same_v<decltype(args.kv), KvPages>) {
    dense(args.kv);
  } else if (const auto* pages = std::get_if<KvPages>(&args.kv)) {
    dense(*pages);
  } else {
    int4(std::get<KvPagesInt4>(args.kv));
  }
}

}  // namespace fut::test
