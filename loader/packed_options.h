// How a packed folder was made, as its file says it: everything that the packed bytes depend on
// besides the source.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "loader/int4_grid.h"

namespace fut {

enum class QuantMethod { Rtn, Gptq };
[[nodiscard]] std::string_view method_name(QuantMethod method);  // "rtn", "gptq"

// The text that calibration ran on. The name is the file's own, without folders.
struct CalibrationText {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;
  bool operator==(const CalibrationText&) const = default;
};

struct PackedOptions {
  QuantMethod method = QuantMethod::Rtn;
  int group_size = 128;
  ScaleRule scale_rule = ScaleRule::Searched;
  bool rotate = false;
  std::uint64_t rotation_seed = 0;
  bool balance_qk = true;
  bool balance_ffn = true;
  bool kv_rotation = true;
  CalibrationText calibration;
  std::int64_t calibration_tokens = 0;
  bool operator==(const PackedOptions&) const = default;
};

// One line of JSON, keys in alphabetical order: equal options give equal text.
[[nodiscard]] std::string options_json(const PackedOptions& options);

// The inverse. Throws Data naming `file`, key and value.
[[nodiscard]] PackedOptions parse_options(const std::filesystem::path& file, std::string_view json);

}  // namespace fut
