// fut perplexity: how well a model predicts a text, and how far two models are apart on it.
#include "engine/perplexity.h"

#include <chrono>
#include <cmath>
#include <limits>

#include "apps/commands.h"
#include "apps/logging.h"
#include "apps/model_session.h"
#include "apps/progress.h"
#include "apps/text_input.h"
#include "apps/wikitext.h"
#include "apps/words.h"
#include "kernels/error.h"
#include "loader/packed_model.h"

namespace fut::app {
namespace {

constexpr int kDefaultWindow = 2048;

std::string_view path_name(StepKind path) {
  return path == StepKind::Prefill ? "prefill" : "decode";
}

int resolve_window(std::optional<int> wanted, const ModelConfig& config) {
  const int most = config.max_position_embeddings;
  if (!wanted) return std::min(kDefaultWindow, most);
  if (*wanted > most) {
    throw usage_error(
        "--window {}: this model has {} positions (max_position_embeddings); at most "
        "that many tokens make a window",
        *wanted, most);
  }
  return *wanted;
}

// Control tokens spelt out in a text about them are text.
TokenWindows read_windows(const PerplexityOptions& options, const Tokenizer& tokenizer,
                          int window) {
  InputText input =
      read_text({{}, options.file}, false, std::numeric_limits<std::uint64_t>::max(), "");
  if (options.wikitext) input.text = join_wikitext_rows(input.text);
  EncodeOptions encode;
  encode.parse_special = false;
  const std::vector<TokenId> ids = tokenizer.encode(input.text, encode);
  if (ids.size() < static_cast<std::size_t>(window)) {
    throw data_error("{}: {}, and a window has {}: give a longer text, or a smaller --window",
                     input.name, counted(ids.size(), "token"), window);
  }
  return cut_windows(ids, window, options.max_windows.value_or(std::numeric_limits<int>::max()));
}

// The other model's options: its own folder and precision, with that precision's defaults. What is
// said of cache and head belongs to the first model, so that the two can differ in nothing else.
ModelOptions against_options(const PerplexityOptions& options) {
  ModelOptions other = options.model;
  if (!options.against->model.empty()) other.model = options.against->model;
  other.model_flag = "--against";
  other.arithmetic = {};
  return other;
}

OpenedModel open_other(const PerplexityOptions& options, const OpenedModel& first) {
  ModelOptions other = against_options(options);
  std::error_code ignored;
  const bool is_packed = PackedModel::is_packed(
      other.model.empty() ? first.folder.path : std::filesystem::path(other.model));
  other.arithmetic.precision =
      options.against->precision.value_or(is_packed ? Precision::Int4 : Precision::F32);
  // float32 is the CPU's alone, wherever the first model runs.
  if (other.arithmetic.precision == Precision::F32) other.device.kind = DeviceRequest::Kind::Cpu;
  OpenedModel model = open_model(other);
  // The same ids must mean the same tokens.
  const int mine = first.folder.tokenizer.vocab_size();
  const int others = model.folder.tokenizer.vocab_size();
  if (mine != others) {
    throw data_error(
        "--against {}: its tokenizer has {} tokens, that of {} has {}: two models can "
        "be compared on the same tokens only",
        model.folder.path.string(), others, first.folder.path.string(), mine);
  }
  return model;
}

void add_against(Json& document, const PairedScores& scores, const OpenedModel& model) {
  Json& against = document["against"];
  against["model"] = model.folder.path.string();
  add_arithmetic(against, model);
  against["ppl"] = scores.perplexity;
  against["paired"] = scores.difference;
  against["paired_stderr"] = scores.difference_error;
  against["kl"] = scores.kl;
  against["kl_stderr"] = scores.kl_error;
  against["top1"] = scores.top1;
}

void add_scores(Json& document, const PerplexityResult& result) {
  document["ppl"] = result.perplexity;
  document["stderr"] = result.perplexity_error;
  document["nll"] = result.nll;
  document["tokens"] = result.tokens;
  document["windows"] = result.windows;
}

// "int4, cache int4"
std::string arithmetic_text(const OpenedModel& model) {
  return fmt::format("{}, cache {}", precision_name(model.precision),
                     kv_cache_dtype_name(model.kv_cache.dtype));
}

std::string scores_text(const PerplexityResult& result, const OpenedModel& model,
                        const OpenedModel* other, int window, StepKind path) {
  std::string text = fmt::format(
      "perplexity {:.4f} +- {:.4f}\n"
      "  {} in {} of {}, {}, {}\n",
      result.perplexity, result.perplexity_error,
      counted(static_cast<std::uint64_t>(result.tokens), "scored token"),
      counted(static_cast<std::uint64_t>(result.windows), "window"), window, path_name(path),
      arithmetic_text(model));
  if (other == nullptr || !result.against) return text;
  constexpr double kPercent = 100;
  const PairedScores& a = *result.against;
  const double ratio = std::exp(a.difference);
  text += fmt::format(
      "against {}: {}: {:.4f}\n"
      "  difference {:+.5f} +- {:.5f} nats a token ({:+.3f} % +- {:.3f} %)\n"
      "  KL {:.5f} +- {:.5f} nats, same best token {:.2f} %\n",
      other->folder.path.string(), arithmetic_text(*other), a.perplexity, a.difference,
      a.difference_error, (ratio - 1) * kPercent, ratio * a.difference_error * kPercent, a.kl,
      a.kl_error, a.top1 * kPercent);
  return text;
}

ScoredModel scored(OpenedModel& opened, Backend& backend, const Model& model,
                   const PerplexityOptions& options) {
  ScoredModel result;
  result.backend = &backend;
  result.model = &model;
  result.options.path = options.path;
  result.options.kv_cache = opened.kv_cache;
  result.options.lock_step = options.lock_step;
  result.options.threads = options.model.device.cpu_threads;
  return result;
}

}  // namespace

int perplexity(const PerplexityOptions& options, Reporter& reporter) {
  if (options.file.empty()) throw usage_error("there is no text to score; give one with -f FILE");
  if (options.lock_step_typed && options.path == StepKind::Prefill) {
    throw usage_error("--lock-step is about --path decode; add it, or leave --lock-step out");
  }
  OpenedModel opened = open_model(options.model);
  const int window = resolve_window(options.window, opened.folder.config);
  Json& document = reporter.document();
  document["model"] = opened.folder.path.string();
  document["device"] = opened.backend->description();
  add_arithmetic(document, opened);
  document["path"] = path_name(options.path);
  document["text"] = options.file;
  document["window"] = window;
  std::optional<OpenedModel> other;
  if (options.against) {
    other.emplace(open_other(options, opened));
    (void)resolve_window(window, other->folder.config);
  }
  const TokenWindows windows = read_windows(options, opened.folder.tokenizer, window);

  Backend& backend = *opened.backend;
  const Model model = load_weights(backend, opened, options.model, NoRoom::Fail);
  // On one device where it can run both, so that memory is counted once.
  const bool apart =
      other && !backend.fault(sizes_of(other->folder.config, other->precision)).empty();
  Backend& other_backend = apart ? *other->backend : backend;
  std::optional<Model> other_model;
  if (other) {
    other_model.emplace(
        load_weights(other_backend, *other, against_options(options), NoRoom::Fail));
  }
  const auto start = std::chrono::steady_clock::now();
  const PerplexityResult result = [&] {
    ProgressLine line;
    const ScoredModel first = scored(opened, backend, model, options);
    const ScoredModel second =
        other ? scored(*other, other_backend, *other_model, options) : ScoredModel();
    return score_windows(first, windows, other ? &second : nullptr,
                         [&](std::size_t done, std::size_t total, double nll) {
                           line.show(fmt::format("{} of {}, perplexity so far {:.3f}", done,
                                                 counted(total, "window"), std::exp(nll)));
                         });
  }();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  add_scores(document, result);
  if (other) add_against(document, *result.against, *other);
  document["seconds"] = seconds.count();
  reporter.text(scores_text(result, opened, other ? &*other : nullptr, window, options.path));
  reporter.finish();
  return 0;
}

}  // namespace fut::app
