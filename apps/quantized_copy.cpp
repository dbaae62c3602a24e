// See the header. A cache entry holds source.json beside its model.safetensors: where the source
// lies, and its files with their times.
#include "apps/quantized_copy.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <stdlib.h>

#include "apps/logging.h"
#include "apps/quantize_job.h"
#include "apps/signals.h"
#include "apps/words.h"
#include "engine/parallel.h"
#include "kernels/error.h"
#include "loader/cache_folder.h"
#include "loader/packed_model.h"
#include "tokenizer/sha256.h"

namespace fut::app {
namespace fs = std::filesystem;
namespace {

// What would be made, and where it would be kept.
struct CopyPlan {
  CalibrationSource calibration;
  PackedOptions options;
  std::optional<fs::path> entry;  // nullopt: nothing is kept
};

CopyPlan plan_copy(const ModelFolder& source, const CopyOptions& options) {
  CopyPlan plan;
  plan.calibration = read_calibration("");
  set_calibration(plan.options, plan.calibration, std::nullopt);
  if (!options.keep) return plan;
  try {
    const std::optional<fs::path> flag =
        options.cache_dir.empty() ? std::nullopt : std::optional<fs::path>(options.cache_dir);
    plan.entry = cache_root(flag, read_cache_environment()) /
                 cache_entry_name(source.path, plan.options, sha256_hex);
  } catch (const Error& e) {  // no home folder
    log_warning("{}; the quantised copy of this run is temporary", e.what());
  }
  return plan;
}

// Said even where nobody looks at information: this may take minutes.
void tell(std::string_view text) {
  if (is_logged(LogLevel::Warning)) write_to_standard_error(fmt::format("{}\n", text));
}

SourceIdentity look_at_source(const fs::path& source, IdentityDepth depth, int threads) {
  return identify_source(source, depth, sha256_hex, parallel_for_on_threads(threads));
}

// ---- the note of a cache entry -----------------------------------------------------------------

// Written aside and renamed. Without a note the entry is compared by what its own file says of the
// source, so a note that cannot be written is no failure.
void write_note(const fs::path& entry, const SourceNote& note) {
  const fs::path aside = entry / kSourceNotePartialName;
  std::error_code error;
  {
    std::ofstream file(aside, std::ios::binary | std::ios::trunc);
    file << source_note_json(note);
    file.close();
    if (!file) error = std::make_error_code(std::errc::io_error);
  }
  if (!error) fs::rename(aside, entry / kSourceNoteName, error);
  if (!error) return;
  std::error_code ignored;
  fs::remove(aside, ignored);
  log_info("{}: {} cannot be written", entry.string(), kSourceNoteName);
}

// The recorded identity with the times that the source's files have now.
SourceNote make_note(const fs::path& source, const SourceIdentity& recorded,
                     const SourceIdentity& now) {
  std::error_code ignored;
  SourceNote note{fs::weakly_canonical(source, ignored).string(), recorded};
  for (SourceFile& file : note.identity.files) {
    const auto same = std::find_if(now.files.begin(), now.files.end(),
                                   [&](const SourceFile& f) { return f.name == file.name; });
    if (same != now.files.end()) file.modified_ns = same->modified_ns;
  }
  return note;
}

// ---- looking for a copy ------------------------------------------------------------------------

// Why an entry cannot serve; nullopt: it can. Throws as identify_source.
std::optional<std::string> why_not(const fs::path& entry, const ModelFolder& source,
                                   bool check_tensors, int threads) {
  ModelConfig config = source.config;
  std::optional<SourceNote> note;
  SourceIdentity recorded;
  try {
    recorded = PackedModel::open(entry, config).info().source;
    note = read_source_note(entry);
  } catch (const Error& e) {
    return e.what();
  }
  IdentityDepth depth = check_tensors ? IdentityDepth::Full : IdentityDepth::Quick;
  SourceIdentity now = look_at_source(source.path, depth, threads);
  auto difference = compare_identity(note ? note->identity : recorded, now);
  if (!difference) return std::nullopt;
  if (!difference->times_only) return difference->text;
  // Touched or copied: its contents decide, and the new times are remembered.
  now = look_at_source(source.path, IdentityDepth::Full, threads);
  difference = compare_identity(recorded, now);
  if (difference && !difference->times_only) return difference->text;
  write_note(entry, make_note(source.path, recorded, now));
  return std::nullopt;
}

bool can_serve(const fs::path& entry, const ModelFolder& source, const ModelOptions& options) {
  if (!PackedModel::is_packed(entry)) {
    if (has_source_note(entry)) {
      log_warning("{}: the quantised copy is made anew: its weights are gone or cut",
                  entry.string());
    }
    return false;
  }
  const auto reason = why_not(entry, source, options.check_tensors, options.device.cpu_threads);
  if (!reason) return true;
  log_warning("{}: the quantised copy no longer serves and is made anew: {}", entry.string(),
              *reason);
  return false;
}

// ---- making one --------------------------------------------------------------------------------

void make_copy(const ModelFolder& source, const CopyPlan& plan, const fs::path& target,
               const ModelOptions& options, Backend& backend) {
  const int threads = options.device.cpu_threads;
  tell(fmt::format("quantising {} to {} (round to nearest, groups of {}) ...", source.path.string(),
                   target.string(), plan.options.group_size));
  const SourceIdentity before = look_at_source(source.path, IdentityDepth::Quick, threads);
  const QuantizeOutcome outcome =
      run_quantize_job(backend, {source.path, target, plan.options, threads, true},
                       plan.calibration, source.tokenizer);
  for (const std::string& notice : outcome.card.notices) log_warning("{}", notice);
  ModelConfig config = source.config;
  const PackedInfo info = PackedModel::open(target, config).info();
  if (plan.entry && target == *plan.entry) {
    write_note(target, make_note(source.path, info.source, before));
  }
  tell(fmt::format("quantised in {}: {}{}", seconds_text(outcome.seconds),
                   size_text(info.file_bytes),
                   plan.entry && target == *plan.entry ? ", kept for later runs" : ""));
}

QuantizedCopy make_temporary_copy(const ModelFolder& source, const CopyPlan& plan,
                                  const ModelOptions& options, Backend& backend) {
  std::error_code error;
  const fs::path temporary = fs::temp_directory_path(error);
  std::string folder = ((error ? fs::path("/tmp") : temporary) / "fut-XXXXXX").string();
  if (::mkdtemp(folder.data()) == nullptr) {
    throw runtime_failure(
        "{}: no temporary folder for the quantised copy: {}; set TMPDIR to a "
        "folder with room",
        folder, std::strerror(errno));
  }
  QuantizedCopy copy(fs::path(folder) / "copy", folder);
  try {
    make_copy(source, plan, copy.folder(), options, backend);
  } catch (const Interrupted& e) {
    throw Interrupted(e.signal());  // what it has kept goes with the folder
  }
  return copy;
}

QuantizedCopy make_any_copy(const ModelFolder& source, const CopyPlan& plan,
                            const ModelOptions& options, Backend& backend) {
  if (!plan.entry) return make_temporary_copy(source, plan, options, backend);
  try {
    make_copy(source, plan, *plan.entry, options, backend);
    return {*plan.entry, {}};
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::Runtime) throw;
    // Another process may have made the same one meanwhile.
    if (can_serve(*plan.entry, source, options)) return {*plan.entry, {}};
    log_warning(
        "{}; the quantised copy of this run is temporary (--cache-dir DIR keeps it "
        "elsewhere)",
        e.what());
  }
  return make_temporary_copy(source, plan, options, backend);
}

}  // namespace

