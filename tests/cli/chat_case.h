// What the tests of a chat share: a model that answers "Hi" to everything, one that never ends, a folder.
#pragma once

#include "tests/cli/fut_process.h"

namespace fut::test {

class ChatCase : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    script = std::make_unique<Script>();
    script->say("\n\n", {"Hi", "<|eot_id|>"});
    model = script->write();
    endless = std::make_unique<Script>();
    endless->say("\n\n", {"tick", "-", "tock", "tick"});
    endless->model.files.max_position_embeddings = 8192;  // long enough to be interrupted
    endless_model = endless->write();
  }
  static void TearDownTestSuite() {
    script.reset();
    endless.reset();
  }
  [[nodiscard]] std::string file(const std::string& name) const {
    return (folder.path() / name).string();
  }

  inline static std::unique_ptr<Script> script, endless;
  inline static std::string model, endless_model;
  TempFolder folder;
};

}  // namespace fut::test
