// See the header.
#include "apps/reply_report.h"

#include "apps/logging.h"
#include "apps/prompt.h"
#include "apps/words.h"

namespace fut::app {
namespace {

// Tokens after the first one over the time that they took; 0 where there is nothing to divide.
double decode_rate(const TextReply& reply) {
  constexpr double kMsPerSecond = 1000;
  if (reply.ids.size() < 2 || reply.timings.decode_ms <= 0) return 0;
  return static_cast<double>(reply.ids.size() - 1) * kMsPerSecond / reply.timings.decode_ms;
}

Json logprobs_of(const TextReply& reply, const Tokenizer& tokenizer) {
  const auto entry = [&](TokenId id, float logprob) {
    return Json{{"id", id}, {"token", piece_of(tokenizer, id)}, {"logprob", logprob}};
  };
  Json list = Json::array();
  for (const TokenEvent& event : reply.events) {
    Json item = entry(event.token, event.logprob);
    item["top"] = Json::array();
    for (const TokenLogprob& top : event.top_logprobs) {
      item["top"].push_back(entry(top.token, top.logprob));
    }
    list.push_back(std::move(item));
  }
  return list;
}

}  // namespace

void add_reply(Json& document, const TextReply& reply, std::size_t prompt_tokens,
               const Tokenizer& tokenizer) {
  document["ids"] = reply.ids;
  document["text"] = reply.text;
  document["finish_reason"] = finish_reason_name(reply.finish);
  document["stop"] = reply.stop ? Json(*reply.stop) : Json(nullptr);
  if (!reply.events.empty()) document["logprobs"] = logprobs_of(reply, tokenizer);
  Json& timings = document["timings"];
  timings["prompt_tokens"] = prompt_tokens;
  timings["reused_prompt_tokens"] = reply.reused_tokens;
  timings["reply_tokens"] = reply.ids.size();
  timings["prefill_ms"] = reply.timings.prefill_ms;
  timings["decode_ms"] = reply.timings.decode_ms;
  timings["decode_tokens_per_second"] = decode_rate(reply);
}

void add_sampling(Json& document, const SamplingSettings& sampling) {
  document["seed"] = sampling.params.sample.seed;
  Json& values = document["sampling"];
  for (const SamplingSetting& s : sampling.settings) {
    const Json number = Json::parse(s.value, nullptr, false);
    values[s.name] = {{"value", number.is_discarded() ? Json(s.value) : number},
                      {"from", s.origin}};
  }
}

void tell_about_reply(const TextReply& reply, std::size_t prompt_tokens, int context_tokens,
                      int verbosity, const SampleParams& sampling) {
  if (reply.finish == FinishReason::Context) {
    log_warning("the reply ends at the end of the context ({} tokens, prompt and reply together)",
                context_tokens);
  }
  const bool wanted =
      verbosity >= kInfoVerbosity || (verbosity > 0 && standard_error_is_terminal());
  if (!wanted) return;
  const std::string reused =
      reply.reused_tokens == 0
          ? ""
          : fmt::format(" ({} cached, {} new)", reply.reused_tokens,
                        prompt_tokens - static_cast<std::size_t>(reply.reused_tokens));
  write_to_standard_error(fmt::format(
      "[{}{}, first token after {:.0f} ms; {}, {:.1f} tokens/s; ended by {}{}]\n",
      counted(prompt_tokens, "prompt token"), reused, reply.timings.prefill_ms,
      counted(reply.ids.size(), "token"), decode_rate(reply), finish_reason_name(reply.finish),
      sampling.temperature > 0 ? fmt::format("; seed {}", sampling.seed) : ""));
}

}  // namespace fut::app
