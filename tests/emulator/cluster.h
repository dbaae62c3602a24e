// Runs a kernel's own source on the CPU: every thread of a cluster's blocks is a fiber, and one of them
// runs at a time, until it has to wait for others. Whose turn it is then, and when a copy arrives, is
// drawn by lot. A program that lacks a barrier meets an order in which that shows; one that waits for
// what never comes is told so. Shared memory is full of NaN at first, and so is a place that a copy has
// been asked for, until it arrives.
//
// What it does not show: lanes that run an instruction apart which has to be run together, bank
// conflicts, registers, time, and the order of additions within the tensor core.
//
// Under the thread sanitizer each fiber is a thread of its own, ordered by the emulated barriers alone:
// there a missing one is reported in whatever order things happened.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>

namespace fut::emulator {

inline constexpr int kWarpLanes = 32;

struct Launch {
  int num_blocks = 1;
  int cluster = 1;         // blocks that run at a time; others before them or behind
  bool backwards = false;  // the last cluster first
  int threads = 32;        // of a block, a multiple of 32
  int shared_bytes = 0;    // of a block
  // What copies may read besides what kernels read by themselves.
  const std::uint8_t* readable = nullptr;
  std::int64_t readable_bytes = 0;
  std::uint32_t seed = 0;  // of all that is drawn; the last three bits choose how turns are taken
  std::function<void()> first_turn = {};  // the kernels before have ended, for this cluster
  int blocks_in_row = 0;                  // blockIdx.y counts the rows; 0: one row
  // Threads may wait for a barrier's first phase twice. Where they may not, a parity that never turns is told from
  // that at once.
  bool first_phase_twice = false;
};

// Runs `kernel`, given a block's shared memory, by every thread, cluster after cluster; what went wrong,
// or nothing. One launch at a time.
[[nodiscard]] std::string run(const Launch& launch,
                              const std::function<void(std::uint8_t* shared)>& kernel);

// A tensor that copies read in boxes, dimensions from the innermost on. What a box has outside of it is zero.
struct Tensor {
  const void* data = nullptr;
  int element_bytes = 2;
  std::array<std::int64_t, 3> sizes = {1, 1, 1};
  std::array<std::int64_t, 2> strides = {};  // in bytes, of the outer dimensions
  std::array<int, 3> box = {1, 1, 1};
  bool swizzled = true;      // rows of 128 bytes, their pieces of 16 exchanged as wgmma wants it
  bool is_constant = false;  // may be read before the kernel's turn
  bool spread = false;       // rows of a box in the order of layout/prompt_tile.h
};

// ---- for the headers that stand in for instructions, called by emulated threads --------------------

// Ends the launch with this message; does not return.
[[noreturn]] void fail(const std::string& message);

// Addresses: an offset in the own block's shared memory, or with a block's rank in the upper bits.
[[nodiscard]] std::uint32_t shared_address(const void* pointer);
[[nodiscard]] std::uint32_t address_in_block(std::uint32_t address, std::uint32_t rank);
// `bytes` at an address in the own block's memory, aligned to `alignment`.
[[nodiscard]] std::uint8_t* own_memory(std::uint32_t address, int bytes, int alignment);
// The same in any block's, which has to be running.
[[nodiscard]] std::uint8_t* cluster_memory(std::uint32_t address, int bytes, int alignment);

void barrier_init(std::uint32_t barrier, std::uint32_t arrivals);
void barrier_expect(std::uint32_t barrier, std::uint32_t bytes);
// A thread waits for phase after phase; in front of the first one there is one that is over. Parity tells no
// more than two of them apart.
void barrier_wait(std::uint32_t barrier, std::uint32_t parity);
// At any block's barrier.
void barrier_arrive(std::uint32_t barrier);
// The copy; its destination has been poisoned by the caller.
void bulk_copy(std::uint32_t destination, const void* source, std::uint32_t bytes,
               std::uint32_t barrier);
// The same to any block's memory and a barrier of that block, which need not expect it yet.
void bulk_copy_to(std::uint32_t destination, const void* source, std::uint32_t bytes,
                  std::uint32_t barrier);
// The box of a tensor that begins at `at`, to the own block's memory, which is poisoned.
void copy_box(std::uint32_t destination, const Tensor& tensor, const std::array<int, 3>& at,
              std::uint32_t barrier);
// The same to any block's memory and a barrier of that block, which need not expect it yet.
void copy_box_to(std::uint32_t destination, const Tensor& tensor, const std::array<int, 3>& at,
                 std::uint32_t barrier);
// Zeros where there is no source. Those asked for make a group; until at most `pending` groups are under way.
// A copy arrives as late as may be.
void copy_16_bytes(std::uint32_t destination, const void* source);
void end_copies();
void wait_for_copies(int pending);
void copy_4_bytes(std::uint32_t destination, const void* source);
// Calls land(destination, source) for this thread's copies.
void land_copies(void (*land)(std::uint8_t* destination, const void* source));

void sync_warp();
// The 32 bits that lane `from` of the warp gives.
[[nodiscard]] std::uint32_t exchange(std::uint32_t value, int from);
// c[tile] += a[step] b[step][tile] as mma.m16n8k16 has its fragments, FP16 or BF16 operands; columns of a
// ascending, one after the other.
struct Product {
  float (*c)[4];
  const std::uint32_t (*a)[4];
  const std::uint32_t (*b)[2];
  int tiles, steps;
  bool is_bf16 = false;
};
void multiply(const Product& product);
// Of the block; whether any thread's `value` is not 0.
int sync_block(int value, bool asks);
// Barrier `id` of `threads` of the block's threads; without `waits` this one goes on at once.
void meet_at(int id, int threads, bool waits);
// All four warps of a warpgroup have to call it equally often.
void begin_warpgroup_products();
// A product of this thread's that is under way from now on; those asked for make a group; until at most
// `pending` groups are under way. A product is done as late as may be, by whole warps.
void ask_for_product(std::function<void()> product);
void end_group();
void wait_for_groups(int pending);
void cluster_arrive();
void cluster_wait();

// Whether this thread has waited for the kernels before, and that it has.
void take_turn();
[[nodiscard]] bool has_turn();

}  // namespace fut::emulator
