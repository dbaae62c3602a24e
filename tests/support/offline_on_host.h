// The CPU backend with what quantising asks of a device, done by the host's own code: how a device is
// driven can be looked at bit by bit without one.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/backend.h"

namespace fut::test {

// On one thread. `allocated`, where given, counts the bytes that were ever allocated.
[[nodiscard]] std::unique_ptr<Backend> offline_cpu_backend(std::uint64_t* allocated = nullptr);

}  // namespace fut::test
