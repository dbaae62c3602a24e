// One warp's pieces of the INT4 weights of all products of some layers: a ring in shared memory that knows no
// border between products and layers, so that copies for the next product are under way while blocks wait for
// each other. Called by whole warps. And which part of a product a warp has.
#pragma once

#include <cstdint>

#include "kernels/cuda/decode_layers_plan.h"
#include "kernels/cuda/int4_weight_ring.cuh"
#include "kernels/cuda/ptx/bulk_copy.cuh"
#include "kernels/cuda/ptx/position.cuh"
#include "kernels/layout/k_segments.h"

namespace fut::cuda {

// The first of `count` things that share number `index` of `of` has; 32 bits hold all products.
__device__ __forceinline__ int share_begin(int count, int index, int of) {
  return static_cast<int>(static_cast<unsigned>(count) * static_cast<unsigned>(index) /
                          static_cast<unsigned>(of));
}

// Where blocks share down's sums: kDownParts neighbours have the same strips, each a part of K.
struct DownGroup {
  int index, part, count;
  int first_strip, end_strip;  // none for blocks that are left over

  __device__ __forceinline__ explicit DownGroup(int num_strips)
      : index(ptx::block_index() / kDownParts),
        part(ptx::block_index() % kDownParts),
        count(ptx::num_blocks() / kDownParts),
        first_strip(index < count ? share_begin(num_strips, index, count) : num_strips),
        end_strip(index < count ? share_begin(num_strips, index + 1, count) : num_strips) {}

  // Strips of part `index`.
  [[nodiscard]] __device__ __forceinline__ int part_begin(int of_part) const {
    return first_strip + share_begin(end_strip - first_strip, of_part, kDownParts);
  }
};

// The segment of K of a warp.
__device__ __forceinline__ int segment_of(const DecodeLayersArgs& args, int product, int warp) {
  if (product != kDownProduct || args.plan.down_parts == 1) return warp;
  return ptx::block_index() % kDownParts * (layout::kNumKSegments / kDownParts) +
         warp % (layout::kNumKSegments / kDownParts);
}

__device__ __forceinline__ Int4Share share_of(const DecodeLayersArgs& args, int product, int warp) {
  const LayerMatrix& m = args.products[product];
  Int4Share share;
  if (product == kDownProduct && args.plan.down_parts > 1) {
    const DownGroup group(m.num_strips);
    const int column = warp / (layout::kNumKSegments / kDownParts);
    share.first_strip = group.part_begin(column);
    share.end_strip = group.part_begin(column + 1);
  } else {
    share.first_strip = share_begin(m.num_strips, ptx::block_index(), ptx::num_blocks());
    share.end_strip = share_begin(m.num_strips, ptx::block_index() + 1, ptx::num_blocks());
  }
  const int segment = segment_of(args, product, warp);
  share.first_group = layout::k_segment_begin(segment, m.num_groups);
  share.end_group = layout::k_segment_begin(segment + 1, m.num_groups);
  return share;
}

template <class Config>
class LayerWeightRing {
 public:
  __device__ LayerWeightRing(const DecodeLayersArgs& args, std::uint8_t* shared, int warp)
      : args_(args) {
    find_places(shared, warp);
    if (is_leader()) {
      for (int s = 0; s < args_.plan.stages; ++s) ptx::barrier_init(barriers_ + 8 * s, 1);
      ptx::barrier_init_fence();
      find_product();
      for (int s = 0; s < args_.plan.stages; ++s) request(s);
    }
    __syncwarp();
  }

  // The address of the next piece, once it is there.
  __device__ __forceinline__ std::uint32_t wait() const {
    ptx::barrier_wait(barriers_ + 8 * stage_, parity_);
    return buffer_ + stage_ * Config::kPieceBytes;
  }

  // All lanes have used what they read of the piece: its place is filled again.
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (is_leader()) {
      ptx::fence_async_proxy();
      request(stage_);
    }
    if (++stage_ == args_.plan.stages) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