QuantizedCopy::QuantizedCopy(QuantizedCopy&& other) noexcept
    : folder_(std::move(other.folder_)), to_remove_(std::move(other.to_remove_)) {
  other.to_remove_.clear();
}

QuantizedCopy::~QuantizedCopy() {
  if (to_remove_.empty()) return;
  std::error_code ignored;
  fs::remove_all(to_remove_, ignored);
}

QuantizedCopy find_or_make_copy(const ModelFolder& source, const ModelOptions& options,
                                Backend& backend) {
  const CopyPlan plan = plan_copy(source, options.copies);
  if (plan.entry && can_serve(*plan.entry, source, options)) {
    log_info("using the quantised copy in {}", plan.entry->string());
    return {*plan.entry, {}};
  }
  return make_any_copy(source, plan, options, backend);
}

QuantizedCopy remake_copy(const ModelFolder& source, const ModelOptions& options,
                          Backend& backend) {
  return make_any_copy(source, plan_copy(source, options.copies), options, backend);
}

Error no_original_weights(const fs::path& folder, ModelConfig config, Precision precision,
                          std::string_view flag) {
  const PackedModel packed = PackedModel::open(folder, config);
  std::string source;
  if (const auto note = read_source_note(folder)) {
    source = fmt::format("pass the checkpoint that it was made from, {} {}", flag, note->folder);
  } else {
    std::vector<std::string> files;
    for (const SourceFile& file : packed.info().source.files) {
      if (!file.name.ends_with(".safetensors")) continue;
      files.push_back(fmt::format("{} of {} bytes", file.name, file.size));
    }
    source = fmt::format("pass the original checkpoint folder with {} (it has {})", flag,
                         fmt::join(files, ", "));
  }
  return data_error(
      "{}: a quantised folder, which holds FP8 and INT4 copies of the weights and nothing to "
      "compute in {} with: {}; or use {} int4 or fp8",
      folder.string(), precision_name(precision), source,
      flag == "-m" ? "--precision" : fmt::format("{} in", flag));
}

}  // namespace fut::app
