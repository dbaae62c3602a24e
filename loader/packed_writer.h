// Writes a packed folder: model.safetensors and the files beside it. What is in the tensors is the
// caller's business. Equal calls give equal bytes: no time, path, process or machine is written.
//
// model.safetensors is a safetensors file like any other (safetensors.h), with
//   __metadata__   format "fut-packed"; version, see kPackedVersion; options and source, JSON as
//                  options_json and identity_json have it; report, JSON of whoever quantised
//   header         blanks at its end, up to the room that was left for the report
//   tensors        those of packed_tensors.h, the checksums last
//   checksums      see packed_checksums.h
//
// Everything is written to FOLDER.partial-PID-RANDOM beside the folder and renamed when it is
// complete and on the disk. A writer that ends early removes its partial folder unless it is told to
// keep it (keep_progress); what was kept, or left by killed processes, is taken up by the next writer
// of the same folder where that would write the same bytes (see save_progress), else removed, or given
// its name back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "loader/packed_checksums.h"
#include "loader/packed_options.h"
#include "loader/packed_progress.h"
#include "loader/packed_tensors.h"
#include "loader/partial_folder.h"
#include "loader/source_identity.h"

namespace fut {

inline constexpr std::string_view kPackedFormat = "fut-packed";
// Thousands: what is in the file and what it means. The rest: the layout of INT4 codes.
inline constexpr int kPackedVersion = 1000 + static_cast<int>(layout::Int4Tile::kVersion);

struct PackedMetadata {
  PackedOptions options;
  SourceIdentity source;
};

class PackedWriter {
 public:
  // Makes the partial folder (and the folders above it) and takes the disk space for all tensors.
  // An existing `folder` is refused unless it is empty, or `overwrite` is set and it is a packed
  // folder. Throws Data (existing folder) or Runtime (no space, no permission: path, bytes that are
  // needed and that are free, reason).
  // `resume_key` says in which way tensors are computed, beside what metadata says: with the same
  // one what a killed writer saved is taken up. Empty: nothing is.
  PackedWriter(const std::filesystem::path& folder, const PackedMetadata& metadata,
               std::vector<PackedTensor> tensors, bool overwrite, std::string_view resume_key = {});
  PackedWriter(const PackedWriter&) = delete;
  PackedWriter& operator=(const PackedWriter&) = delete;
  ~PackedWriter();

  // The next bytes of the tensor whose turn it is; a tensor may come in pieces. Throws Runtime as
  // above.
  void append(std::string_view tensor, std::span<const std::byte> bytes);

  // Between two tensors: those so far are complete, and `state` is what their author needs to go on
  // after them. Nothing without a resume_key, and from where there is no room for it on.
  void save_progress(const SavedState& state);
  // The last call before the end of a writer that is stopped for no fault of what it was given: what was
  // saved stays on the disk. Returns the complete tensors of that; 0: nothing was saved, nothing stays.
  std::size_t keep_progress();
  // What was taken up: complete tensors, 0 for a new file; and the state saved after them, once.
  [[nodiscard]] std::size_t resumed_tensors() const { return resumed_tensors_; }
  [[nodiscard]] SavedState take_resumed_state() { return std::move(resumed_state_); }
  // Where all of it lies until finish().
  [[nodiscard]] const std::filesystem::path& partial_folder() const { return partial_->path(); }

  // list_companions(source), byte for byte.
  void copy_companions(const std::filesystem::path& source);
  // One more file.
  void add_file(std::string_view name, std::string_view text);

  // Bytes a report may have at most: JSON in a JSON string grows by its escapes, counted in. Any
  // report_card_json() of the model fits.
  [[nodiscard]] std::uint64_t report_room() const;
  // After the last byte of the last tensor: report and checksums, everything to the disk, rename.
  // Throws Runtime as above; and where another process made the folder meanwhile.
  void finish(std::string_view report_json);

 private:
  // Whether what lies in an abandoned folder can be gone on with; fills the members that say how far
  // it is.
  bool take_up(const std::filesystem::path& abandoned);

  // The header with a report, without the blanks that follow it.
  [[nodiscard]] std::string header_json(std::string_view report) const;

  std::filesystem::path folder_;
  bool overwrite_;
  PackedMetadata metadata_;
  std::vector<PackedTensor> tensors_;  // with the checksums
  std::uint64_t header_bytes_ = 0;     // what the first 8 bytes of the file say
  std::size_t current_ = 0;            // the tensor whose turn it is
  std::uint64_t appended_ = 0;         // bytes of it
  ChunkChecksums checksums_;
  std::string resume_key_;  // all of it
  std::size_t resumed_tensors_ = 0;
  std::size_t saved_tensors_ = 0;  // of what is saved in the partial folder now
  SavedState resumed_state_;
  std::unique_ptr<PartialFolder> partial_;  // nullptr: finished
  std::unique_ptr<OutputFile> file_;
};

}  // namespace fut
