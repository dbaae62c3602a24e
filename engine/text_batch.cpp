// See the header.
#include "engine/text_batch.h"

namespace fut {

TextBatch::~TextBatch() {
  for (const auto& [id, reply] : replies_) engine_.cancel(id);
}

SequenceId TextBatch::submit(const TextRequest& request) {
  const SequenceId id = engine_.submit(request.request);
  replies_.emplace(id, ReplyInProgress(tokenizer_, request));
  return id;
}

std::vector<TextBatch::Done> TextBatch::step() {
  std::vector<Done> done;
  for (const TokenEvent& event : engine_.step()) {
    const auto found = replies_.find(event.sequence);
    if (found == replies_.end()) continue;
    ReplyInProgress& reply = found->second;
    (void)reply.take(event);
    if (event.token != kNoToken) ++num_tokens_;
    if (reply.finish()) done.push_back({event.sequence, {}});
  }
  for (Done& d : done) {
    engine_.cancel(d.id);  // a stop string ends a reply that the engine would go on with
    const auto found = replies_.find(d.id);
    d.reply = std::move(found->second).end(*found->second.finish());
    replies_.erase(found);
  }
  return done;
}

}  // namespace fut
