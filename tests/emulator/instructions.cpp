// What the headers that stand in for instructions call: the cluster that runs does it.
#include <cstring>
#include <utility>

#include "tests/emulator/cluster.h"
#include "tests/emulator/cluster_state.h"

namespace fut::emulator {

void fail(const std::string& message) {
  current->fail(message);
}
std::uint32_t shared_address(const void* pointer) {
  return current->shared_address(pointer);
}
std::uint32_t address_in_block(std::uint32_t address, std::uint32_t rank) {
  return current->address_in_block(address, rank);
}
std::uint8_t* own_memory(std::uint32_t address, int bytes, int alignment) {
  return current->memory(address, bytes, alignment, true);
}
std::uint8_t* cluster_memory(std::uint32_t address, int bytes, int alignment) {
  return current->memory(address, bytes, alignment, false);
}
void barrier_init(std::uint32_t barrier, std::uint32_t arrivals) {
  current->barrier_init(barrier, arrivals);
}
void barrier_expect(std::uint32_t barrier, std::uint32_t bytes) {
  current->barrier_expect(barrier, bytes);
}
void barrier_arrive(std::uint32_t barrier) {
  current->barrier_expect(barrier, 0, false);
}
void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  current->barrier_wait(barrier, parity);
}
void bulk_copy(std::uint32_t destination, const void* source, std::uint32_t bytes,
               std::uint32_t barrier) {
  current->bulk_copy(destination, source, bytes, barrier);
}
void bulk_copy_to(std::uint32_t destination, const void* source, std::uint32_t bytes,
                  std::uint32_t barrier) {
  current->bulk_copy_to(destination, source, bytes, barrier);
}
void copy_box(std::uint32_t destination, const Tensor& tensor, const std::array<int, 3>& at,
              std::uint32_t barrier) {
  current->copy_box(destination, tensor, at, barrier, true);
}
void copy_box_to(std::uint32_t destination, const Tensor& tensor, const std::array<int, 3>& at,
                 std::uint32_t barrier) {
  current->copy_box(destination, tensor, at, barrier, false);
}
void copy_16_bytes(std::uint32_t destination, const void* source) {
  Copy16 copy = {own_memory(destination, 16, 16), {}};
  if (source != nullptr) std::memcpy(copy.bytes.data(), source, copy.bytes.size());
  current->self().asked_16.push_back(copy);
}
void end_copies() {
  Thread& t = current->self();
  t.groups_16.push_back(std::move(t.asked_16));
  t.asked_16.clear();
}
void wait_for_copies(int pending) {
  Thread& t = current->self();
  for (; static_cast<int>(t.groups_16.size()) > pending; t.groups_16.pop_front()) {
    for (const Copy16& copy : t.groups_16.front()) {
      std::memcpy(copy.destination, copy.bytes.data(), copy.bytes.size());
    }
  }
}
void copy_4_bytes(std::uint32_t destination, const void* source) {
  current->self().copies.push_back({own_memory(destination, 4, 4), source});
}
void land_copies(void (*land)(std::uint8_t* destination, const void* source)) {
  for (const Copy4& copy : current->self().copies) land(copy.destination, copy.source);
  current->self().copies.clear();
}
void sync_warp() {
  current->meet(Collective::Sync, {});
}
std::uint32_t exchange(std::uint32_t value, int from) {
  std::uint32_t result = 0;
  current->meet(Collective::Exchange, {.from = from, .word = value, .result = &result});
  return result;
}
void multiply(const Product& product) {
  current->meet(Collective::Multiply, {.product = product});
}
int sync_block(int value, bool asks) {
  return current->sync_block(value, asks);
}
void meet_at(int id, int threads, bool waits) {
  current->meet_at(id, threads, waits);
}
void begin_warpgroup_products() {
  ++current->self().warpgroup_products;
}
void ask_for_product(std::function<void()> product) {
  current->self().asked.push_back(std::move(product));
}
void end_group() {
  Thread& t = current->self();
  t.groups.push_back(std::move(t.asked));
  t.asked.clear();
}
void wait_for_groups(int pending) {
  Thread& t = current->self();
  if (!t.asked.empty()) fail("waits for products that make no group");
  sync_warp();  // others may go on first, copies arrive: the operands have to be there still
  while (static_cast<int>(t.groups.size()) > pending) {
    const auto group = std::move(t.groups.front());
    t.groups.pop_front();
    for (const auto& product : group) product();
  }
  sync_warp();
}
void cluster_arrive() {
  current->cluster_arrive();
}
void cluster_wait() {
  current->cluster_wait();
}
void take_turn() {
  current->take_turn();
}
bool has_turn() {
  return current->self().has_turn;
}

}  // namespace fut::emulator
