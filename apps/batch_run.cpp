// See the header.
#include "apps/batch_run.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>

#include "apps/batch_row.h"
#include "apps/escape.h"
#include "apps/generation.h"
#include "apps/logging.h"
#include "apps/model_session.h"
#include "apps/progress.h"
#include "apps/reply_file.h"
#include "apps/reply_report.h"
#include "apps/request_prompt.h"
#include "apps/signals.h"
#include "apps/text_input.h"
#include "apps/words.h"
#include "engine/text_batch.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

// Everything but the rows that decides what replies are, for row_key.
std::string settings_text(const GenerateOptions& options, const OpenedModel& model,
                          const std::string& system) {
  std::error_code ignored;
  const ReplyOptions& reply = options.reply;
  const SamplingOptions& s = options.sampling;
  const auto number = [](const auto& value) { return value ? Json(*value) : Json(nullptr); };
  Json json = {{"model", std::filesystem::weakly_canonical(model.folder.path, ignored).string()},
               {"head", static_cast<int>(options.model.arithmetic.head)},
               {"context", model.context_tokens},
               {"system", system},
               {"raw", options.form.raw},
               {"template", options.form.chat_template
                                ? Json(chat_template_name(*options.form.chat_template))
                                : Json(nullptr)},
               {"date", number(options.form.date)},
               {"parse_special", number(options.form.parse_special)},
               {"reply",
                {reply.max_new_tokens, reply.stop, reply.ignore_eos, reply.show_special,
                 reply.num_logprobs, static_cast<int>(reply.truncate)}},
               {"sampling",
                {number(s.temperature), number(s.top_p), number(s.min_p), number(s.top_k),
                 number(s.repetition_penalty), s.presence_penalty, s.frequency_penalty,
                 s.repeat_last_n, s.temperature_first, number(s.seed)}}};
  add_arithmetic(json, model);
  if (json.contains("prefill_weights")) {
    // As it was asked for: what fits may be another choice the next time, and is no reason to begin anew.
    json["prefill_weights"] = prefill_weights_name(
        options.model.arithmetic.prefill_weights.value_or(PrefillWeights::Fp8));
  }
  return json_line(json);
}

// What one run of a batch has at hand; rows in, lines out.
class BatchRun {
 public:
  BatchRun(const GenerateOptions& options, OpenedModel& model, std::vector<InputRow> rows)
      : options_(options),
        model_(model),
        rows_(std::move(rows)),
        limits_{model.context_tokens, model.folder.config.max_position_embeddings, true} {
    if (options.prompt.system.given()) {
      system_ = read_system_prompt(options.prompt, model.folder.tokenizer, limits_);
    }
    settings_ = settings_text(options, model, system_);
    make_keys();
  }

  // Once more when the weights are there: without room for a quantised copy they are of another precision.
  // Whether the keys are others now.
  [[nodiscard]] bool renew_keys() {
    const std::string before = settings_;
    settings_ = settings_text(options_, model_, system_);
    if (settings_ == before) return false;
    make_keys();
    return true;
  }

  [[nodiscard]] const std::vector<std::string>& keys() const { return keys_; }
  [[nodiscard]] std::size_t num_rows() const { return rows_.size(); }

  // How many lines are written, those of an earlier run included: less than all where a signal came.
  [[nodiscard]] std::size_t num_lines() const { return next_line_; }
  // The first `count` rows have their lines.
  void skip(std::size_t count) { next_row_ = next_line_ = count; }

  // Replies to all rows that have no line yet; `write` gets their lines in order. A signal ends it
  // early or throws Interrupted.
  template <class Write>
  void run(Engine& engine, std::size_t at_a_time, const Write& write) {
    TextBatch batch(engine, model_.folder.tokenizer);
    const auto write_ready = [&] {
      for (auto it = lines_.find(next_line_); it != lines_.end(); it = lines_.find(next_line_)) {
        write(it->second);
        lines_.erase(it);
        ++next_line_;
      }
    };
    ProgressLine progress;
    while (next_line_ < rows_.size()) {
      while (batch.size() < at_a_time && next_row_ < rows_.size() && !stop_flag()) {
        start(batch, next_row_++);
      }
      write_ready();
      if (stop_flag()) break;
      if (batch.size() == 0) continue;
      for (TextBatch::Done& done : batch.step()) finish(done);
      tokens_ = batch.num_tokens();
      if (!stop_flag()) progress.show(progress_text(batch));  // else what is done is written first
    }
  }

  [[nodiscard]] int first_error_code() const { return first_error_code_; }
  [[nodiscard]] std::size_t num_errors() const { return num_errors_; }
  [[nodiscard]] std::int64_t num_tokens() const { return tokens_; }

