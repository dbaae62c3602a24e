// What is kept of a run between two layers, and after which of them.
#include "engine/quantize_state.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/unit/quantize_case.h"

namespace fut::test {
namespace {

TEST(SavingTimes, SmallStatesAreSavedEachTime) {
  const SavingTimes::Clock::time_point begin{};
  SavingTimes times(begin);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(times.is_due(SavingTimes::kSmallState, begin));
}

TEST(SavingTimes, LargeOnesNowAndThen) {
  using std::chrono::seconds;
  constexpr std::uint64_t kLarge = SavingTimes::kSmallState + 1;
  const SavingTimes::Clock::time_point begin{};
  SavingTimes times(begin);
  EXPECT_FALSE(times.is_due(kLarge, begin + seconds(29)));
  EXPECT_TRUE(times.is_due(kLarge, begin + seconds(30)));
  EXPECT_FALSE(times.is_due(kLarge, begin + seconds(59)));
  EXPECT_TRUE(times.is_due(kLarge, begin + seconds(60)));
  // Those that take longer to save, less often.
  EXPECT_FALSE(times.is_due(std::uint64_t{4} << 30, begin + seconds(119)));
  EXPECT_TRUE(times.is_due(std::uint64_t{4} << 30, begin + seconds(120)));
}

TEST(SavedState, ComesBack) {
  const TempFolder folder;
  write_toy_model(folder / "toy", quantizable_toy_model());
  QuantizeCase toy(folder / "toy");
  const CalibrationWindows windows = {random_ids(8), random_ids(5)};
  HiddenStates one(*toy.backend, toy.weights, windows);
  HiddenStates other(*toy.backend, toy.weights, {random_ids(3)});
  const std::vector<HiddenStates*> both = {&one, &other};
  EXPECT_EQ(state_bytes(both), 16U * 128 * sizeof(float));
  ReportCard card;
  card.notices = {"a notice"};
  const SavedState state = save_state(card, both);
  const std::vector<std::byte> of_one = one.save(), of_other = other.save();
  one.restore(std::vector<std::byte>(of_one.size()));
  other.restore(std::vector<std::byte>(of_other.size()));
  ReportCard again;
  restore_state(state, again, both);
  EXPECT_EQ(again.notices, card.notices);
  EXPECT_TRUE(one.save() == of_one && other.save() == of_other);
  EXPECT_NE(error_message(ErrorKind::Runtime,
                          [&] {
                            restore_state(state, again, {both.data(), 1});
                          }),
            "");
}

}  // namespace
}  // namespace fut::test
