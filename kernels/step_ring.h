// The tokens of each step of a device-resident loop, on their way to the host: a ring in host memory
// that the device writes and the host polls, so that the host never waits for the stream.
//
// Slot s % capacity holds step s: a number, s + 1 once the tokens are in, then one token a row. The
// device writes the number last, with release; the host reads it first, with acquire. The device does
// not look whether a slot was read: who launches may be `capacity` steps ahead of what was read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace fut {

// What stands in place of a token for a row that had finished before the step.
inline constexpr std::int32_t kRowFinished = -2;

// Where a ring lies; the same address for both sides. Zeros before the first step.
struct StepRingView {
  std::byte* data = nullptr;
  std::int64_t capacity = 0;  // steps
  int rows = 0;

  static constexpr std::int64_t kTokensOffset = 8;  // behind the number, in bytes

  // Slots do not share a line.
  [[nodiscard]] constexpr std::int64_t slot_bytes() const {
    constexpr std::int64_t kLine = 128;
    return (kTokensOffset + rows * 4 + kLine - 1) / kLine * kLine;
  }
  [[nodiscard]] constexpr std::int64_t bytes() const { return capacity * slot_bytes(); }
  [[nodiscard]] constexpr std::byte* slot(std::uint64_t step) const {
    return data +
           static_cast<std::int64_t>(step % static_cast<std::uint64_t>(capacity)) * slot_bytes();
  }
};

// The tokens of `step`, one a row, or nothing while the device has not got there. They stay until the
// step `capacity` later is launched. Throws Runtime where that one has overwritten them; while it
// does they are undefined.
[[nodiscard]] std::optional<std::span<const std::int32_t>> poll(const StepRingView& ring,
                                                                std::uint64_t step);

}  // namespace fut
