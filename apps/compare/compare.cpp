// See the header.
#include "apps/compare/compare.h"

#include <algorithm>

#include "apps/compare/columns.h"
#include "apps/compare/divergence.h"
#include "apps/escape.h"
#include "apps/flag_groups.h"
#include "apps/generation.h"
#include "apps/model_session.h"
#include "apps/request_prompt.h"
#include "apps/signals.h"
#include "apps/text_input.h"
#include "apps/wide_text.h"
#include "apps/words.h"
#include "engine/window_logits.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

using Rows = std::vector<std::vector<float>>;

// One of the two: opened first, so that what is wrong is found before any weights are read.
struct Side {
  ModelOptions options;
  OpenedModel opened;
  std::size_t weight_bytes = 0;
  TextReply reply;
  Rows rows;  // logits along the first side's reply
  [[nodiscard]] std::string name() const {
    return fmt::format("{}, cache {}", precision_name(opened.precision),
                       kv_cache_dtype_name(opened.kv_cache.dtype));
  }
};

Side open_first(const CompareOptions& o) {
  // Never another precision than the one that is named beside the result.
  ModelOptions mine = o.model;
  mine.arithmetic.precision_given = true;
  return {mine, open_model(mine), 0, {}, {}};
}

Side open_second(const CompareOptions& o, const OpenedModel& first) {
  ModelOptions other = o.model;
  if (!o.against.model.empty()) other.model = o.against.model;
  other.model_flag = "--against";
  other.arithmetic = {};
  other.arithmetic.precision = o.against.precision.value_or(Precision::Bf16);
  other.arithmetic.precision_given = true;
  if (other.arithmetic.precision == Precision::F32) other.device.kind = DeviceRequest::Kind::Cpu;
  Side side{other, open_model(other), 0, {}, {}};
  const int mine = first.folder.tokenizer.vocab_size();
  const int others = side.opened.folder.tokenizer.vocab_size();
  if (mine != others) {
    throw data_error(
        "{} tokens in one tokenizer, {} in the other: the same ids must mean the same "
        "tokens",
        mine, others);
  }
  const int my_logits = first.folder.config.vocab_size;
  const int other_logits = side.opened.folder.config.vocab_size;
  if (my_logits != other_logits) {
    throw data_error(
        "{} logits a token in one model, {} in the other (vocab_size of config.json): their "
        "distributions are not over the same tokens",
        my_logits, other_logits);
  }
  return side;
}

struct ComparedPrompt {
  std::vector<TokenId> ids;
  std::optional<ChatTemplate> chat_template;
};

ComparedPrompt prompt_of(const CompareOptions& o, const OpenedModel& model) {
  if (!o.prompt.prompt.given()) throw usage_error("there is no prompt; give one with -p or -f");
  const Tokenizer& tokenizer = model.folder.tokenizer;
  const ContextLimits limits{model.context_tokens, model.folder.config.max_position_embeddings,
                             false};
  InputText input = read_text(o.prompt.prompt, o.prompt.interpret_escapes,
                              most_prompt_bytes(tokenizer, limits.tokens), " into the context");
  ReplyOptions reply;  // nothing is truncated
  reply.max_new_tokens = o.max_new_tokens;
  const RequestForm request{o.form, reply, tokenizer, limits};
  ComparedPrompt prompt;
  if (o.form.raw) {
    prompt.ids = raw_prompt_ids(request, input.text);
  } else {
    if (input.from_stream) drop_final_newline(input.text);
    prompt.chat_template = resolve_chat_template(o.form.chat_template, model.folder.path);
    std::vector<ChatMessage> messages;
    if (o.prompt.system.given()) {
      messages.push_back({"system", read_system_prompt(o.prompt, tokenizer, limits)});
    }
    messages.push_back({"user", input.text});
    prompt.ids = chat_prompt_ids(request, *prompt.chat_template, std::move(messages));
  }
  return prompt;
}

