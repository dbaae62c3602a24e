// One run of the quantiser as commands start it: the calibration text read and encoded, progress
// shown on a terminal, Ctrl-C noticed. Where the result goes is the caller's choice.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "kernels/backend.h"
#include "loader/packed_options.h"
#include "loader/report_card.h"
#include "tokenizer/tokenizer.h"

namespace fut::app {

// The calibration text: a file of the user, or the one in the program.
struct CalibrationSource {
  std::string name;  // without folders
  std::string text;
};
// An empty path is the text in the program. Throws Data for a file that cannot be read or is empty.
[[nodiscard]] CalibrationSource read_calibration(const std::string& path);

// Fills what the packed file says of the text. `tokens` absent: as many as the method wants.
void set_calibration(PackedOptions& options, const CalibrationSource& source,
                     std::optional<std::int64_t> tokens);

struct QuantizeJob {
  std::filesystem::path source;
  std::filesystem::path target;
  PackedOptions options;  // set_calibration has seen them
  int threads = 0;        // of the host; 0: all cores
  bool overwrite = false;
};

struct QuantizeOutcome {
  std::uint64_t source_bytes = 0;  // of the checkpoint's tensors that are read
  ReportCard card;
  std::int64_t text_tokens = 0;  // of the whole calibration text
  double seconds = 0;
  std::string device;
  std::uint64_t peak_host_bytes = 0;  // of the process since it began
  std::optional<std::uint64_t>
      peak_device_bytes;  // beside what was in use before; a device's alone
  std::uint64_t planned_device_bytes =
      0;  // quantizer_bytes(), without libraries and scratch memory
};

// Throws as quantize_folder, and Interrupted with a message of what is kept; nothing is left under the target
// then. `backend` as there.
QuantizeOutcome run_quantize_job(Backend& backend, const QuantizeJob& job,
                                 const CalibrationSource& calibration, const Tokenizer& tokenizer);

}  // namespace fut::app
