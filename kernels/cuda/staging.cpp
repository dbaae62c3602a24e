// See the header.
#include "kernels/cuda/staging.h"

#include <algorithm>

#include "kernels/error.h"

namespace fut::cuda {
std::span<const std::byte> UploadRing::copy(std::span<const std::byte> source,
                                            const Stream& stream) {
  if (used_ + source.size() > kPartBytes) {
    read_[part_].record(stream);
    part_ = (part_ + 1) % kParts;
    read_[part_].synchronize();  // nothing to wait for where it was never recorded
    used_ = 0;
  }
  const std::span<std::byte> place =
      memory_.bytes().subspan(part_ * kPartBytes + used_, source.size());
  std::copy(source.begin(), source.end(), place.begin());
  used_ += (source.size() + kAlignment - 1) / kAlignment * kAlignment;
  return place;
}

CudaStaging::CudaStaging(int device, int pieces, std::size_t bytes_each)
    : device_(device),
      bytes_each_(bytes_each),
      memory_(static_cast<std::size_t>(pieces) * bytes_each),
      streams_(static_cast<std::size_t>(pieces)) {}

CudaStaging::~CudaStaging() {
  for (const Stream& stream : streams_) {
    try {
      stream.synchronize();
    } catch (const Error&) {
      // A device that failed reads nothing any more, and said so to whoever asked for it.
    }
  }
}

std::span<std::byte> CudaStaging::take(int piece) {
  use_device(device_);  // of this thread, for what it sends too
  streams_[static_cast<std::size_t>(piece)].synchronize();
  return memory_.bytes().subspan(static_cast<std::size_t>(piece) * bytes_each_, bytes_each_);
}

void CudaStaging::send(int piece, std::span<const std::byte> source, void* destination) {
  copy_to_device(destination, source, streams_[static_cast<std::size_t>(piece)]);
}

void CudaStaging::finish() {
  for (const Stream& stream : streams_) stream.synchronize();
}

}  // namespace fut::cuda
