// The arrays that the sample op reads, filled on the host for each step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"

namespace fut {

struct SamplingParams {
  SampleParams sample;
  int repeat_last_n = 64;  // window of the penalties, prompt included; -1: everything; 0: off
};

class SampleBuffers {
 public:
  SampleBuffers(Backend& backend, int max_rows, std::int64_t max_history);

  // Rows are added in the order of the step's logit rows; `tokens` is the sequence so far, prompt
  // included, and its length the index of the draw. So a draw depends on seed and position alone.
  void clear();
  void add(const SamplingParams& params, std::span<const std::int32_t> tokens);

  // Draws one token for each row added. kNoToken marks a row whose logits are not finite.
  [[nodiscard]] std::vector<std::int32_t> draw(Backend& backend, MatrixView<const float> logits);

 private:
  std::vector<SampleParams> params_;
  std::vector<std::uint64_t> draw_index_;
  std::vector<std::int32_t> history_;
  std::vector<std::int32_t> history_indptr_;
  DeviceBuffer device_params_, device_draw_index_, device_history_, device_history_indptr_,
      device_next_ids_;
};

}  // namespace fut
