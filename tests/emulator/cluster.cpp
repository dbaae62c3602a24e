// The emulator's turns, and where warps, blocks and clusters meet. Compiled without the thread sanitizer,
// which would see fibers share this bookkeeping; it is told of what orders them instead.
#include "tests/emulator/cluster.h"

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <random>
#include <sys/mman.h>
#include <vector>

#include "kernels/numeric/formats.h"
#include "tests/emulator/cluster_state.h"
#include "tests/emulator/device.h"

namespace fut::cuda {
Dimensions threadIdx, blockIdx, blockDim, gridDim;
}  // namespace fut::cuda

namespace fut::emulator {
// Stacks are made once: it takes longer than many a launch.
class Stacks {
 public:
  ~Stacks() {
    if (memory_ != nullptr) munmap(memory_, count_ * kStackBytes);
  }
  void reserve(std::size_t count) {
    if (count <= count_) return;
    if (memory_ != nullptr) munmap(memory_, count_ * kStackBytes);
    void* memory = mmap(nullptr, count * kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<std::byte*>(memory);
    count_ = count;
  }
  [[nodiscard]] std::span<std::byte> stack(std::size_t i) const {
    return {memory_ + i * kStackBytes, kStackBytes};
  }

 private:
  std::byte* memory_ = nullptr;
  std::size_t count_ = 0;
};

Cluster* current = nullptr;

namespace {

void enter_thread() {
  current->call_kernel();
  current->end_thread();
}

}  // namespace

Cluster::Cluster(const Launch& launch, const std::function<void(std::uint8_t*)>& kernel,
                 int first_block, Stacks& stacks)
    : launch_(launch),
      kernel_(kernel),
      engine_(launch.seed * 0x9E3779B1U + static_cast<unsigned>(first_block) + 1),
      by_priority_(launch.seed % 4 == 1),
      early_copies_(launch.seed % 4 == 2 || launch.seed % 8 == 5),
      changes_(launch.seed % 4 == 0   ? 16
               : launch.seed % 4 == 2 ? 128
                                      : 0) {
  // Room for all there will be, so that no fiber frees what another one has written.
  const auto warps = static_cast<std::size_t>(launch.cluster * launch.threads / kWarpLanes);
  ready_.reserve(warps);
  copies_.reserve(16 * warps);
  for (int rank = 0; rank < launch.cluster; ++rank) {
    set_up_block(rank, first_block, launch, stacks);
  }
}

void Cluster::set_up_block(int rank, int first_block, const Launch& launch, const Stacks& stacks) {
  auto block = std::make_unique<Block>();
  block->rank = rank;
  block->index = first_block + rank;
  block->memory.resize(static_cast<std::size_t>(launch.shared_bytes + 2 * kGuardBytes + 128),
                       kGuard);
  auto place = reinterpret_cast<std::uintptr_t>(block->memory.data()) + kGuardBytes;
  block->shared = reinterpret_cast<std::uint8_t*>((place + 127) / 128 * 128);
  block->running = launch.threads;
  block->barriers.reserve(static_cast<std::size_t>(launch.threads));
  for (int i = 0; i < launch.threads; ++i) {
    if (i % kWarpLanes == 0) {
      warps_.push_back(std::make_unique<Warp>());
      warps_.back()->priority = draw(1U << 30);
    }
    auto thread = std::make_unique<Thread>();
    thread->block = block.get();
    thread->warp = warps_.back().get();
    thread->lane = i % kWarpLanes;
    thread->index = i;
    thread->warp->threads[static_cast<std::size_t>(thread->lane)] = thread.get();
    thread->sanitizer = sanitizer_create_fiber();
    thread->fiber.prepare(stacks.stack(threads_.size()), enter_thread);
    make_ready(*thread);
    threads_.push_back(std::move(thread));
  }
  blocks_.push_back(std::move(block));
}

Cluster::~Cluster() {
  for (const auto& thread : threads_) sanitizer_destroy_fiber(thread->sanitizer);
  sanitizer_destroy_fiber(copy_engine_);
}

// ---- whose turn it is ------------------------------------------------------------------------------

std::string Cluster::run() {
  current = this;
  running_ = next();
  cuda::blockDim.x = static_cast<std::uint32_t>(launch_.threads);
  cuda::gridDim.x = static_cast<std::uint32_t>(launch_.blocks_in_row > 0 ? launch_.blocks_in_row
                                                                         : launch_.num_blocks);
  place_thread();
  sanitizer_switch(running_->sanitizer);
  Fiber::change(main_, running_->fiber);
  sanitizer_acquire(end_order_);
  current = nullptr;
  if (!error_.empty()) return error_;
  return check_at_end();
}

// Where the thread that runs stands, in the words that it reads.
void Cluster::place_thread() {
  const auto block = static_cast<std::uint32_t>(running_->block->index);
  cuda::threadIdx.x = static_cast<std::uint32_t>(running_->index);
  cuda::blockIdx.x = block % cuda::gridDim.x;
  cuda::blockIdx.y = block / cuda::gridDim.x;
  running_->block->started = true;
}

void Cluster::make_ready(Thread& thread) {
  Warp& warp = *thread.warp;
  if (warp.ready == 0) ready_.push_back(&warp);
  warp.ready |= 1U << thread.lane;
  thread.waits = Waits::Nothing;
}

Warp* Cluster::choose_warp() {
  if (ready_.empty()) return nullptr;
  const bool stays = warp_ != nullptr && warp_->ready != 0;
  if (by_priority_) {
    return *std::max_element(ready_.begin(), ready_.end(), [](const Warp* a, const Warp* b) {
      return a->priority < b->priority;
    });
  }
  if (stays && draw(256) >= changes_) return warp_;
  return ready_[draw(static_cast<unsigned>(ready_.size()))];
}

Thread* Cluster::take_lane(Warp& warp) {
  const auto from = static_cast<int>(draw(kWarpLanes));
  const int lane = (std::countr_zero(std::rotr(warp.ready, from)) + from) % kWarpLanes;
  warp.ready &= ~(1U << lane);
  if (warp.ready == 0) {
    auto place = std::find(ready_.begin(), ready_.end(), &warp);
    *place = ready_.back();
    ready_.pop_back();
  }
  return warp.threads[static_cast<std::size_t>(lane)];
}

Thread* Cluster::next() {
  for (;;) {
    if (early_copies_ && !copies_.empty() && draw(64) == 0) deliver_any();
    if (Warp* warp = choose_warp()) {
      warp_ = warp;
      return take_lane(*warp);
    }
    if (copies_.empty()) return nullptr;
    deliver_any();
  }
}

// Leaves the thread that runs for the next one, or for run() where there is none.
void Cluster::run_next() {
  Thread& from = *running_;
  running_ = next();
  if (running_ == &from) return;
  if (running_ == nullptr) {
    if (std::any_of(threads_.begin(), threads_.end(), [](const auto& t) { return !t->ended; })) {
      error_ = deadlock();
    }
    sanitizer_switch(main_sanitizer_);
    Fiber::change(from.fiber, main_);
  }
  place_thread();
  sanitizer_switch(running_->sanitizer);
  Fiber::change(from.fiber, running_->fiber);
}

void Cluster::suspend(Waits why) {
  running_->waits = why;
  run_next();
}

void Cluster::end_thread() {
  Thread& t = self();
  if (t.arrivals != t.waits_done)
    fail("ended between arriving at the cluster's barrier and waiting");
  if (!t.copies.empty()) fail("ended before its copies of 4 bytes were there");
  for (const auto& group : t.groups_16) {
    if (!group.empty()) fail("ended before its copies of 16 bytes were there");
  }
  t.ended = true;
  sanitizer_release(end_order_);
  if (--t.block->running == 0) {
    const auto in_block = [&](const std::uint8_t* place) {
      return place >= t.block->shared && place < t.block->shared + launch_.shared_bytes;
    };
    for (const BulkCopy& copy : copies_) {
      if (in_block(copy.destination)) fail("the block ends before a copy into it is there");
    }
  }
  run_next();
  __builtin_unreachable();
}

void Cluster::take_turn() {
  if (!had_turn_ && launch_.first_turn) {
    launch_.first_turn();
    sanitizer_release(turn_order_);
  }
  had_turn_ = true;
  sanitizer_acquire(turn_order_);
  self().has_turn = true;
}

void Cluster::fail(const std::string& message) {
  error_ = name(self()) + ": " + message;
  sanitizer_switch(main_sanitizer_);
  Fiber::change(running_->fiber, main_);
  __builtin_unreachable();
}

std::string Cluster::name(const Thread& t) const {
  return "block " + std::to_string(t.block->index) + ", warp " +
         std::to_string(t.index / kWarpLanes) + ", lane " + std::to_string(t.lane);
}

std::string Cluster::deadlock() const {
  constexpr std::array<const char*, 5> kWaits = {"nothing", "its warp", "its block", "its cluster",
                                                 "a copy"};
  std::string text = "nobody can go on";
  int told = 0;
  for (const auto& t : threads_) {
    if (t->ended || ++told > 8) continue;
    text += "; " + name(*t) + " waits for " + kWaits[static_cast<std::size_t>(t->waits)];
  }
  return text + "; " + std::to_string(told) + " threads in all";
}

std::string Cluster::check_at_end() const {
  for (const auto& t : threads_) {
    const Thread& first = *threads_[static_cast<std::size_t>(
        t->block->rank * launch_.threads + t->index / kWarpgroupThreads * kWarpgroupThreads)];
    if (t->warpgroup_products != first.warpgroup_products) {
      return name(*t) + ": its warpgroup multiplied more often, or less";
    }
    if (!t->asked.empty() || !t->groups.empty()) return name(*t) + ": a product is under way";
  }
  for (const auto& block : blocks_) {
    const std::uint8_t* end = block->shared + launch_.shared_bytes;
    const auto clean = [](std::uint8_t byte) { return byte == kGuard; };
    if (!std::all_of(static_cast<const std::uint8_t*>(block->memory.data()),
                     static_cast<const std::uint8_t*>(block->shared), clean) ||
        !std::all_of(end,
                     static_cast<const std::uint8_t*>(block->memory.data()) + block->memory.size(),
                     clean)) {
      return "block " + std::to_string(block->index) + " wrote beside its shared memory";
    }
    const auto half_complete = [](const std::unique_ptr<Barrier>& b) {
      return b != nullptr && (b->bytes != 0 || b->pending != b->arrivals);
    };
    if (std::any_of(block->barriers.begin(), block->barriers.end(), half_complete) ||
        std::any_of(block->numbered.begin(), block->numbered.end(), half_complete)) {
      return "block " + std::to_string(block->index) + " leaves a barrier half complete";
    }
  }
  return {};
}

// ---- warps, blocks and clusters --------------------------------------------------------------------

namespace {

using Lanes = std::array<Operands, kWarpLanes>;

float half_of(std::uint32_t word, int i, bool is_bf16) {
  if (is_bf16) return bf16_to_f32(static_cast<std::uint16_t>(word >> 16 * i));
  static const auto kFloats = [] {
    auto floats = std::make_unique<std::array<float, 65536>>();
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      (*floats)[bits] = f16_to_f32(static_cast<std::uint16_t>(bits));
    }
    return floats;
  }();
  return (*kFloats)[word >> 16 * i & 0xFFFFU];
}

// The fragments of mma.m16n8k16: register i / 2, half i % 2 of a lane 4 g + t.
void multiply_step(const Lanes& lanes, int step, int tile) {
  std::array<std::array<float, 16>, 16> a;  // [row][k]
  std::array<std::array<float, 8>, 16> b;   // [k][column]
  std::array<std::array<float, 8>, 16> c;   // [row][column]
  for (std::size_t lane = 0; lane < kWarpLanes; ++lane) {
    const std::size_t g = lane / 4;
    const std::size_t t = lane % 4;
    const Product& p = lanes[lane].product;
    for (std::size_t i = 0; i < 8; ++i) {
      a[g + i / 2 % 2 * 8][2 * t + i % 2 + i / 4 * 8] = half_of(p.a[step][i / 2], i % 2, p.is_bf16);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      b[2 * t + i % 2 + i / 2 * 8][g] =
          half_of(p.b[step * p.tiles + tile][i / 2], i % 2, p.is_bf16);
      c[g + i / 2 * 8][2 * t + i % 2] = p.c[tile][i];
    }
  }
  for (std::size_t row = 0; row < 16; ++row) {
    for (std::size_t k = 0; k < 16; ++k) {
      for (std::size_t n = 0; n < 8; ++n) c[row][n] += a[row][k] * b[k][n];
    }
  }
  for (std::size_t lane = 0; lane < kWarpLanes; ++lane) {
    for (std::size_t i = 0; i < 4; ++i) {
      lanes[lane].product.c[tile][i] = c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
    }
  }
}

}  // namespace

void Cluster::combine(const Warp& warp) {
  if (warp.collective == Collective::Exchange) {
    for (const Operands& own : warp.operands) {
      *own.result = warp.operands[static_cast<std::size_t>(own.from)].word;
    }
  }
  if (warp.collective == Collective::Multiply) {
    const Product& p = warp.operands[0].product;
    for (int step = 0; step < p.steps; ++step) {
      for (int tile = 0; tile < p.tiles; ++tile) multiply_step(warp.operands, step, tile);
    }
  }
}

void Cluster::meet(Collective kind, const Operands& operands) {
  Thread& t = self();
  Warp& warp = *t.warp;
  if (warp.arrived == 0) warp.collective = kind;
  if (warp.collective != kind) fail("lanes of a warp meet at different instructions");
  // An exchange or a product orders no memory.
  SanitizerOrder& order = warp.orders[static_cast<std::size_t>(warp.generation % 2)];
  if (kind == Collective::Sync) sanitizer_release(order);
  warp.operands[static_cast<std::size_t>(t.lane)] = operands;
  warp.arrived |= 1U << t.lane;
  if (warp.arrived == kAllLanes) {
    combine(warp);
    warp.arrived = 0;
    if (kind == Collective::Sync) ++warp.generation;
    for (Thread* thread : warp.threads) make_ready(*thread);
    run_next();
  } else {
    suspend(Waits::Warp);
  }
  if (kind == Collective::Sync) sanitizer_acquire(order);
}

int Cluster::sync_block(int value, bool asks) {
  Thread& t = self();
  Block& block = *t.block;
  if (block.arrived == 0) block.asks = asks;
  if (block.asks != asks) fail("threads of a block meet at different barriers");
  SanitizerOrder& order = block.orders[static_cast<std::size_t>(block.generation % 2)];
  sanitizer_release(order);
  block.any |= value;
  if (++block.arrived == launch_.threads) {
    for (const auto& thread : threads_) {
      if (thread->block != &block) continue;
      thread->any = block.any;
      make_ready(*thread);
    }
    block.arrived = 0;
    block.any = 0;
    ++block.generation;
    run_next();
  } else {
    suspend(Waits::Block);
  }
  sanitizer_acquire(order);
  return t.any;
}

void Cluster::meet_at(int id, int threads, bool waits) {
  std::unique_ptr<Barrier>& numbered = self().block->numbered.at(static_cast<std::size_t>(id));
  if (numbered == nullptr) {
    numbered = std::make_unique<Barrier>();
    numbered->waiting.reserve(static_cast<std::size_t>(threads));
    numbered->arrivals = numbered->pending = static_cast<std::uint32_t>(threads);
  }
  Barrier& b = *numbered;
  if (b.arrivals != static_cast<std::uint32_t>(threads)) fail("a barrier of other threads before");
  const std::uint32_t phase = b.phase;
  sanitizer_release(b.order(phase));
  --b.pending;
  complete_if_done(b);
  if (!waits) return;
  while (b.phase == phase) {
    b.waiting.push_back(running_);
    suspend(Waits::Block);
  }
  sanitizer_acquire(b.order(phase));
}

void Cluster::cluster_arrive() {
  Thread& t = self();
  if (t.arrivals != t.waits_done) fail("arrives twice at the cluster's barrier");
  ++t.arrivals;
  sanitizer_release(cluster_orders_[static_cast<std::size_t>(cluster_generation_ % 2)]);
  if (++cluster_arrived_ < static_cast<int>(threads_.size())) return;
  cluster_arrived_ = 0;
  ++cluster_generation_;
  for (const auto& thread : threads_) {
    if (thread->waits == Waits::Cluster) make_ready(*thread);
  }
}

void Cluster::cluster_wait() {
  Thread& t = self();
  if (t.arrivals != t.waits_done + 1) fail("waits at the cluster's barrier without arriving");
  if (cluster_generation_ < t.arrivals) suspend(Waits::Cluster);
  sanitizer_acquire(cluster_orders_[static_cast<std::size_t>(t.waits_done % 2)]);
  ++t.waits_done;
}

// ---- launches --------------------------------------------------------------------------------------

std::string run(const Launch& launch, const std::function<void(std::uint8_t*)>& kernel) {
  static Stacks stacks;
  stacks.reserve(static_cast<std::size_t>(launch.cluster * launch.threads));
  for (int done = 0; done < launch.num_blocks; done += launch.cluster) {
    const int first = launch.backwards ? launch.num_blocks - launch.cluster - done : done;
    std::string error = Cluster(launch, kernel, first, stacks).run();
    if (!error.empty()) return error;
  }
  return {};
}

}  // namespace fut::emulator
