// See the header.
#include "engine/text_generation.h"

#include <algorithm>
#include <chrono>
#include <fmt/format.h>

namespace fut {
namespace {

using Clock = std::chrono::steady_clock;

double ms_between(Clock::time_point a, Clock::time_point b) {
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

TextReply generate_text(Engine& engine, const Tokenizer& tokenizer, const TextRequest& request,
                        const std::function<void(std::string_view)>& on_text) {
  TextReply reply;
  ReplyText text(tokenizer, request);
  const auto emit = [&](const std::string& piece) {
    if (piece.empty()) return;
    reply.text += piece;
    on_text(piece);
  };
  const Clock::time_point start = Clock::now();
  Clock::time_point first = start;
  const SequenceId id = engine.submit(request.request);
  const CancelAtEnd cancel_at_end(engine, id);
  std::optional<FinishReason> finish;
  while (!finish) {
    if (interrupted(request)) {
      finish = FinishReason::Interrupt;
      break;
    }
    for (const TokenEvent& event : engine.step()) {
      if (event.sequence != id) continue;
      finish = event.finish;
      if (finish == FinishReason::Error) {
        reply.error = fmt::format(
            "the logits at position {} are not finite: the weights are damaged or "
            "overflow in this precision (fut inspect and --check-tensors tell more)",
            event.position);
        break;
      }
      if (reply.ids.empty()) first = Clock::now();
      reply.ids.push_back(event.token);
      if (request.request.num_logprobs > 0) reply.events.push_back(event);
      emit(text.push(event.token));
      if (text.stop()) finish = FinishReason::Stop;
    }
  }
  emit(text.flush());
  reply.finish = *finish;
  reply.stop = text.stop();
  reply.timings.prefill_ms = ms_between(start, reply.ids.empty() ? Clock::now() : first);
  reply.timings.decode_ms = reply.ids.empty() ? 0 : ms_between(first, Clock::now());
  return reply;
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
