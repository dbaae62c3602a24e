// What follows sample in a decode loop that stays on the device: the tokens drawn become the next step's
// input.
#pragma once

#include <cstdint>

#include "kernels/ops.h"
#include "kernels/step_ring.h"

namespace fut {

inline constexpr int kMaxEndIds = 16;  // of one row
inline constexpr std::int32_t kWholeHistory = 0x7FFFFFFF;

// The rows of a step of one token a sequence. Device memory, one element a row unless said; all but the
// ring may be written by the host between launches.
struct StepState {
  int rows = 0;
  const std::int32_t* next_ids = nullptr;  // of sample
  // Of RaggedBatch. Pages up to the last position a row may reach are in its page table beforehand.
  std::int32_t* token_ids = nullptr;
  std::int32_t* positions = nullptr;
  std::int32_t* kv_lengths = nullptr;
  // Of SampleArgs. A row's window grows in the row's own region of `history`, which ends at its limit: a
  // row without penalties has an empty one. What is seen is the last `window` ids.
  std::uint64_t* draw_index = nullptr;
  std::int32_t* history = nullptr;
  const std::int32_t* history_limits = nullptr;
  const std::int32_t* history_windows = nullptr;  // kWholeHistory: all
  std::int32_t* history_begins = nullptr;
  std::int32_t* history_ends = nullptr;
  const std::int32_t* end_ids = nullptr;  // [rows, kMaxEndIds], filled up with kNoToken
  std::int32_t* remaining = nullptr;      // tokens that the row may still draw
  std::int32_t* finished = nullptr;       // 0 or 1
  std::uint64_t* step = nullptr;          // [1] of this launch, then of the next
  StepRingView ring;
};

// advance: for each row that has not finished, with t = next_ids[row]:
//   kNoToken      the row has finished
//   a token       remaining -= 1; the row has finished where t is one of its end ids or none remain
//   still going   token_ids = t, positions += 1, kv_lengths += 1, draw_index += 1, t joins the history
// A row that has finished changes no more: later steps repeat its last one, into the same places of the
// cache. Then the step is published: t of each row, kRowFinished for those that had finished before, and
// the step's number, which goes up by 1.
void check(const StepState& state);

// ---- what becomes of a row, the same text for every backend -------------------------------------------

[[nodiscard]] constexpr bool is_end_id(const StepState& s, int row, std::int32_t token) {
  const auto* ids = s.end_ids + static_cast<std::int64_t>(row) * kMaxEndIds;
  bool found = false;
  for (int i = 0; i < kMaxEndIds; ++i) found |= ids[i] == token;
  return found;
}

constexpr void append_to_history(const StepState& s, int row, std::int32_t token) {
  std::int32_t end = s.history_ends[row];
  if (end >= s.history_limits[row]) return;
  s.history[end++] = token;
  s.history_ends[row] = end;
  const std::int32_t begin = s.history_begins[row];
  const std::int32_t window = s.history_windows[row];
  if (end - begin > window) s.history_begins[row] = end - window;
}

// Advances a row; what the ring shows of it.
[[nodiscard]] constexpr std::int32_t advance_row(const StepState& s, int row) {
  if (s.finished[row] != 0) return kRowFinished;
  const std::int32_t token = s.next_ids[row];
  bool finished = token == kNoToken;
  if (!finished) {
    const std::int32_t remaining = s.remaining[row] - 1;
    s.remaining[row] = remaining;
    finished = remaining <= 0 || is_end_id(s, row, token);
  }
  if (finished) {
    s.finished[row] = 1;
    return token;
  }
  s.token_ids[row] = token;
  s.positions[row] += 1;
  s.kv_lengths[row] += 1;
  s.draw_index[row] += 1;
  append_to_history(s, row, token);
  return token;
}

}  // namespace fut
