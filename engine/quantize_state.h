// What quantising needs to go on after a layer: the report card so far and hidden states, in parts that
// PackedWriter::save_progress keeps. Internal to engine/.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>

#include "engine/quantize_runner.h"
#include "loader/packed_progress.h"
#include "loader/report_card.h"

namespace fut {

// After which layers to save: small states after each, so that a kill costs one layer; large ones now and
// then, so that saving them, during which a device waits for some seconds, stays below a tenth of the time.
class SavingTimes {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::uint64_t kSmallState = std::uint64_t{1} << 28;
  static constexpr std::chrono::seconds kBetweenLargeStates{30};
  static constexpr double kSecondsOfGib = 15;  // between states of so much

  explicit SavingTimes(Clock::time_point begin = Clock::now()) : last_(begin) {}
  // Whether a state of so many bytes is to be saved now; it is then.
  [[nodiscard]] bool is_due(std::uint64_t bytes, Clock::time_point now = Clock::now());

 private:
  Clock::time_point last_;
};
[[nodiscard]] std::uint64_t state_bytes(std::span<HiddenStates* const> hidden);

[[nodiscard]] SavedState save_state(const ReportCard& card, std::span<HiddenStates* const> hidden);
// From parts of save_state, for as many hidden states of the same sizes.
void restore_state(const SavedState& state, ReportCard& card,
                   std::span<HiddenStates* const> hidden);

}  // namespace fut
