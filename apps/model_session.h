// A model made ready in two steps: first everything that is cheap to find out (device, files,
// limits), then the weights. Commands put their own checks between the two.
#pragma once

#include <memory>
#include <string>

#include "apps/options.h"
#include "engine/engine.h"
#include "engine/model_folder.h"

namespace fut::app {

struct OpenedModel {
  std::unique_ptr<Backend> backend;
  ModelFolder folder;
  int context_tokens = 0;
};

// Finds the folder, makes the backend and reads all files but the weights; tells the user notices.
// Throws Data, Device (before any file of the model is opened), Usage for a context that the model
// does not have.
[[nodiscard]] OpenedModel open_model(const ModelOptions& options);

// Reads the weights, with a progress line where standard error is a terminal. Throws Data,
// Capacity, Interrupted. The engine refers to model.backend.
[[nodiscard]] Engine load_engine(OpenedModel& model, const ModelOptions& options);

}  // namespace fut::app
