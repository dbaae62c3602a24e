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

#include <cstdint>
#include <functional>
#include <string>

namespace fut::emulator {

inline constexpr int kWarpLanes = 32;

struct Launch {
  int num_blocks = 1;
  int cluster = 1;
  int threads = 32;      // of a block, a multiple of 32
  int shared_bytes = 0;  // of a block
  // What copies may read besides what kernels read by themselves.
  const std::uint8_t* readable = nullptr;
  std::int64_t readable_bytes = 0;
  std::uint32_t seed = 0;  // of all that is drawn; the last two bits choose how turns are taken
};

// Runs `kernel`, given a block's shared memory, by every thread, cluster after cluster; what went wrong,
// or nothing. One launch at a time.
[[nodiscard]] std::string run(const Launch& launch,
                              const std::function<void(std::uint8_t* shared)>& kernel);

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
void barrier_wait(std::uint32_t barrier, std::uint32_t parity);
// At any block's barrier.
void barrier_arrive(std::uint32_t barrier);
// The copy; its destination has been poisoned by the caller.
void bulk_copy(std::uint32_t destination, const void* source, std::uint32_t bytes,
               std::uint32_t barrier);
// The same to any block's memory and a barrier of that block, which need not expect it yet.
void bulk_copy_to(std::uint32_t destination, const void* source, std::uint32_t bytes,
                  std::uint32_t barrier);
// From the own block's memory to any block's; arrives on a barrier of that block. And until this thread's
// copies of this kind have read their sources.
void copy_to_block(std::uint32_t destination, std::uint32_t source, std::uint32_t bytes,
                   std::uint32_t barrier);
void wait_until_sent();
void copy_4_bytes(std::uint32_t destination, const void* source);
// Calls land(destination, source) for this thread's copies.
void land_copies(void (*land)(std::uint8_t* destination, const void* source));

void sync_warp();
[[nodiscard]] float shuffle_xor(float value, int distance);
// c += a b as mma.m16n8k16 has its fragments; columns of a ascending, one after the other.
void multiply(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);
// Of the block; whether any thread's `value` is not 0.
int sync_block(int value, bool asks);
void cluster_arrive();
void cluster_wait();

// Whether this thread has waited for the kernels before, and that it has.
void take_turn();
[[nodiscard]] bool has_turn();

}  // namespace fut::emulator
