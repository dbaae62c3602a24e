// The quantised copy of a checkpoint that a precision needs and that nobody made by hand: kept in
// the cache folder and found there by later runs, or made for one run and removed.
#pragma once

#include <filesystem>

#include "apps/options.h"
#include "engine/model_folder.h"
#include "kernels/backend.h"

namespace fut::app {

// A folder on the disk. One that is not kept goes with the object.
class QuantizedCopy {
 public:
  QuantizedCopy(std::filesystem::path folder, std::filesystem::path to_remove)
      : folder_(std::move(folder)), to_remove_(std::move(to_remove)) {}
  QuantizedCopy(QuantizedCopy&& other) noexcept;
  QuantizedCopy& operator=(QuantizedCopy&&) = delete;
  ~QuantizedCopy();

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path folder_;
  std::filesystem::path to_remove_;  // empty: nothing
};

// Round to nearest with the default options, on `backend`. Says on standard error what it makes and how long that
// took. A copy in the cache serves as long as its source is the same: by sizes, times and headers,
// with check_tensors by all contents. Where the cache folder cannot be written, a warning says why
// and a temporary copy serves. Throws Data for a source that cannot be quantised, Runtime where
// there is no room for any copy, Interrupted.
[[nodiscard]] QuantizedCopy find_or_make_copy(const ModelFolder& source,
                                              const ModelOptions& options, Backend& backend);

// The same without looking for one: the cached copy proved damaged.
[[nodiscard]] QuantizedCopy remake_copy(const ModelFolder& source, const ModelOptions& options,
                                        Backend& backend);

// The error for a quantised folder that is asked to compute in f32 or bf16: names what it was made
// from. `flag` is the one that named the folder: -m, or --against.
[[nodiscard]] Error no_original_weights(const std::filesystem::path& folder, ModelConfig config,
                                        Precision precision, std::string_view flag);

}  // namespace fut::app
