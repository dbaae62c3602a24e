// Many replies at a time as text: requests join and leave an Engine's steps as they come and end.
#pragma once

#include <map>
#include <vector>

#include "engine/text_generation.h"

namespace fut {

class TextBatch {
 public:
  struct Done {
    SequenceId id = 0;
    TextReply reply;
  };

  // Both must outlive it.
  TextBatch(Engine& engine, const Tokenizer& tokenizer) : engine_(engine), tokenizer_(tokenizer) {}
  TextBatch(const TextBatch&) = delete;
  TextBatch& operator=(const TextBatch&) = delete;
  ~TextBatch();  // cancels what is under way

  // Throws what Engine::submit throws.
  SequenceId submit(const TextRequest& request);
  [[nodiscard]] std::size_t size() const { return replies_.size(); }
  // One step; the replies that it ended, those whose logits are not finite too. Throws what
  // Engine::step throws.
  [[nodiscard]] std::vector<Done> step();
  // Of all replies, since the batch was made.
  [[nodiscard]] std::int64_t num_tokens() const { return num_tokens_; }

 private:
  Engine& engine_;
  const Tokenizer& tokenizer_;
  std::map<SequenceId, ReplyInProgress> replies_;
  std::int64_t num_tokens_ = 0;
};

}  // namespace fut
