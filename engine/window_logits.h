// The logits of windows of tokens, row by row in one fixed order, from either path of the engine:
// whole prompts in passes, or one token of each window at a time. Internal to engine/.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/forward.h"
#include "engine/perplexity.h"

namespace fut {

// Some rows of logits, and where they belong.
struct LogitRows {
  struct Place {
    std::size_t window = 0;    // in the group
    std::size_t position = 0;  // of the token that was fed
  };
  std::vector<Place> places;
  MatrixView<const float> logits;  // host memory; void at the next call
};

class WindowLogits {
 public:
  // All windows have `window_tokens` tokens.
  WindowLogits(const ScoredModel& scored, int window_tokens);

  // How many windows make a group: one in prefill, options.lock_step in decode.
  [[nodiscard]] std::size_t group_size() const;

  // Begins a group of at most group_size() windows, which must stay alive until it is done.
  void start(std::span<const std::vector<std::int32_t>> group);

  // The next rows; nothing left: false. Rows of the last position of a window are left out: nothing
  // follows it.
  bool next(LogitRows& rows);

 private:
  [[nodiscard]] Batch step_batch(std::size_t first, std::size_t count) const;
  void run_prefill_pass();
  bool next_prefill(LogitRows& rows);
  bool next_decode(LogitRows& rows);
  void fetch(LogitRows& rows);

  Backend& backend_;
  const Model& model_;
  ScoringOptions options_;
  std::size_t window_tokens_;
  KvCache cache_;
  Workspace workspace_;
  std::span<const std::vector<std::int32_t>> group_;
  std::size_t done_ = 0;       // tokens of each window whose step has run
  std::size_t rows_done_ = 0;  // prefill: tokens whose logits were handed out
  std::vector<float> host_rows_;
};

}  // namespace fut
