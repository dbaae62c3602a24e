// Host arrays to a backend's memory. Internal to engine/.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/check.h"

namespace fut {

// Copies `values` to `destination`, from its element `first` on. They must fit.
template <class T>
void upload_values(Backend& backend, const DeviceBuffer& destination, const std::vector<T>& values,
                   std::size_t first = 0) {
  const auto bytes = std::as_bytes(std::span(values));
  const std::size_t offset = first * sizeof(T);
  FUT_CHECK(offset + bytes.size() <= destination.bytes(), "{} bytes for a buffer of {}",
            offset + bytes.size(), destination.bytes());
  backend.upload(destination.as<std::byte>() + offset, bytes);
}

}  // namespace fut
