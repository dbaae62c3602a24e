// The emulator's shared memory, its barriers in it, and copies. Compiled as cluster.cpp is.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "kernels/layout/prompt_tile.h"
#include "tests/emulator/cluster_state.h"

namespace fut::emulator {

// ---- memory ----------------------------------------------------------------------------------------

std::uint32_t Cluster::shared_address(const void* pointer) {
  const auto offset = static_cast<const std::uint8_t*>(pointer) - self().block->shared;
  if (offset < 0 || offset > launch_.shared_bytes) fail("not a place in shared memory");
  return static_cast<std::uint32_t>(offset);
}

Block& Cluster::block_at(std::uint32_t address) {
  const auto rank = static_cast<int>(address >> kRankShift) - 1;
  return rank < 0 ? *self().block : *blocks_[static_cast<std::size_t>(rank)];
}

std::uint8_t* Cluster::memory(std::uint32_t address, int bytes, int alignment, bool own) {
  const auto rank = static_cast<int>(address >> kRankShift) - 1;
  const auto offset = static_cast<int>(address & ((1U << kRankShift) - 1));
  if (rank >= 0 && own) fail("another block's address in an instruction of the own block");
  if (offset + bytes > launch_.shared_bytes) {
    fail("offset " + std::to_string(offset) + " of shared memory of " +
         std::to_string(launch_.shared_bytes) + " bytes");
  }
  if (offset % alignment != 0) fail("offset " + std::to_string(offset) + " is not aligned");
  Block& block = block_at(address);
  if (!block.started || block.running == 0) {
    fail("block " + std::to_string(block.index) + " is written to but does not run");
  }
  return block.shared + offset;
}

std::uint32_t Cluster::address_in_block(std::uint32_t address, std::uint32_t rank) {
  if (address >> kRankShift != 0) fail("the address is another block's already");
  if (rank >= blocks_.size()) fail("no block " + std::to_string(rank) + " in the cluster");
  return address | (rank + 1) << kRankShift;
}

// ---- copies ----------------------------------------------------------------------------------------

void Cluster::barrier_init(std::uint32_t address, std::uint32_t arrivals) {
  Block& block = *self().block;
  auto barrier = std::make_unique<Barrier>();
  barrier->waiting.reserve(static_cast<std::size_t>(launch_.threads));
  barrier->next.resize(static_cast<std::size_t>(launch_.threads));
  barrier->repeated.resize(static_cast<std::size_t>(launch_.threads));
  barrier->arrivals = barrier->pending = arrivals;
  // The barrier's 8 bytes hold its number: who writes over them is found out.
  const std::array<std::uint32_t, 2> words = {kBarrierMark,
                                              static_cast<std::uint32_t>(block.barriers.size())};
  std::memcpy(memory(address, 8, 8, true), words.data(), 8);
  block.barriers.push_back(std::move(barrier));
}

Barrier& Cluster::barrier(std::uint32_t address, bool own) {
  std::array<std::uint32_t, 2> words{};
  std::memcpy(words.data(), memory(address, 8, 8, own), 8);
  const Block& block = block_at(address);
  if (words[0] != kBarrierMark || words[1] >= block.barriers.size()) {
    fail("no barrier at offset " + std::to_string(address));
  }
  return *block.barriers[words[1]];
}

void Cluster::barrier_expect(std::uint32_t address, std::uint32_t bytes, bool own) {
  Barrier& b = barrier(address, own);
  if (b.pending == 0) fail("one arrival too many at a barrier");
  sanitizer_release(b.order(b.phase));
  b.bytes += bytes;
  --b.pending;
  complete_if_done(b);
}

void Cluster::complete_if_done(Barrier& b) {
  if (b.pending != 0 || b.bytes != 0) return;
  b.pending = b.arrivals;
  ++b.phase;
  for (Thread* thread : b.waiting) make_ready(*thread);
  b.waiting.clear();
}

void Cluster::barrier_wait(std::uint32_t address, std::uint32_t parity) {
  Barrier& b = barrier(address);
  std::uint32_t& next = b.next[static_cast<std::size_t>(self().index)];
  if (next == 0 && b.phase == 0 && parity == 1) return;  // the phase before the first
  if (launch_.first_phase_twice && next == 1 && parity == 0 && b.phase == 1) {
    const auto thread = static_cast<std::size_t>(self().index);
    if (b.repeated[thread]) fail("waits for the first phase a third time");
    b.repeated[thread] = true;
    return;
  }
  const std::uint32_t phase = next++;
  if (parity != phase % 2) fail("waits for a phase two ahead, or again for the last one");
  for (;;) {
    // The instruction would wait for the phase of this parity that is under way.
    if (b.phase > phase + 1) fail("waits for a phase after which another one is over");
    if (b.phase > phase) break;
    b.waiting.push_back(running_);
    suspend(Waits::Copy);
  }
  sanitizer_acquire(b.order(phase));
}

void Cluster::check_readable(const void* source, std::int64_t bytes) {
  const auto* begin = static_cast<const std::uint8_t*>(source);
  if (reinterpret_cast<std::uintptr_t>(source) % 16 != 0 || bytes % 16 != 0 || bytes <= 0) {
    fail("a bulk copy that is not of multiples of 16");
  }
  if (begin < launch_.readable || begin + bytes > launch_.readable + launch_.readable_bytes) {
    fail("a bulk copy from beside the matrix");
  }
}

void Cluster::bulk_copy(std::uint32_t destination, const void* source, std::uint32_t bytes,
                        std::uint32_t address) {
  check_readable(source, bytes);
  const BulkCopy copy{.barrier = &barrier(address),
                      .destination = memory(destination, static_cast<int>(bytes), 16, true),
                      .source = static_cast<const std::uint8_t*>(source),
                      .bytes = bytes};
  if (copy.barrier->bytes < bytes) fail("a bulk copy that its barrier does not expect");
  ask_for(copy);
}

void Cluster::bulk_copy_to(std::uint32_t destination, const void* source, std::uint32_t bytes,
                           std::uint32_t address) {
  check_readable(source, bytes);
  if (&block_at(destination) != &block_at(address)) fail("sent to one block, told to another");
  std::uint8_t* place = memory(destination, static_cast<int>(bytes), 16, false);
  std::memset(place, kGuard, bytes);
  ask_for({.barrier = &barrier(address, false),
           .destination = place,
           .source = static_cast<const std::uint8_t*>(source),
           .bytes = bytes});
}

void Cluster::copy_box(std::uint32_t destination, const Tensor& tensor,
                       const std::array<int, 3>& at, std::uint32_t address, bool own) {
  const int row_bytes = tensor.box[0] * tensor.element_bytes;
  if (!tensor.is_constant && !self().has_turn) fail("reads a tensor before its turn");
  if (tensor.swizzled ? row_bytes != kSwizzledBytes : row_bytes % 16 != 0) {
    fail("a box with rows of " + std::to_string(row_bytes) + " bytes");
  }
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % 16 != 0 || tensor.strides[0] % 16 != 0 ||
      tensor.strides[1] % 16 != 0) {
    fail("a tensor that is not of multiples of 16");
  }
  const int bytes = row_bytes * tensor.box[1] * tensor.box[2];
  if (&block_at(destination) != &block_at(address)) fail("sent to one block, told to another");
  std::uint8_t* place = memory(destination, bytes, tensor.swizzled ? 8 * kSwizzledBytes : 128, own);
  std::memset(place, kGuard, static_cast<std::size_t>(bytes));
  const BulkCopy copy{.barrier = &barrier(address, own),
                      .destination = place,
                      .bytes = static_cast<std::uint32_t>(bytes),
                      .tensor = &tensor,
                      .at = at};
  if (own && copy.barrier->bytes < bytes) fail("a copy that its barrier does not expect");
  ask_for(copy);
}