 private:
  void make_keys() {
    keys_.clear();
    for (const InputRow& row : rows_) keys_.push_back(row_key(settings_, row.text));
  }

  struct Started {
    std::size_t row = 0;
    std::size_t prompt_tokens = 0;
    std::uint64_t seed = 0;
  };

  // Puts a row into the batch, or its error among the lines.
  void start(TextBatch& batch, std::size_t index) {
    try {
      const BatchRow row = parse_batch_row(rows_[index].text, rows_[index].place, options_);
      GenerateOptions own = options_;
      own.form = row.form;
      own.reply = row.reply;
      std::optional<ChatTemplate> chat_template;
      if (!row.form.raw) chat_template = own_template();
      std::vector<TokenId> ids = prompt_ids(row, chat_template);
      const std::size_t prompt_tokens = ids.size();
      const SamplingSettings sampling =
          resolve_sampling(row.sampling, model_.folder.generation, index == 0);
      const SequenceId id =
          batch.submit(make_text_request(own, model_, chat_template, sampling, std::move(ids)));
      started_[id] = {index, prompt_tokens, sampling.params.sample.seed};
    } catch (const Error& e) {
      add_error(index, static_cast<int>(e.kind()), error_kind_name(e.kind()), e.what());
    }
  }

  [[nodiscard]] std::vector<TokenId> prompt_ids(const BatchRow& row,
                                                std::optional<ChatTemplate> chat_template) const {
    const Tokenizer& tokenizer = model_.folder.tokenizer;
    const RequestForm request{row.form, row.reply, tokenizer, limits_};
    if (row.prompt && row.reply.truncate == Truncate::No) {
      refuse_hopeless_text(tokenizer, *row.prompt, limits_);
    }
    if (!chat_template) return raw_prompt_ids(request, *row.prompt);
    std::vector<ChatMessage> messages = row.messages;
    const std::string& system = row.system ? *row.system : system_;
    const bool has_system = !messages.empty() && messages.front().role == "system";
    if (!has_system && (row.system || options_.prompt.system.given())) {
      messages.insert(messages.begin(), {"system", system});
    }
    if (row.prompt) messages.push_back({"user", *row.prompt});
    return chat_prompt_ids(request, *chat_template, std::move(messages));
  }

  // Looked up when the first row wants it: a batch of raw rows needs none.
  ChatTemplate own_template() {
    if (!template_) {
      template_ = resolve_chat_template(options_.form.chat_template, model_.folder.path);
    }
    return *template_;
  }

  void finish(TextBatch::Done& done) {
    const Started started = started_.at(done.id);
    started_.erase(done.id);
    if (done.reply.finish == FinishReason::Error) {
      return add_error(started.row, static_cast<int>(ErrorKind::Runtime),
                       error_kind_name(ErrorKind::Runtime), done.reply.error);
    }
    Json line = line_of(started.row);
    line["seed"] = started.seed;
    add_reply(line, done.reply, started.prompt_tokens, model_.folder.tokenizer);
    lines_[started.row] = std::move(line);
  }

  [[nodiscard]] Json line_of(std::size_t row) const {
    return {{"index", row}, {"id", batch_row_id(rows_[row].text)}, {"key", keys_[row]}};
  }

  void add_error(std::size_t row, int code, std::string_view kind, std::string_view message) {
    log_info("{}", escape_controls(message));  // it may hold what the row has
    Json line = line_of(row);
    line["error"] = {{"code", code}, {"kind", kind}, {"message", message}};
    lines_[row] = std::move(line);
    ++num_errors_;
    if (row <= first_error_row_) {
      first_error_row_ = row;
      first_error_code_ = code;
    }
  }

  [[nodiscard]] std::string progress_text(const TextBatch& batch) const {
    return fmt::format("{} of {}, {} under way, {}", next_line_ + lines_.size(),
                       counted(rows_.size(), "row"), batch.size(),
                       counted(static_cast<std::uint64_t>(batch.num_tokens()), "token"));
  }

  const GenerateOptions& options_;
  OpenedModel& model_;
  std::vector<InputRow> rows_;
  ContextLimits limits_;
  std::string system_;
  std::optional<ChatTemplate> template_;
  std::string settings_;
  std::vector<std::string> keys_;  // of settings and rows
  std::map<SequenceId, Started> started_;
  std::map<std::size_t, Json> lines_;  // of rows that wait for earlier ones
  std::size_t next_row_ = 0;           // to be started
  std::size_t next_line_ = 0;          // to be written
  std::size_t num_errors_ = 0;
  std::size_t first_error_row_ = static_cast<std::size_t>(-1);
  int first_error_code_ = 0;
  std::int64_t tokens_ = 0;
};

