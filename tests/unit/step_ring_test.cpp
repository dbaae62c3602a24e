// The host's side of the ring of tokens: nothing before it is there, each step once it is, an error once
// it is gone, and whole steps whatever the writer does meanwhile.
#include "kernels/step_ring.h"

#include <atomic>
#include <gtest/gtest.h>
#include <thread>
#include <vector>

#include "kernels/error.h"

namespace fut::test {
namespace {

// A ring in plain memory, and a writer that does what the device does.
class HostRing {
 public:
  HostRing(std::int64_t capacity, int rows) {
    view_ = {nullptr, capacity, rows};
    memory_.resize(static_cast<std::size_t>(view_.bytes()) / sizeof(std::uint64_t));
    view_.data = reinterpret_cast<std::byte*>(memory_.data());
  }
  void publish(std::uint64_t step) {
    std::byte* slot = view_.slot(step);
    auto* tokens = reinterpret_cast<std::int32_t*>(slot + StepRingView::kTokensOffset);
    for (int row = 0; row < view_.rows; ++row) tokens[row] = token(step, row);
    std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(slot))
        .store(step + 1, std::memory_order_release);
  }
  static std::int32_t token(std::uint64_t step, int row) {
    return static_cast<std::int32_t>(step * 100) + row;
  }
  [[nodiscard]] const StepRingView& view() const { return view_; }

 private:
  std::vector<std::uint64_t> memory_;
  StepRingView view_;
};

void expect_step(const HostRing& ring, std::uint64_t step) {
  const auto tokens = poll(ring.view(), step);
  ASSERT_TRUE(tokens.has_value()) << step;
  ASSERT_EQ(tokens->size(), static_cast<std::size_t>(ring.view().rows));
  for (int row = 0; row < ring.view().rows; ++row) {
    EXPECT_EQ((*tokens)[static_cast<std::size_t>(row)], HostRing::token(step, row)) << step;
  }
}

TEST(StepRing, AStepIsThereOnceItIsPublishedAndUntilItsSlotIsReused) {
  for (const int rows : {1, 2, 30, 31, 200}) {
    HostRing ring(3, rows);
    for (std::uint64_t step = 0; step < 10; ++step) {
      EXPECT_FALSE(poll(ring.view(), step).has_value());
      ring.publish(step);
      for (std::uint64_t back = 0; back < 3 && back <= step; ++back) expect_step(ring, step - back);
      if (step < 3) continue;
      EXPECT_THROW(static_cast<void>(poll(ring.view(), step - 3)), Error);
    }
  }
}

TEST(StepRing, SlotsLieApartAndInside) {
  HostRing ring(5, 40);
  const StepRingView& view = ring.view();
  EXPECT_EQ(view.slot_bytes(), 256);
  EXPECT_EQ(view.bytes(), 5 * 256);
  EXPECT_EQ(view.slot(5), view.data);
  EXPECT_EQ(view.slot(9), view.data + 4 * 256);
}

TEST(StepRing, ReadsWholeStepsWhileTheWriterIsAhead) {
  constexpr std::uint64_t kSteps = 2000;
  HostRing ring(8, 32);
  std::atomic<std::uint64_t> read = 0;
  std::thread writer([&] {
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      while (step >= read + 8) std::this_thread::yield();
      ring.publish(step);
    }
  });
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    while (!poll(ring.view(), step)) std::this_thread::yield();
    expect_step(ring, step);
    read = step + 1;
  }
  writer.join();
}

}  // namespace
}  // namespace fut::test
