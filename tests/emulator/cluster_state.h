// What the emulator knows of a cluster at work: threads, warps, blocks, barriers and copies under way.
// For cluster.cpp alone.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/emulator/cluster.h"
#include "tests/emulator/fiber.h"
#include "tests/emulator/thread_sanitizer.h"

namespace fut::emulator {

constexpr std::uint32_t kAllLanes = 0xFFFFFFFFU;
constexpr std::size_t kStackBytes = 128 * 1024;  // touched only as far as they are used
constexpr int kRankShift = 24;                   // of an address; ranks count from 1, 0 is "own"
constexpr int kGuardBytes = 4096;                // around a block's shared memory
constexpr std::uint8_t kGuard = 0xFF;            // a NaN in every format
constexpr int kWarpgroupThreads = 128;
constexpr int kSwizzledBytes = 128;  // of a row
constexpr std::uint32_t kBarrierMark = 0xBA221E20U;

enum class Collective { None, Sync, Exchange, Multiply };
enum class Waits { Nothing, Warp, Block, Cluster, Copy };

struct Block;
struct Warp;

struct Copy4 {
  std::uint8_t* destination;
  const void* source;
};
struct Copy16 {
  std::uint8_t* destination;
  std::array<std::uint8_t, 16> bytes;
};

struct Thread {
  Fiber fiber;
  void* sanitizer = nullptr;
  Block* block = nullptr;
  Warp* warp = nullptr;
  int lane = 0, index = 0;
  Waits waits = Waits::Nothing;
  bool has_turn = false, ended = false;
  int arrivals = 0, waits_done = 0;  // at the cluster's barrier
  int any = 0;                       // result of a barrier of the block
  int warpgroup_products = 0;        // that it began
  std::vector<Copy4> copies;
  std::vector<Copy16> asked_16;
  std::deque<std::vector<Copy16>> groups_16;
  std::vector<std::function<void()>> asked;  // products
  std::deque<std::vector<std::function<void()>>> groups;
};

// What a lane brings to an exchange or a product.
struct Operands {
  Product product = {};
  int from = 0;
  std::uint32_t word = 0;
  std::uint32_t* result = nullptr;
};

struct Warp {
  std::uint32_t ready = 0;  // lanes that could run
  std::uint32_t arrived = 0;
  Collective collective = Collective::None;
  std::array<Operands, kWarpLanes> operands;
  std::array<Thread*, kWarpLanes> threads{};
  unsigned priority = 0;
  std::array<SanitizerOrder, 2> orders;
  int generation = 0;
};

struct Barrier {
  std::uint32_t arrivals = 1, pending = 1;
  std::uint32_t phase = 0;
  std::int64_t bytes = 0;  // expected and not there
  std::vector<Thread*> waiting;
  std::vector<std::uint32_t> next;  // phase that a thread of the block waits for, by its index
  std::vector<bool> repeated;       // a thread has waited for the first phase twice
  std::array<SanitizerOrder, 2> orders;
  SanitizerOrder requests;

  [[nodiscard]] const SanitizerOrder& order(std::uint32_t of_phase) const {
    return orders[of_phase % 2];
  }
};

struct Block {
  int rank = 0, index = 0;
  std::vector<std::uint8_t> memory;  // guards and shared memory
  std::uint8_t* shared = nullptr;
  std::vector<std::unique_ptr<Barrier>> barriers;
  std::array<std::unique_ptr<Barrier>, 16> numbered;  // those of some of the threads
  int running = 0;                                    // threads that have not ended
  bool started = false;
  int arrived = 0, any = 0, generation = 0;
  bool asks = false;
  std::array<SanitizerOrder, 2> orders;
};

struct BulkCopy {
  Barrier* barrier = nullptr;
  std::uint8_t* destination = nullptr;
  const std::uint8_t* source = nullptr;
  std::uint32_t bytes = 0;
  const Tensor* tensor = nullptr;  // of a box, in place of a source
  std::array<int, 3> at = {};
};

class Stacks;

class Cluster {
 public:
  Cluster(const Launch& launch, const std::function<void(std::uint8_t*)>& kernel, int first_block,
          Stacks& stacks);
  ~Cluster();
  std::string run();

  // All of these of the thread that runs.
  [[noreturn]] void fail(const std::string& message);
  void end_thread();
  void call_kernel() { kernel_(self().block->shared); }
  [[nodiscard]] Thread& self() { return *running_; }
  void take_turn();
  [[nodiscard]] std::uint32_t shared_address(const void* pointer);
  [[nodiscard]] std::uint8_t* memory(std::uint32_t address, int bytes, int alignment, bool own);
  [[nodiscard]] std::uint32_t address_in_block(std::uint32_t address, std::uint32_t rank);
  [[nodiscard]] Barrier& barrier(std::uint32_t address, bool own = true);
  [[nodiscard]] Block& block_at(std::uint32_t address);
  void barrier_init(std::uint32_t address, std::uint32_t arrivals);
  void barrier_expect(std::uint32_t address, std::uint32_t bytes, bool own = true);
  void barrier_wait(std::uint32_t address, std::uint32_t parity);
  void bulk_copy(std::uint32_t destination, const void* source, std::uint32_t bytes,
                 std::uint32_t barrier);
  void bulk_copy_to(std::uint32_t destination, const void* source, std::uint32_t bytes,
                    std::uint32_t barrier);
  void copy_box(std::uint32_t destination, const Tensor& tensor, const std::array<int, 3>& at,
                std::uint32_t barrier, bool own);
  void check_readable(const void* source, std::int64_t bytes);
  void meet(Collective kind, const Operands& operands);
  int sync_block(int value, bool asks);
  void meet_at(int id, int threads, bool waits);
  void cluster_arrive();
  void cluster_wait();

 private:
  [[nodiscard]] unsigned draw(unsigned below) { return static_cast<unsigned>(engine_()) % below; }
  void set_up_block(int rank, int first_block, const Launch& launch, const Stacks& stacks);
  void place_thread();
  void make_ready(Thread& thread);
  void suspend(Waits why);
  void run_next();
  [[nodiscard]] Thread* next();
  [[nodiscard]] Warp* choose_warp();
  [[nodiscard]] Thread* take_lane(Warp& warp);
  void ask_for(const BulkCopy& copy);
  void deliver(std::size_t i);
  void deliver_any() { deliver(draw(static_cast<unsigned>(copies_.size()))); }
  void complete_if_done(Barrier& barrier);
  void combine(const Warp& warp);
  [[nodiscard]] std::string deadlock() const;
  [[nodiscard]] std::string check_at_end() const;
  [[nodiscard]] std::string name(const Thread& t) const;

  const Launch& launch_;
  const std::function<void(std::uint8_t*)>& kernel_;
  std::minstd_rand engine_;
  bool by_priority_, early_copies_;
  unsigned changes_;  // of 256 choices, those that leave a warp that could go on
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<std::unique_ptr<Warp>> warps_;
  std::vector<Warp*> ready_;  // warps with a lane that could run
  std::vector<BulkCopy> copies_;
  Fiber main_;
  void* main_sanitizer_ = sanitizer_current_fiber();
  void* copy_engine_ = sanitizer_create_fiber();
  Thread* running_ = nullptr;
  Warp* warp_ = nullptr;  // that ran last
  bool had_turn_ = false;
  SanitizerOrder turn_order_;
  int cluster_arrived_ = 0;
  int cluster_generation_ = 0;
  std::array<SanitizerOrder, 2> cluster_orders_;
  SanitizerOrder end_order_;
  std::string error_;
};

extern Cluster* current;  // that runs

}  // namespace fut::emulator
