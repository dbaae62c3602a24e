// A warp's ring of coded blocks in shared memory, filled by copies that run ahead: what a warp reads is
// one run of blocks, through the page table. Copies of 16 bytes, for those of a lane need no barrier, no
// fence between them and ordinary loads, and no instructions of a single lane.
#pragma once

#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/ptx/async_copy.cuh"
#include "kernels/cuda/ptx/bulk_copy.cuh"
#include "kernels/cuda/ptx/warp.cuh"

namespace fut::cuda {

// The ids of a sequence's pages, 32 of them at a time in the lanes of a warp.
class PageIds {
 public:
  __device__ __forceinline__ void start(const std::int32_t* table, int first_page, int num_pages) {
    table_ = table;
    num_pages_ = num_pages;
    read(first_page);
  }
  // Pages are asked for in rising order, by all lanes.
  [[nodiscard]] __device__ __forceinline__ std::int64_t id(int page) {
    if (page - first_ >= 32) read(page);
    return __shfl_sync(0xFFFFFFFFU, ids_, page - first_);
  }

 private:
  __device__ __forceinline__ void read(int first_page) {
    first_ = first_page;
    const int page = first_page + ptx::lane();
    ids_ = page < num_pages_ ? table_[page] : 0;
  }

  const std::int32_t* table_;
  int num_pages_, first_, ids_;
};

// In a slot: the codes of keys, those of values, the parameters of keys, those of values.
template <int D, int kGroups>
struct CodedSlot {
  static constexpr layout::KvPageInt4 page() { return {1, D, D / kGroups}; }
  static constexpr int kCodeBytes = page().block_bytes();
  static constexpr int kParamBytes = 16 * kGroups * layout::KvPageInt4::kParamBytes;
  static constexpr int kBytes = coded_slot_bytes(D, kGroups);
  static_assert(kBytes == 2 * (kCodeBytes + kParamBytes));
};

template <int D, int kGroups>
class CodedRing {
 public:
  using Slot = CodedSlot<D, kGroups>;

  __device__ __forceinline__ CodedRing(const AttentionDecodeArgs& args, std::uint8_t* shared,
                                       int warp, int kv_head)
      : args_(args),
        lane_(ptx::lane()),
        slots_(ptx::shared_address(shared + args.layout.coded) +
               warp * args.layout.coded_slots * Slot::kBytes) {
    // Parameters come in pieces of 16 bytes: the first half of the lanes copies those of keys.
    constexpr layout::KvPageInt4 kPage = Slot::page();
    const int lane = lane_;
    const auto part = lane < 16 ? layout::KvPart::Key : layout::KvPart::Value;
    const auto head = static_cast<int>(kPage.head_offset(kv_head));
    codes_in_page_ = head + 16 * lane;
    params_in_page_ = head + static_cast<int>(kPage.params_offset(part, 0, 0, 0)) + lane % 16 * 16;
    param_place_ = 2 * Slot::kCodeBytes + lane / 16 * Slot::kParamBytes + lane % 16 * 16;
    if (lane % 16 >= kParamPieces) param_place_ = kNone;
  }

  // The blocks first .. end - 1 of the sequence, none where end <= first.
  __device__ __forceinline__ void start(const PageIds& ids, int first, int end) {
    ids_ = ids;
    first_ = next_ = first;
    end_ = end;
    if (next_ < end_) find_page();
#pragma unroll 1
    for (int i = 0; i < args_.layout.coded_slots; ++i) request();
  }

  // Until the two oldest blocks are there, for all lanes.
  __device__ __forceinline__ void wait() const {
    if (args_.layout.coded_slots == 8) {
      ptx::wait_for_copies<6>();
    } else if (args_.layout.coded_slots == 4) {
      ptx::wait_for_copies<2>();
    } else {
      ptx::wait_for_copies<0>();
    }
    __syncwarp();
  }
  // Until what was asked for before start() is there, for all lanes.
  __device__ __forceinline__ void wait_for_earlier_copies() const {
    if (args_.layout.coded_slots == 8) {
      ptx::wait_for_copies<8>();
    } else if (args_.layout.coded_slots == 4) {
      ptx::wait_for_copies<4>();
    } else {
      ptx::wait_for_copies<2>();
    }
    __syncwarp();
  }

  [[nodiscard]] __device__ __forceinline__ std::uint32_t slot(int block) const {
    return slots_ + ((block - first_) & (args_.layout.coded_slots - 1)) * Slot::kBytes;
  }

  // The oldest block, or both of the oldest, have been read by all lanes: their slots are filled again.
  __device__ __forceinline__ void release(bool both) {
    __syncwarp();
    request();
    if (both) request();
  }

 private:
  static constexpr int kPageBlocks = layout::kPageTokens / layout::KvPageInt4::kBlockTokens;
  static constexpr int kParamPieces = Slot::kParamBytes / 16;
  static_assert(kParamPieces <= 16);
  static constexpr int kNone = -1;

  // The page of block next_.
  __device__ __forceinline__ void find_page() {
    constexpr layout::KvPageInt4 kPage = Slot::page();
    page_ =
        args_.pages + ids_.id(next_ / kPageBlocks) * (args_.num_kv_heads * kPage.head_offset(1));
  }

  // A group of copies for the next block; an empty one past the end.
  __device__ __forceinline__ void request() {
    if (next_ < end_) {
      const int block = next_ % kPageBlocks;
      const std::uint8_t* codes = page_ + (codes_in_page_ + block * Slot::kCodeBytes);
      const std::uint32_t place = slot(next_) + 16 * lane_;
#pragma unroll
      for (int offset = 0; offset < Slot::kCodeBytes; offset += 512) {
        ptx::copy_16(place + offset, codes + offset, 16);
        ptx::copy_16(place + Slot::kCodeBytes + offset, codes + Slot::page().code_bytes() + offset,
                     16);
      }
      if (param_place_ != kNone) {
        ptx::copy_16(slot(next_) + param_place_,
                     page_ + (params_in_page_ + block * Slot::kParamBytes), 16);
      }
      ++next_;
      if (next_ % kPageBlocks == 0 && next_ < end_) find_page();
    }
    ptx::commit_copies();
  }

  const AttentionDecodeArgs& args_;
  int lane_;
  std::uint32_t slots_;
  // This lane's pieces, in a page and in a slot.
  int codes_in_page_, params_in_page_, param_place_;
  const std::uint8_t* page_;
  PageIds ids_;
  int first_, next_, end_;
};

}  // namespace fut::cuda
