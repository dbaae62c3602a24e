// Tensors of a quantised folder on their way to a backend's memory: a few threads read the file chunk
// by chunk, take its checksums and send each piece on while they read the next. Internal to engine/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "engine/model.h"
#include "kernels/backend.h"
#include "loader/packed_model.h"

namespace fut {

class PackedUpload {
 public:
  PackedUpload(Backend& backend, const PackedModel& packed, const Progress& progress)
      : backend_(backend), packed_(packed), progress_(progress) {}

  // The tensor's bytes go to `device`, to `host`, or to both; null: not there.
  void add(const TensorInfo& info, std::byte* device, std::byte* host = nullptr) {
    wanted_.push_back({&info, device, host});
  }
  // Reads all that was added; the bytes are there when it returns. Throws what PackedModel::read throws,
  // Capacity, and what the progress throws.
  LoadTimes run(const ParallelFor& parallel_for);

  // What the host lends for that, of a file of so many bytes.
  [[nodiscard]] static std::size_t staging_bytes(std::uint64_t file_bytes);

 private:
  struct Wanted {
    const TensorInfo* info;
    std::byte* device;
    std::byte* host;
  };
  class Worker;

  [[nodiscard]] std::vector<std::uint64_t> chunks() const;
  void add_done(std::uint64_t bytes);

  Backend& backend_;
  const PackedModel& packed_;
  const Progress& progress_;
  std::vector<Wanted> wanted_;  // in the order of the file, once it runs
  std::uint64_t total_ = 0;     // bytes to read
  std::mutex mutex_;            // of what follows
  std::uint64_t done_ = 0;
  LoadTimes times_;
};

}  // namespace fut
