// A model made ready in two steps: first everything that is cheap to find out (device, files,
// limits), then the weights. Commands put their own checks between the two.
#pragma once

#include <memory>
#include <string>

#include "apps/options.h"
#include "apps/reporter.h"
#include "apps/startup_times.h"
#include "engine/engine.h"
#include "engine/model_folder.h"

namespace fut::app {

struct OpenedModel {
  std::unique_ptr<Backend> backend;
  ModelFolder folder;
  bool is_packed = false;  // a quantised folder
  Precision precision = Precision::F32;
  KvCacheOptions kv_cache;
  PrefillWeights prefill = PrefillWeights::Fp8;
  int context_tokens = 0;
  StartupTimes startup;
};

// The device of --device, with a word where `auto` finds no GPU. Throws Device.
[[nodiscard]] std::unique_ptr<Backend> open_backend(DeviceRequest request);

// A device that nobody asked for gives way to the CPU, with a word, where it cannot run such a model;
// one that was asked for: throws Device.
void require_able(std::unique_ptr<Backend>& backend, const ModelConfig& config, Precision precision,
                  const DeviceRequest& request);

// Throws Data, naming the folder, where its shape cannot be quantised in groups of `group_size`.
void require_packable(const ModelFolder& folder, int group_size);

// Finds the folder, makes the backend and reads all files but the weights; tells the user notices.
// Throws Data (also for a precision that this folder or shape cannot have), Device (before any file
// of the model is opened), Usage for a context that the model does not have, a cache that does not
// go with the precision or typed flags that the precision has no use for.
[[nodiscard]] OpenedModel open_model(const ModelOptions& options);

// What Backend::fault() asks for.
[[nodiscard]] ModelSizes sizes_of(const ModelConfig& config, Precision precision);

// What to do where a checkpoint has to be quantised and there is no room for it on any disk.
enum class NoRoom {
  Fail,
  ComputeInBf16  // with a warning; model.precision and model.kv_cache then say so
};

// Reads the weights, with a progress line where standard error is a terminal; quantises them before
// where the precision asks for it. Throws Data, Capacity, Runtime, Interrupted. The weights lie in
// `backend`, which may be another model's.
[[nodiscard]] Model load_weights(Backend& backend, OpenedModel& model, const ModelOptions& options,
                                 NoRoom no_room);

// load_weights, ready to generate `sequences` replies at a time. The engine refers to model.backend.
// Without room for a copy only a precision that nobody asked for gives way to bf16. Throws Capacity
// with the table of fut plan where it does not fit: before weights are read, as far as that is known.
[[nodiscard]] Engine load_engine(OpenedModel& model, const ModelOptions& options,
                                 int sequences = 1);

// Adds precision and kv_cache.
void add_arithmetic(Json& document, const OpenedModel& model);

}  // namespace fut::app
