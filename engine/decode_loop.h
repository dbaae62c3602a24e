// Decode steps that follow each other without the host: the device draws a step's tokens, feeds them to
// the next and shows them in a ring. The host launches ahead and reads behind. On a backend that computes
// while it launches, each step is there when launch() returns.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "engine/forward.h"
#include "engine/sampling.h"

namespace fut {

// What a loop has to know of a row besides the batch and its sampling.
struct DecodeRow {
  std::int64_t remaining_tokens = 0;
  std::span<const std::int32_t> end_ids;  // the first kMaxEndIds of them end the row on the device
};

class DecodeLoop {
 public:
  // All must outlive it; batches have at most max_rows sequences.
  DecodeLoop(Backend& backend, const Model& model, KvCache& cache, Workspace& workspace,
             SampleBuffers& sampling, int max_rows);
  DecodeLoop(const DecodeLoop&) = delete;
  DecodeLoop& operator=(const DecodeLoop&) = delete;
  // Waits for what is under way: it writes into the memory of others.
  ~DecodeLoop();

  // What such a loop allocates: in the device's memory, and in memory that it shares with the host.
  [[nodiscard]] static std::size_t device_bytes(int max_rows);
  [[nodiscard]] static std::size_t shared_bytes(int max_rows);

  // Begins with `batch`, a decode step; `sampling` holds its rows. Nothing may be outstanding.
  void start(const Batch& batch, std::span<const DecodeRow> rows);
  // Whether the device's state is that of these sequences after the steps launched. Rows of others that
  // have ended, or that nobody listens to any more, may go along: beginning anew waits for the device and
  // may have to record, so it is done for clearly fewer rows alone.
  [[nodiscard]] bool runs(std::span<const SequenceId> sequences) const;
  // The workspace is used for something else.
  void stop() { running_ = false; }

  // Launches steps until `count` are outstanding, at most kMostAhead.
  void launch(int count);
  [[nodiscard]] int outstanding() const { return static_cast<int>(launched_ - read_); }
  // Whose the rows are that outstanding steps show.
  [[nodiscard]] std::span<const SequenceId> sequences() const { return sequences_; }
  // The tokens of the oldest outstanding step, once they are there, one a row: kNoToken, or kRowFinished
  // for a row that had ended before. They stay until the step kMostAhead behind it is launched. Throws Runtime where the device
  // failed.
  [[nodiscard]] std::span<const std::int32_t> wait();

  static constexpr int kMostAhead = 4;

  // The most rows for which a loop of `rows` begins anew: 24 of 32, 16 of 24, 12 of 16, ..., 1 of 2.
  [[nodiscard]] static int fewer_rows(int rows);

  // Steps recorded so far, and the time that took.
  struct Recordings {
    int count = 0;
    double seconds = 0;
  };
  [[nodiscard]] const Recordings& recordings() const { return recordings_; }

 private:
  struct Allocation {
    DeviceBuffer DecodeLoop::*buffer;
    std::size_t bytes;
  };
  [[nodiscard]] static std::vector<Allocation> allocations(int max_rows);
  [[nodiscard]] StepRingView ring() const;
  [[nodiscard]] StepState state() const;
  void run_step();
  [[nodiscard]] const Backend::Procedure& recorded_step();

  Backend& backend_;
  const Model& model_;
  KvCache& cache_;
  Workspace& workspace_;
  SampleBuffers& sampling_;
  int max_rows_;
  DeviceBuffer ring_, end_ids_, remaining_, finished_, step_;
  // By rows and kind of contexts, recorded when first needed.
  std::map<std::pair<int, int>, Backend::Procedure> steps_;
  int longest_context_ = 0;  // of the next step to be launched, or more: some rows may have ended
  std::vector<SequenceId> sequences_;
  bool running_ = false;
  Recordings recordings_;
  std::uint64_t launched_ = 0, read_ = 0;  // steps since the loop was made
};

}  // namespace fut
