// One run of the quantiser as commands start it: the calibration text read and encoded, progress
// shown on a terminal, Ctrl-C noticed. Where the result goes is the caller's choice.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

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
  int threads = 0;        // 0: all cores
  bool overwrite = false;
};

struct QuantizeOutcome {
  ReportCard card;
  std::int64_t text_tokens = 0;  // of the whole calibration text
  double seconds = 0;
};

// Throws as quantize_folder, and Interrupted; nothing is left under the target then.
QuantizeOutcome run_quantize_job(const QuantizeJob& job, const CalibrationSource& calibration,
                                 const Tokenizer& tokenizer);

}  // namespace fut::app