// Logits of every position of prompt and reply but the last, by the decode path as in a reply.
Rows logits_along(Side& side, const Model& model, const std::vector<TokenId>& ids,
                  std::size_t first) {
  ScoredModel scored;
  scored.backend = side.opened.backend.get();
  scored.model = &model;
  scored.options.path = StepKind::Decode;
  scored.options.kv_cache = side.opened.kv_cache;
  scored.options.lock_step = 1;
  scored.options.threads = side.options.device.cpu_threads;
  WindowLogits window(scored, static_cast<int>(ids.size()));
  const std::vector<std::vector<std::int32_t>> group = {ids};
  window.start(group);
  Rows rows;
  for (LogitRows some; window.next(some);) {
    throw_if_interrupted();
    for (std::size_t i = 0; i < some.places.size(); ++i) {
      if (some.places[i].position + 1 < first) continue;
      const float* row = some.logits.row(static_cast<std::int64_t>(i));
      rows.emplace_back(row, row + some.logits.cols);
    }
  }
  return rows;
}

// What a side says; where `along` is empty it is this side's own reply whose logits are kept.
void run_side(Side& side, const CompareOptions& o, const ComparedPrompt& prompt,
              std::vector<TokenId>& along) {
  Engine engine = load_engine(side.opened, side.options);
  side.weight_bytes = engine.model().bytes();
  TextRequest request;
  request.request.prompt = prompt.ids;
  request.request.max_new_tokens = o.max_new_tokens;
  request.request.sampling.sample.temperature = 0;
  request.request.end_ids = reply_end_ids(side.opened.folder, prompt.chat_template, false);
  request.strip_dummy_prefix = prompt.chat_template.has_value();
  request.interrupt = &stop_flag();
  side.reply =
      generate_text(engine, side.opened.folder.tokenizer, request, [](std::string_view) {});
  throw_if_interrupted();
  if (side.reply.finish == FinishReason::Error) throw runtime_failure("{}", side.reply.error);
  if (along.empty()) {
    along = prompt.ids;
    along.insert(along.end(), side.reply.ids.begin(), side.reply.ids.end());
  }
  side.rows = logits_along(side, engine.model(), along, prompt.ids.size());
}

std::string piece(const Tokenizer& tokenizer, TokenId id) {
  return escape_controls(piece_of(tokenizer, id));
}

std::string pieces(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  std::string text;
  for (const std::int32_t id : ids)
    text += fmt::format("{}'{}'", text.empty() ? "" : " ", piece(tokenizer, id));
  return text;
}

double ms_per_token(const TextReply& reply) {
  return reply.ids.size() > 1 ? reply.timings.decode_ms / static_cast<double>(reply.ids.size() - 1)
                              : 0;
}

Json side_json(const Side& side) {
  Json json = {{"model", side.opened.folder.path.string()}};
  add_arithmetic(json, side.opened);
  json["device"] = side.opened.backend->description();
  json["weight_bytes"] = side.weight_bytes;
  json["text"] = side.reply.text;
  json["ids"] = side.reply.ids;
  json["finish_reason"] = finish_reason_name(side.reply.finish);
  json["prefill_ms"] = side.reply.timings.prefill_ms;
  json["ms_per_token"] = ms_per_token(side.reply);
  return json;
}

std::string side_text(const Side& side) {
  return fmt::format(
      "  {:<22} {:>10} of weights, first token {:.1f} ms, each {:.2f} ms, ended by {}\n",
      side.name(), size_text(side.weight_bytes), side.reply.timings.prefill_ms,
      ms_per_token(side.reply), finish_reason_name(side.reply.finish));
}

class ComparisonReport {
 public:
  ComparisonReport(const Side& first, const Side& second) : first_(first), second_(second) {
    const std::vector<std::int32_t>& ids = first.reply.ids;
    for (std::size_t i = 0; i < ids.size() && i < first.rows.size(); ++i) {
      points_.push_back(divergence(first.rows[i], second.rows[i], ids[i]));
      sum_ += points_.back().kl;
    }
    differs_at_ =
        static_cast<std::size_t>(std::ranges::mismatch(ids, second.reply.ids).in1 - ids.begin());
    differs_ = ids != second.reply.ids;
  }

