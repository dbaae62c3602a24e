// See the header.
#include "apps/bench/latency.h"

#include <chrono>
#include <fmt/ranges.h>
#include <optional>
#include <random>

#include "apps/bench/latency_report.h"
#include "apps/bench/ops.h"
#include "apps/bench/statistics.h"
#include "apps/bench/sweep.h"
#include "apps/logging.h"
#include "apps/output.h"
#include "apps/sampling_settings.h"
#include "apps/signals.h"
#include "engine/text_generation.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kMostSpread = 0.01;  // what the 95 % interval's half may be of the mean
constexpr std::size_t kMostWarmUp = 30;
constexpr double kMostSeconds = 60;  // of one setting

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Prompts are ordinary tokens drawn with a fixed seed, and a reply never ends early.
class Prompts {
 public:
  Prompts(const ModelConfig& config, const ModelFolder* folder) {
    for (TokenId id = 0; id < config.vocab_size; ++id) {
      const bool is_text = folder == nullptr || (id < folder->tokenizer.vocab_size() &&
                                                 !folder->tokenizer.is_special(id));
      if (is_text) ordinary_.push_back(id);
    }
    if (ordinary_.empty()) throw data_error("the tokenizer has no ordinary token");
  }
  [[nodiscard]] std::vector<TokenId> make(int tokens, unsigned seed) const {
    std::mt19937 random(seed);
    std::vector<TokenId> ids;
    for (int i = 0; i < tokens; ++i) ids.push_back(ordinary_[random() % ordinary_.size()]);
    return ids;
  }

 private:
  std::vector<TokenId> ordinary_;
};

class Instrument {
 public:
  Instrument(Engine& engine, const LatencySubject& subject, const BenchOptions& options)
      : engine_(engine),
        folder_(subject.folder),
        chat_template_(folder_ == nullptr ? std::nullopt : find_chat_template(folder_->path)),
        prompts_(engine.model().config(), subject.folder),
        sampling_(resolve_sampling(options.sampling, {}, false).params),
        sink_("/dev/null") {}

  [[nodiscard]] LatencySample run(const LatencyRow& row) {
    throw_if_interrupted();
    std::vector<std::vector<TokenId>> prompts;
    for (int i = 0; i < row.batch; ++i) {
      // Where no prompt is asked for, one token begins the reply.
      const int tokens = std::max(1, row.depth + row.prompt_tokens);
      prompts.push_back(prompts_.make(tokens, static_cast<unsigned>(i)));
    }
    if (row.depth > 0) fill_cache(prompts[0], row.depth);
    LatencySample sample;
    if (folder_ != nullptr) time_prompt_text(prompts[0], sample);
    const Clock::time_point start = sample.start = Clock::now();
    for (const auto& prompt : prompts) submit(prompt, row.reply_tokens, row.depth > 0);
    generate(row, start, sample);
    return sample;
  }

 private:
  void submit(const std::vector<TokenId>& prompt, int reply_tokens, bool of_conversation) {
    Request request;
    request.prompt = prompt;
    request.max_new_tokens = reply_tokens;
    request.sampling = sampling_;
    request.of_conversation = of_conversation;
    engine_.submit(std::move(request));
  }

  // So that the next request finds its first `depth` tokens computed, as a turn of a talk does.
  void fill_cache(const std::vector<TokenId>& prompt, int depth) {
    submit({prompt.begin(), prompt.begin() + depth}, 1, true);
    while (!engine_.idle()) engine_.step();
  }

  void time_prompt_text(const std::vector<TokenId>& prompt, LatencySample& sample) {
    const Tokenizer& tokenizer = folder_->tokenizer;
    const std::vector<ChatMessage> messages = {{"user", tokenizer.decode(prompt, true)}};
    if (chat_template_) {
      const Clock::time_point start = Clock::now();
      (void)render_chat(*chat_template_, messages, {}, tokenizer);
      sample.render = ms_since(start);
    }
    const Clock::time_point start = Clock::now();
    (void)tokenizer.encode(messages[0].content, {});
    sample.tokenize = ms_since(start);
  }

  void generate(const LatencyRow& row, Clock::time_point start, LatencySample& sample) {
    std::size_t first_tokens = 0;
    TextRequest form;
    std::optional<ReplyText> text;
    if (folder_ != nullptr) text.emplace(folder_->tokenizer, form);
    SequenceId shown = 0;
    Clock::time_point before = start;
    while (!engine_.idle()) {
      const std::span<const TokenEvent> events = engine_.step();
      if (events.empty()) continue;
      const Clock::time_point now = Clock::now();
      const double ms = std::chrono::duration<double, std::milli>(now - before).count();
      if (shown == 0) shown = events[0].sequence;
      if (first_tokens < static_cast<std::size_t>(row.batch)) {
        first_tokens += events.size();
        sample.prefill += ms;
      } else {
        sample.steps.push_back(ms);
      }
      for (const TokenEvent& event : events) {
        if (event.finish == FinishReason::Error) throw runtime_failure("logits are not finite");
        if (text && event.sequence == shown) show(*text, event.token, sample);
      }
      before = Clock::now();
    }
  }

  void show(ReplyText& text, TokenId token, LatencySample& sample) {
    Clock::time_point start = Clock::now();
    const std::string piece = text.push(token);
    sample.detokenize += ms_since(start);
    start = Clock::now();
    sink_.write(piece);
    sample.write += ms_since(start);
  }

  Engine& engine_;
  const ModelFolder* folder_;
  std::optional<ChatTemplate> chat_template_;
  Prompts prompts_;
  SamplingParams sampling_;
  Output sink_;
};

