// fut run: one prompt, one reply; with -i many of them (batch_run.h).
#include <chrono>

#include "apps/batch_run.h"
#include "apps/commands.h"
#include "apps/generation.h"
#include "apps/logging.h"
#include "apps/model_session.h"
#include "apps/prompt.h"
#include "apps/prompt_xray.h"
#include "apps/reply_on_terminal.h"
#include "apps/reply_report.h"
#include "apps/request_prompt.h"
#include "apps/signals.h"
#include "apps/text_input.h"
#include "apps/words.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

// The prompt of this run, once it is known to fit.
struct RunPrompt {
  std::vector<TokenId> ids;
  std::optional<ChatTemplate> chat_template;  // nullopt: raw
};

// Reads a text that has to fit into the context, unless the user wants it cut.
InputText read_prompt_text(const GenerateOptions& options, const OpenedModel& model,
                           const ContextLimits& limits) {
  const Tokenizer& tokenizer = model.folder.tokenizer;
  if (options.reply.truncate != Truncate::No) {
    constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;
    return read_text(options.prompt.prompt, options.prompt.interpret_escapes, kMostBytes,
                     ", even to be cut by --truncate");
  }
  const std::string reason =
      fmt::format(" into a context of {} tokens: shorten it, raise -c or use --truncate head|tail",
                  limits.tokens);
  InputText input = read_text(options.prompt.prompt, options.prompt.interpret_escapes,
                              most_prompt_bytes(tokenizer, limits.tokens), reason);
  refuse_hopeless_text(tokenizer, input.text, limits);
  return input;
}

RunPrompt make_prompt(const GenerateOptions& options, const OpenedModel& model) {
  const Tokenizer& tokenizer = model.folder.tokenizer;
  const ContextLimits limits{model.context_tokens, model.folder.config.max_position_embeddings,
                             true};
  const RequestForm request{options.form, options.reply, tokenizer, limits};
  RunPrompt prompt;
  if (options.form.raw) {
    prompt.ids = raw_prompt_ids(request, read_prompt_text(options, model, limits).text);
  } else {
    prompt.chat_template = resolve_chat_template(options.form.chat_template, model.folder.path);
    std::vector<ChatMessage> messages;
    if (options.prompt.system.given()) {
      messages.push_back({"system", read_system_prompt(options.prompt, tokenizer, limits)});
    }
    InputText input = read_prompt_text(options, model, limits);
    if (input.from_stream) drop_final_newline(input.text);
    messages.push_back({"user", std::move(input.text)});
    prompt.ids = chat_prompt_ids(request, *prompt.chat_template, std::move(messages));
  }
  if (options.form.verbose_prompt) {
    write_to_standard_error(prompt_xray(tokenizer, prompt.ids, {0, use_color(options.log.color)}));
  }
  return prompt;
}

// What follows the reply's text: a newline in the chat form, and on a terminal where none is yet.
void end_text(Reporter& reporter, const TextReply& reply, bool chat_form) {
  const bool terminal_needs_one = reporter.is_terminal() && !reply.text.ends_with('\n');
  if (chat_form || terminal_needs_one) reporter.text("\n");
}

// Adds startup, and logs it as a table.
void add_startup(Json& document, StartupTimes& startup, const TextReply& reply,
                 const EngineTimes& times) {
  if (reply.ids.empty()) return;
  constexpr double kMilliseconds = 1000;  // of a second
  startup.add("first token", reply.timings.prefill_ms / kMilliseconds);
  document["timings"]["startup"] = startup.json();
  log_info("from the start:\n{}  (then {} of a decode step recorded in {:.3f} s)", startup.table(),
           counted(static_cast<std::uint64_t>(times.recordings.count), "kind"),
           times.recordings.seconds);
}

}  // namespace

int run(const GenerateOptions& options, Reporter& reporter) {
  check_generate_options(options);
  const bool talks =
      !options.batch.given() && !options.prompt.prompt.given() && standard_input_is_terminal();
  if (options.history.file_typed && !talks) {
    throw usage_error("--history-file is of a chat; fut run with a prompt stores nothing");
  }
  if (options.batch.given()) return run_batch(options, reporter);
  if (talks) {
    if (options.form.raw || options.reply.truncate != Truncate::No) {
      throw usage_error("there is no prompt; give one with -p or -f");
    }
    return chat(options, reporter);
  }
  const auto start = std::chrono::steady_clock::now();
  OpenedModel model = open_model(options.model);
  Json& document = reporter.document();
  document["model"] = model.folder.path.string();
  document["finish_reason"] = finish_reason_name(FinishReason::Error);  // until there is a reply
  document["device"] = model.backend->description();
  document["context_tokens"] = model.context_tokens;
  add_arithmetic(document, model);
  const RunPrompt prompt = make_prompt(options, model);
  document["prompt_ids"] = prompt.ids;
  const SamplingSettings sampling = resolve_sampling(options.sampling, model.folder.generation);
  add_sampling(document, sampling);
  Engine engine = load_engine(model, options.model);
  model.startup.lap("cache, workspace");
  add_arithmetic(document, model);  // once more: without room for a copy it is another one
  const std::chrono::duration<double, std::milli> load_ms =
      std::chrono::steady_clock::now() - start;
  document["timings"]["load_ms"] = load_ms.count();

  TextRequest request =
      make_text_request(options, model, prompt.chat_template, sampling, prompt.ids);
  ReplyOnTerminal shown(reporter.is_terminal(), shows_probabilities(options));
  shown.watch(request);
  const TextReply reply =
      generate_text(engine, model.folder.tokenizer, request, [&](std::string_view piece) {
        reporter.text(shown.form(piece));
        reporter.line({{"text", piece}});
      });
  end_text(reporter, reply, prompt.chat_template.has_value());
  add_reply(document, reply, prompt.ids.size(), model.folder.tokenizer);
  add_startup(document, model.startup, reply, engine.times());
  if (reply.finish == FinishReason::Error) throw runtime_failure("{}", reply.error);
  reporter.finish();
  if (shows_probabilities(options)) write_to_standard_error(probability_legend());
  tell_about_reply(reply, prompt.ids.size(), model.context_tokens, options.log.verbosity,
                   sampling.params.sample);
  return reply.finish == FinishReason::Interrupt ? exit_code_of_signal(take_signal()) : 0;
}

}  // namespace fut::app
