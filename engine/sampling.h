// The arrays that the sample op reads. The host fills them; a loop of decode steps on the device goes on
// from there.
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
  // A row may see up to `max_tokens` of its sequence.
  SampleBuffers(Backend& backend, int max_rows, int max_tokens);
  // What such buffers allocate.
  [[nodiscard]] static std::size_t bytes(int max_rows, int max_tokens);

  // Rows are added in the order of the step's logit rows; `tokens` is the sequence so far, prompt
  // included, and its length the index of the draw. So a draw depends on seed and position alone.
  void clear();
  void add(const SamplingParams& params, std::span<const std::int32_t> tokens);
  // Copies what was added to the device.
  void upload(Backend& backend);

  // Launches the op on what was uploaded last.
  void launch(Backend& backend, const MatrixView<float>& logits) const;
  // upload(), launch() and the tokens: one for each row added. kNoToken marks a row whose logits are
  // not finite.
  [[nodiscard]] std::vector<std::int32_t> draw(Backend& backend, const MatrixView<float>& logits);

  // Names the arrays that a step on the device changes.
  void name_arrays(StepState& state) const;

 private:
  struct Allocation {
    DeviceBuffer SampleBuffers::*buffer;
    std::size_t bytes;
  };
  [[nodiscard]] static std::vector<Allocation> allocations(int max_rows, int max_tokens);

  int max_tokens_;
  std::vector<SampleParams> params_;
  std::vector<std::uint64_t> draw_index_;
  // Row i owns history[i * max_tokens .. (i + 1) * max_tokens]; one without penalties has an empty
  // window that cannot grow.
  std::vector<std::vector<std::int32_t>> histories_;
  std::vector<std::int32_t> begins_, ends_, limits_, windows_;
  DeviceBuffer device_params_, device_draw_index_, device_history_, device_begins_, device_ends_,
      device_limits_, device_windows_, device_next_ids_;
};

}  // namespace fut
