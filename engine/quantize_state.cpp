// The card's text first, then hidden states one after the other.
#include "engine/quantize_state.h"

#include <cmath>
#include <string>

#include "kernels/check.h"

namespace fut {

bool SavingTimes::is_due(std::uint64_t bytes, Clock::time_point now) {
  if (bytes > kSmallState) {
    const std::chrono::duration<double> least =
        kSecondsOfGib * std::chrono::seconds(1) * std::ldexp(static_cast<double>(bytes), -30);
    if (now - last_ < kBetweenLargeStates || now - last_ < least) return false;
  }
  last_ = now;
  return true;
}

std::uint64_t state_bytes(std::span<HiddenStates* const> hidden) {
  std::uint64_t bytes = 0;
  for (const HiddenStates* states : hidden) bytes += states->bytes();
  return bytes;
}

SavedState save_state(const ReportCard& card, std::span<HiddenStates* const> hidden) {
  const std::string text = report_card_json(card);
  const auto bytes = std::as_bytes(std::span(text));
  SavedState state;
  state.emplace_back(bytes.begin(), bytes.end());
  for (const HiddenStates* states : hidden) state.push_back(states->save());
  return state;
}

void restore_state(const SavedState& state, ReportCard& card,
                   std::span<HiddenStates* const> hidden) {
  FUT_CHECK(state.size() == 1 + hidden.size(), "{} parts of a saved state for {} streams",
            state.size(), hidden.size());
  card = parse_report_card({reinterpret_cast<const char*>(state[0].data()), state[0].size()});
  for (std::size_t i = 0; i < hidden.size(); ++i) hidden[i]->restore(state[i + 1]);
}

}  // namespace fut