ReplyFile::Existing existing_of(const BatchOptions& options) {
  if (options.resume) return ReplyFile::Existing::Resume;
  return options.overwrite ? ReplyFile::Existing::Overwrite : ReplyFile::Existing::Refuse;
}

// Prompts and replies apart: replies to be held against fut bench.
std::string speed_text(const EngineTimes& t) {
  const auto per_second = [](std::int64_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  };
  const auto steps = static_cast<double>(std::max<std::int64_t>(t.decode_steps, 1));
  return fmt::format(
      "[prompts: {} in {}, {:.0f} tokens/s; decode: {} in {} and {}, {:.1f} rows and {:.3f} ms a "
      "step, {:.1f} tokens/s; {} of a step recorded in {:.3f} s]\n",
      counted(static_cast<std::uint64_t>(t.prompt_tokens), "token"), seconds_text(t.prompt_seconds),
      per_second(t.prompt_tokens, t.prompt_seconds),
      counted(static_cast<std::uint64_t>(t.decode_tokens), "token"),
      counted(static_cast<std::uint64_t>(t.decode_steps), "step"), seconds_text(t.decode_seconds),
      static_cast<double>(t.decode_tokens) / steps, 1e3 * t.decode_seconds / steps,
      per_second(t.decode_tokens, t.decode_seconds),
      counted(static_cast<std::uint64_t>(t.recordings.count), "kind"), t.recordings.seconds);
}

void tell_summary(const BatchRun& run, std::size_t rows, double seconds, const EngineTimes& times,
                  int verbosity) {
  if (run.num_errors() > 0) {
    log_warning("{} of {} got an error in place of a reply; their lines say why", run.num_errors(),
                counted(rows, "row"));
  }
  const bool wanted =
      verbosity >= kInfoVerbosity || (verbosity > 0 && standard_error_is_terminal());
  if (!wanted) return;
  const auto tokens = static_cast<std::uint64_t>(run.num_tokens());
  write_to_standard_error(fmt::format("[{} in {}, {}, {:.1f} tokens/s]\n", counted(rows, "row"),
                                      seconds_text(seconds), counted(tokens, "token"),
                                      static_cast<double>(tokens) / seconds));
  if (verbosity >= kInfoVerbosity) write_to_standard_error(speed_text(times));
}

}  // namespace

int run_batch(const GenerateOptions& options, Reporter& reporter) {
  const BatchOptions& batch = options.batch;
  const bool to_file = !options.output.file.empty();
  if (!to_file && (batch.resume || batch.overwrite)) {
    throw usage_error(
        "--resume and --overwrite are about the replies in a file; add --output-file");
  }
  const InputText input = read_text({std::nullopt, batch.input_file}, false,
                                    std::numeric_limits<std::uint64_t>::max(), "");
  std::vector<InputRow> rows = split_rows(input.text, input.name);
  OpenedModel model = open_model(options.model);
  BatchRun run(options, model, std::move(rows));
  std::optional<ReplyFile> file;
  if (to_file) file.emplace(options.output.file, existing_of(batch), run.keys());
  const std::size_t kept = file ? file->num_kept() : 0;
  const std::size_t left = run.num_rows() - kept;
  int code = file ? file->first_error_code() : 0;
  run.skip(kept);
  if (left > 0) {
    const std::size_t at_a_time = std::min(static_cast<std::size_t>(batch.replies_at_a_time), left);
    try {
      Engine engine = load_engine(model, options.model, static_cast<int>(at_a_time));
      if (run.renew_keys() && kept > 0) {
        throw runtime_failure(
            "{}: this run would compute in {}, which its {} are not of; make room for the "
            "quantised copy, or begin anew with --overwrite",
            options.output.file, precision_name(model.precision), counted(kept, "line"));
      }
      const auto start = std::chrono::steady_clock::now();
      run.run(engine, at_a_time, [&](const Json& line) {
        if (file) return file->write(json_line(line));
        reporter.line(line);
      });
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      tell_summary(run, run.num_lines() - kept, seconds.count(), engine.times(),
                   options.log.verbosity);
    } catch (const Interrupted&) {
      // Told below, with how far it came.
    }
    if (code == 0) code = run.first_error_code();
  } else if (kept > 0) {
    log_warning("{}: nothing is left to do, all of {} are there{}", options.output.file,
                counted(kept, "row"),
                code == 0 ? "" : fmt::format("; exit code {} is that of the first error", code));
  }
  if (file) file->finish();
  reporter.finish(false);
  if (run.num_lines() == run.num_rows()) return code;
  log_warning("interrupted behind {} of {}{}", run.num_lines(), counted(run.num_rows(), "row"),
              file ? "; the same command with --resume goes on" : "");
  return exit_code_of_signal(take_signal());
}

}  // namespace fut::app
