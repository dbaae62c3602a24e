// See the header.
#include "engine/text_generation.h"

#include <algorithm>
#include <fmt/format.h>

namespace fut {
namespace {

double ms_between(std::chrono::steady_clock::time_point a,
                  std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double, std::milli>(b - a).count();
}

bool interrupted(const TextRequest& request) {
  return request.interrupt != nullptr && request.interrupt->load(std::memory_order_relaxed);
}

// Whatever ends a reply early, an exception of `on_text` too, frees the sequence's pages.
class CancelAtEnd {
 public:
  CancelAtEnd(Engine& engine, SequenceId id) : engine_(engine), id_(id) {}
  CancelAtEnd(const CancelAtEnd&) = delete;
  CancelAtEnd& operator=(const CancelAtEnd&) = delete;
  ~CancelAtEnd() { engine_.cancel(id_); }

 private:
  Engine& engine_;
  SequenceId id_;
};

}  // namespace

ReplyText::ReplyText(const Tokenizer& tokenizer, const TextRequest& request)
    : tokenizer_(tokenizer),
      end_ids_(request.request.end_ids),
      show_special_(request.show_special),
      strip_next_space_(request.strip_dummy_prefix && tokenizer.has_dummy_prefix()),
      stops_(request.stop) {}

bool ReplyText::is_shown(TokenId id) const {
  if (id >= tokenizer_.vocab_size()) return false;  // a padding row of the model's vocabulary
  if (show_special_) return true;
  return !tokenizer_.is_special(id) &&
         std::find(end_ids_.begin(), end_ids_.end(), id) == end_ids_.end();
}

std::string ReplyText::push(TokenId id) {
  if (!is_shown(id)) return {};
  std::string bytes = tokenizer_.piece(id);
  if (strip_next_space_ && !bytes.empty()) {
    if (bytes.front() == ' ') bytes.erase(0, 1);
    strip_next_space_ = false;
  }
  // Stop strings match on bytes, whole characters are cut after that.
  std::string text = stream_.push(stops_.push(bytes));
  if (stops_.matched()) text += stream_.flush();
  return text;
}

std::string ReplyText::flush() {
  std::string text = stream_.push(stops_.flush());
  return text + stream_.flush();
}

ReplyInProgress::ReplyInProgress(const Tokenizer& tokenizer, const TextRequest& request)
    : text_(tokenizer, request), keeps_events_(request.request.num_logprobs > 0) {}

std::string ReplyInProgress::take(const TokenEvent& event) {
  finish_ = event.finish;
  if (finish_ == FinishReason::Error) {
    reply_.error = fmt::format(
        "the logits of step {} of the reply, at position {}, are not finite: the weights are "
        "damaged "
        "or overflow in this precision (fut inspect and --check-tensors tell more)",
        reply_.ids.size() + 1, event.position);
    return {};
  }
  if (reply_.ids.empty()) first_ = Clock::now();
  reply_.reused_tokens = event.reused_tokens;
  reply_.ids.push_back(event.token);
  if (keeps_events_) reply_.events.push_back(event);
  std::string piece = text_.push(event.token);
  if (text_.stop()) finish_ = FinishReason::Stop;
  reply_.text += piece;
  return piece;
}

std::string ReplyInProgress::flush() {
  std::string piece = text_.flush();
  reply_.text += piece;
  return piece;
}

TextReply ReplyInProgress::end(FinishReason finish) && {
  (void)flush();
  reply_.finish = finish;
  reply_.stop = text_.stop();
  const Clock::time_point now = Clock::now();
  reply_.timings.prefill_ms = ms_between(start_, reply_.ids.empty() ? now : first_);
  reply_.timings.decode_ms = reply_.ids.empty() ? 0 : ms_between(first_, now);
  return std::move(reply_);
}

TextReply generate_text(Engine& engine, const Tokenizer& tokenizer, const TextRequest& request,
                        const std::function<void(std::string_view)>& on_text) {
  ReplyInProgress reply(tokenizer, request);
  const auto emit = [&](const std::string& piece) {
    if (!piece.empty()) on_text(piece);
  };
  const SequenceId id = engine.submit(request.request);
  const CancelAtEnd cancel_at_end(engine, id);
  while (!reply.finish() && !interrupted(request)) {
    for (const TokenEvent& event : engine.step()) {
      if (event.sequence != id) continue;
      if (request.on_token) request.on_token(event);
      emit(reply.take(event));
    }
  }
  const FinishReason finish = reply.finish().value_or(FinishReason::Interrupt);
  emit(reply.flush());
  return std::move(reply).end(finish);
}

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::Eos:
      return "eos";
    case FinishReason::Stop:
      return "stop";
    case FinishReason::Length:
      return "length";
    case FinishReason::Context:
      return "context";
    case FinishReason::Interrupt:
      return "interrupt";
    case FinishReason::Error:
      return "error";
  }
  return "error";
}

}  // namespace fut