void Cluster::ask_for(const BulkCopy& copy) {
  for (const BulkCopy& other : copies_) {
    if (copy.destination < other.destination + other.bytes &&
        other.destination < copy.destination + copy.bytes) {
      fail("two copies to one place are under way");
    }
  }
  sanitizer_release(copy.barrier->requests);
  copies_.push_back(copy);
}

namespace {

// Row `r` of a box: bytes from the first to behind the last that the tensor has, the others are zero.
void fill_row(const BulkCopy& copy, int r) {
  const Tensor& t = *copy.tensor;
  const int row_bytes = t.box[0] * t.element_bytes;
  const int row_of_box = r % t.box[1];
  const int block = row_of_box / layout::kSpreadRows * layout::kSpreadRows;
  const std::array<std::int64_t, 3> at = {
      copy.at[0],
      copy.at[1] +
          (t.spread ? block + layout::spread_row(row_of_box % layout::kSpreadRows) : row_of_box),
      copy.at[2] + r / t.box[1]};
  const bool inside = at[1] >= 0 && at[1] < t.sizes[1] && at[2] >= 0 && at[2] < t.sizes[2];
  const auto* source = static_cast<const std::uint8_t*>(t.data) + at[0] * t.element_bytes +
                       at[1] * t.strides[0] + at[2] * t.strides[1];
  std::uint8_t* row = copy.destination + r * row_bytes;
  for (int piece = 0; piece < row_bytes; piece += 16) {
    std::uint8_t* place = row + (t.swizzled ? piece ^ r % 8 * 16 : piece);
    std::memset(place, 0, 16);
    const std::int64_t first = std::max<std::int64_t>(0, -at[0] * t.element_bytes - piece);
    const std::int64_t last =
        std::min<std::int64_t>(16, (t.sizes[0] - at[0]) * t.element_bytes - piece);
    if (inside && first < last) {
      std::memcpy(place + first, source + piece + first, static_cast<std::size_t>(last - first));
    }
  }
}

}  // namespace

// One of the copies under way arrives.
void Cluster::deliver(std::size_t i) {
  const BulkCopy copy = copies_[i];
  copies_[i] = copies_.back();
  copies_.pop_back();
  void* fiber = sanitizer_current_fiber();
  sanitizer_switch(copy_engine_);
  sanitizer_acquire(copy.barrier->requests);
  if (copy.tensor == nullptr) {
    std::memcpy(copy.destination, copy.source, copy.bytes);
  } else {
    for (int r = 0; r < copy.tensor->box[1] * copy.tensor->box[2]; ++r) fill_row(copy, r);
  }
  sanitizer_release(copy.barrier->order(copy.barrier->phase));
  sanitizer_switch(fiber);
  copy.barrier->bytes -= copy.bytes;
  complete_if_done(*copy.barrier);
}

}  // namespace fut::emulator
