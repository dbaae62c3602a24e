// Cards by name, for plans of machines that are not here: memory, and what they could do on paper. Those
// that this program has kernels for (Hopper).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "engine/roofline.h"

namespace fut::app {

struct NamedGpu {
  std::string_view name;         // "h200"
  std::string_view device_name;  // as its driver says it: "NVIDIA H200"
  std::size_t memory_bytes = 0;  // as programs see them, rounded down
  Roof roof;
};

[[nodiscard]] std::span<const NamedGpu> named_gpus();  // by rising memory
[[nodiscard]] std::string gpu_names();                 // "h100, h100-pcie, ..."
// nullptr: none of them.
[[nodiscard]] const NamedGpu* gpu_by_name(std::string_view name);
// The one that a backend's description is about; nullptr: none of them.
[[nodiscard]] const NamedGpu* gpu_of_description(std::string_view description);

}  // namespace fut::app