  // What is known of the ring, 32 bytes of shared memory, while registers are needed for something else.
  __device__ __forceinline__ void keep(uint4* place) const {
    if (!is_leader()) return;
    const auto next = reinterpret_cast<std::uint64_t>(next_);
    place[0] =
        make_uint4(static_cast<std::uint32_t>(next), static_cast<std::uint32_t>(next >> 32),
                   static_cast<std::uint32_t>(product_), static_cast<std::uint32_t>(strips_left_));
    place[1] = make_uint4(
        static_cast<std::uint32_t>(groups_), static_cast<std::uint32_t>(groups_left_),
        static_cast<std::uint32_t>(skip_), 2 * static_cast<std::uint32_t>(stage_) + parity_);
  }
  // A barrier lies between.
  __device__ __forceinline__ void recall(const uint4* place, std::uint8_t* shared, int warp) {
    find_places(shared, warp);
    const uint4 first = place[0];
    const uint4 second = place[1];
    next_ = reinterpret_cast<const std::uint8_t*>(first.x | std::uint64_t{first.y} << 32);
    product_ = static_cast<int>(first.z);
    strips_left_ = static_cast<int>(first.w);
    groups_ = static_cast<int>(second.x);
    groups_left_ = static_cast<int>(second.y);
    skip_ = static_cast<int>(second.z);
    stage_ = static_cast<int>(second.w / 2);
    parity_ = second.w % 2;
  }

 private:
  __device__ __forceinline__ void find_places(std::uint8_t* shared, int warp) {
    warp_ = warp;
    barriers_ = ptx::shared_address(shared) + warp * args_.plan.stages * 8;
    buffer_ = ptx::shared_address(shared + args_.plan.layout.ring) +
              warp * args_.plan.stages * Config::kPieceBytes;
  }

  __device__ static bool is_leader() { return threadIdx.x % 32 == 0; }

  // Asks for the next piece, where there is one.
  __device__ __forceinline__ void request(int stage) {
    if (strips_left_ == 0) return;
    const std::uint32_t bytes = min(Config::kPieceGroups, groups_left_) * Config::kRecordBytes;
    const std::uint32_t barrier = barriers_ + 8 * stage;
    ptx::barrier_expect(barrier, bytes);
    ptx::bulk_copy(buffer_ + stage * Config::kPieceBytes, next_, bytes, barrier,
                   ptx::evict_first_policy());
    next_ += bytes;
    groups_left_ -= Config::kPieceGroups;
    if (groups_left_ > 0) return;
    groups_left_ = groups_;
    next_ += skip_;
    if (--strips_left_ == 0) find_product();
  }

  // The next product of which this warp has anything.
  __device__ __forceinline__ void find_product() {
    while (strips_left_ == 0 && product_ < kNumLayerProducts * args_.num_layers) {
      const int product = product_ % kNumLayerProducts;
      const Int4Share share = share_of(args_, product, warp_);
      groups_ = groups_left_ = share.end_group - share.first_group;
      const int row_groups = args_.products[product].num_groups;
      skip_ = (row_groups - groups_) * Config::kRecordBytes;
      // A packed matrix has less than 4 GiB.
      next_ = args_.layers[product_ / kNumLayerProducts].packed[product] +
              static_cast<std::uint32_t>(share.first_strip * row_groups + share.first_group) *
                  Config::kRecordBytes;
      if (groups_ > 0) strips_left_ = share.end_strip - share.first_strip;
      ++product_;
    }
  }

  const DecodeLayersArgs& args_;
  int warp_ = 0;
  std::uint32_t barriers_ = 0, buffer_ = 0;
  // Of the leader alone.
  const std::uint8_t* next_ = nullptr;  // piece to ask for
  int product_ = 0;                     // of all layers, the next to look at
  int strips_left_ = 0;
  int groups_ = 0, groups_left_ = 0;  // of a strip
  int skip_ = 0;                      // bytes from the end of a strip's groups to the next strip's
  int stage_ = 0;                     // that is used, and then filled again
  std::uint32_t parity_ = 0;
};

}  // namespace fut::cuda