  void add_to(Json& document) const {
    document["first"] = side_json(first_);
    document["second"] = side_json(second_);
    document["first_difference"] = differs_ ? Json(differs_at_) : Json(nullptr);
    document["mean_kl"] = mean_kl();
    Json& list = document["positions"] = Json::array();
    for (std::size_t i = 0; i < points_.size(); ++i) {
      const Divergence& d = points_[i];
      list.push_back({{"position", i},
                      {"id", first_.reply.ids[i]},
                      {"kl", d.kl},
                      {"probability", {d.probability[0], d.probability[1]}},
                      {"best", {d.best[0], d.best[1]}},
                      {"left_top5", d.gone},
                      {"entered_top5", d.come}});
    }
  }

  [[nodiscard]] std::string text() const {
    constexpr std::size_t kWidth = 46;
    const Tokenizer& tokenizer = first_.opened.folder.tokenizer;
    std::string text = side_by_side(first_.name(), second_.name(), kWidth);
    text += std::string(kWidth, '-') + "-+-" + std::string(kWidth, '-') + "\n";
    text += side_by_side(first_.reply.text, second_.reply.text, kWidth) + "\n";
    if (!differs_) {
      text += "the same tokens, all of them\n";
    } else {
      const auto at = [&](const Side& side) {
        return differs_at_ < side.reply.ids.size() ? piece(tokenizer, side.reply.ids[differs_at_])
                                                   : std::string("(ended)");
      };
      text += fmt::format("the first difference is token {} of the reply: '{}' and '{}'\n",
                          differs_at_ + 1, at(first_), at(second_));
    }
    text += fmt::format(
        "along the first reply: mean KL {:.5f} nats, same best token at {} of {}\n", mean_kl(),
        std::ranges::count_if(points_, [](const Divergence& d) { return d.best[0] == d.best[1]; }),
        points_.size());
    return text + worst(tokenizer) + side_text(first_) + side_text(second_);
  }

 private:
  [[nodiscard]] double mean_kl() const {
    return points_.empty() ? 0 : sum_ / static_cast<double>(points_.size());
  }

  [[nodiscard]] std::string worst(const Tokenizer& tokenizer) const {
    constexpr std::size_t kShown = 8;
    std::vector<std::size_t> order(points_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t i) { return points_[i].kl; });
    order.resize(std::min(order.size(), kShown));
    std::string text =
        "farthest apart:\n  token        KL   first  second  said; then what left and "
        "entered the five best\n";
    for (const std::size_t i : order) {
      const Divergence& d = points_[i];
      constexpr double kPercent = 100;
      text += fmt::format("  {:>5} {:>9.5f} {:>5.1f} % {:>5.1f} %  '{}'", i + 1, d.kl,
                          kPercent * d.probability[0], kPercent * d.probability[1],
                          piece(tokenizer, first_.reply.ids[i]));
      if (!d.gone.empty()) {
        text += fmt::format("; {} left, {} entered", pieces(tokenizer, d.gone),
                            pieces(tokenizer, d.come));
      }
      text += "\n";
    }
    return text;
  }

  const Side& first_;
  const Side& second_;
  std::vector<Divergence> points_;
  double sum_ = 0;
  std::size_t differs_at_ = 0;
  bool differs_ = false;
};

}  // namespace

int compare(const CompareOptions& options, Reporter& reporter) {
  Side first = open_first(options);
  Side second = open_second(options, first.opened);
  const ComparedPrompt prompt = prompt_of(options, first.opened);
  reporter.document()["prompt_ids"] = prompt.ids;
  std::vector<TokenId> along;
  run_side(first, options, prompt, along);
  run_side(second, options, prompt, along);
  use_utf8_locale();  // for texts beside each other
  const ComparisonReport report(first, second);
  report.add_to(reporter.document());
  reporter.text(report.text());
  reporter.finish();
  return 0;
}

}  // namespace fut::app
