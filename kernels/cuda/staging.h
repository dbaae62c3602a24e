// Ways from the host's memory to the device's without waiting: small arrays of a step through a ring of
// pinned memory, and the weights of a model in large pieces. Includes no CUDA header.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/runtime.h"

namespace fut::cuda {

// Keeps copies of small arrays until the device has read them, so that nobody waits for that.
class UploadRing {
 public:
  UploadRing() : memory_(kParts * kPartBytes) {}

  [[nodiscard]] static constexpr bool takes(std::size_t bytes) { return bytes <= kMostBytes; }
  // A copy of `source`, to be read by a copy that is given to `stream` next. All are for one stream.
  [[nodiscard]] std::span<const std::byte> copy(std::span<const std::byte> source,
                                                const Stream& stream);

 private:
  static constexpr std::size_t kMostBytes = std::size_t{64} << 10;
  static constexpr std::size_t kParts = 4;
  static constexpr std::size_t kPartBytes = 4 * kMostBytes;
  static constexpr std::size_t kAlignment = 64;

  PinnedMemory memory_;
  std::array<Event, kParts> read_;  // of each part, since it was left the last time
  std::size_t part_ = 0;
  std::size_t used_ = 0;  // bytes of the part
};

// Pieces of pinned memory with a stream each: the copy engine takes them as they come.
class CudaStaging final : public Staging {
 public:
  CudaStaging(int device, int pieces, std::size_t bytes_each);
  CudaStaging(const CudaStaging&) = delete;
  CudaStaging& operator=(const CudaStaging&) = delete;
  ~CudaStaging() override;

  [[nodiscard]] std::span<std::byte> take(int piece) override;
  void send(int piece, std::span<const std::byte> source, void* destination) override;
  void finish() override;

 private:
  int device_;
  std::size_t bytes_each_;
  PinnedMemory memory_;
  std::vector<Stream> streams_;
};

}  // namespace fut::cuda