std::vector<double> totals(const std::vector<LatencySample>& samples) {
  std::vector<double> values;
  for (const LatencySample& s : samples) {
    double total = s.first_token();
    for (const double step : s.steps) total += step;
    values.push_back(total);
  }
  return values;
}

void measure(Instrument& instrument, const BenchOptions& options, MachineWatch& watch,
             LatencyRow& row) {
  const Clock::time_point start = Clock::now();
  const auto in_time = [&] { return ms_since(start) < kMostSeconds * 1000; };
  std::vector<LatencySample> warm_up;
  while (!row.steady && warm_up.size() < kMostWarmUp && in_time()) {
    warm_up.push_back(instrument.run(row));
    row.steady = is_steady(totals(warm_up));
  }
  row.warm_up = warm_up.size();
  constexpr std::size_t kLeast = 5;
  const auto most = static_cast<std::size_t>(options.repetitions);
  watch.begin();
  for (bool more = true; more;) {
    row.samples.push_back(instrument.run(row));
    if (row.samples.size() < std::min(kLeast, most)) continue;
    row.noisy = summarise(totals(row.samples)).spread() >= kMostSpread;
    more = row.noisy && row.samples.size() < most && in_time();
  }
  row.machine = watch.end();
}

// All settings but deep ones of several requests: the engine keeps what it computed of one conversation.
std::vector<LatencyRow> rows_of(const BenchOptions& options) {
  const LatencyOptions& wanted = options.latency;
  std::vector<LatencyRow> rows;
  for (const int batch : options.batches) {
    for (const int depth : options.depths) {
      if (depth > 0 && batch > 1) continue;
      for (const int prompt : wanted.prompt_tokens) {
        for (const int reply : wanted.reply_tokens) {
          rows.push_back({prompt, reply, depth, batch, 0, false, false, {}, {}});
        }
      }
    }
  }
  return rows;
}

// The ops of a decode step in the middle of the first setting's requests.
struct MeasuredOps {
  std::string title;
  Json rows = Json::array();
  MeasuredRoof roof;
};

MeasuredOps ops_of(const LatencySubject& subject, const Model& model, const LatencyRow& row,
                   const SamplingParams& sampling) {
  constexpr int kWarmUp = 5, kRuns = 30;
  MeasuredOps ops;
  DecodeBenchOptions wanted;
  wanted.sequences = row.batch;
  wanted.depth_tokens = row.depth + row.prompt_tokens + row.reply_tokens / 2;
  wanted.kv_cache = subject.kv_cache;
  wanted.sampling = sampling;
  ops.roof = {subject.backend.measure_read_roof(), subject.backend.measure_product_roof()};
  DecodeBench decode(subject.backend, model, wanted);
  ops.rows = measure_ops(subject.backend, decode, kWarmUp, kRuns, ops.roof);
  ops.title =
      fmt::format("\nops of a decode step alone, depth {}, batch {}, beside {}\n",
                  wanted.depth_tokens, row.batch, bandwidth_text(ops.roof.bytes_per_second));
  return ops;
}

std::int64_t context_of(const std::vector<LatencyRow>& rows) {
  std::int64_t context = 0;
  for (const LatencyRow& row : rows) {
    context = std::max(context, std::int64_t{row.depth} + row.prompt_tokens + row.reply_tokens + 1);
  }
  return context;
}

}  // namespace

void check_latency_lengths(const BenchOptions& options, const ModelConfig& config) {
  const std::vector<LatencyRow> rows = rows_of(options);
  if (rows.empty()) {
    throw usage_error(
        "-d {} is of one request, as a turn of a chat is, and -b is {}: give one of them alone",
        fmt::join(options.depths, ","), fmt::join(options.batches, ","));
  }
  const std::int64_t context = context_of(rows);
  if (context > config.max_position_embeddings) {
    throw usage_error(
        "-p, -n and -d make {} tokens with the one that follows; this model has {} positions "
        "(max_position_embeddings)",
        context, config.max_position_embeddings);
  }
  const std::size_t asked = options.batches.size() * options.depths.size() *
                            options.latency.prompt_tokens.size() *
                            options.latency.reply_tokens.size();
  if (rows.size() < asked) {
    log_warning(
        "left out {} of {} settings: -d above 0 is of one request, as a turn of a chat is, and "
        "goes with -b 1 alone",
        asked - rows.size(), asked);
  }
}

int latency_bench(LatencySubject subject, const BenchOptions& options, MachineWatch& watch,
                  Output* plot, Reporter& reporter) {
  std::vector<LatencyRow> rows = rows_of(options);
  EngineOptions engine_options;
  engine_options.context_tokens = static_cast<int>(context_of(rows));
  engine_options.max_sequences = std::ranges::max_element(rows, {}, &LatencyRow::batch)->batch;
  engine_options.kv_cache = subject.kv_cache;
  Engine engine(subject.backend, std::move(subject.model), engine_options);
  Instrument instrument(engine, subject, options);
  begin_latency_report(subject, reporter);
  const bool shows_ops = options.log.verbosity >= kInfoVerbosity;
  MeasuredOps ops;  // before requests: what has no room for them is found now
  if (shows_ops || plot != nullptr) {
    ops = ops_of(subject, engine.model(), rows[0],
                 resolve_sampling(options.sampling, {}, false).params);
  }
  measure_each(rows, reporter, [&](LatencyRow& row) {
    measure(instrument, options, watch, row);
    add_latency_row(row, options.energy, reporter);
  });
  if (shows_ops) {
    reporter.document()["ops"] = ops.rows;
    if (reporter.is_text()) reporter.text(ops.title + ops_text(ops.rows));
  }
  end_latency_report(rows, roofline_of(ops.rows, ops.roof), plot, reporter);
  reporter.finish();
  return 0;
}

}  // namespace fut::app
