// The JSON header of a safetensors file as a grammar: nothing but the keys and types of the format
// gets through. Knows nothing of the file around it; ranges are checked in safetensors.cpp.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace fut {

struct HeaderTensor {
  std::string name;
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;  // data_offsets, from the end of the header
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<HeaderTensor> tensors;  // in the header's order
  std::map<std::string, std::string> metadata;
};

// Fills `header`. Returns what is wrong with `json`, empty when nothing is. Never recurses, and
// holds no more than what it has accepted so far.
[[nodiscard]] std::string parse_safetensors_header(std::string_view json,
                                                   SafetensorsHeader& header);

}  // namespace fut
