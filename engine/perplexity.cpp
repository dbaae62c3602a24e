// Scores rows of logits and adds up; the order of every sum is the order of the tokens.
#include "engine/perplexity.h"

#include <algorithm>
#include <cmath>

#include "engine/parallel.h"
#include "engine/token_ids.h"
#include "engine/window_logits.h"
#include "kernels/check.h"
#include "kernels/error.h"

namespace fut {
namespace {

// One row of logits as probabilities.
struct RowSummary {
  float maximum = 0;
  double log_sum = 0;  // log of sum of exp(logit - maximum)
  std::int64_t best = 0;
  bool finite = true;  // every logit

  [[nodiscard]] double log_probability(float logit) const {
    return static_cast<double>(logit) - static_cast<double>(maximum) - log_sum;
  }
};

RowSummary summarise(std::span<const float> row) {
  RowSummary s;
  const auto best = std::max_element(row.begin(), row.end());
  s.best = best - row.begin();
  s.maximum = *best;
  double sum = 0;
  for (const float v : row) {
    s.finite = s.finite && std::isfinite(v);
    sum += std::exp(static_cast<double>(v) - static_cast<double>(s.maximum));
  }
  s.log_sum = std::log(sum);
  return s;
}

// KL(other || this) of two rows.
double divergence(std::span<const float> row, const RowSummary& s, std::span<const float> other,
                  const RowSummary& t) {
  double sum = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const double log_q = t.log_probability(other[i]);
    sum += std::exp(log_q) * (log_q - s.log_probability(row[i]));
  }
  return sum;
}

struct TokenScore {
  double nll = 0;
  double other_nll = 0;
  double kl = 0;
  bool same_best = false;
};

// Mean and its standard error, of values that are given in order.
class RunningMean {
 public:
  void add(double value) {
    ++count_;
    const double step = value - mean_;
    mean_ += step / static_cast<double>(count_);
    squares_ += step * (value - mean_);
  }
  [[nodiscard]] double mean() const { return mean_; }
  [[nodiscard]] double error() const {
    if (count_ < 2) return 0;
    const auto n = static_cast<double>(count_);
    return std::sqrt(squares_ / (n - 1) / n);
  }
  [[nodiscard]] std::int64_t count() const { return count_; }

 private:
  std::int64_t count_ = 0;
  double mean_ = 0;
  double squares_ = 0;
};

class Scoring {
 public:
  Scoring(const ScoredModel& scored, const TokenWindows& windows, const ScoredModel* against)
      : windows_(windows),
        parallel_for_(parallel_for_on_threads(scored.options.threads)),
        source_(scored, static_cast<int>(windows.front().size())) {
    if (against == nullptr) return;
    ScoredModel other = *against;
    // The same rows in the same order; what may differ is the model and its cache.
    other.options.path = scored.options.path;
    other.options.lock_step = scored.options.lock_step;
    other.options.prefill_chunk = scored.options.prefill_chunk;
    other_source_.emplace(other, static_cast<int>(windows.front().size()));
  }

  PerplexityResult run(const ScoringProgress& progress) {
    for (std::size_t first = 0; first < windows_.size(); first += source_.group_size()) {
      const std::size_t count = std::min(source_.group_size(), windows_.size() - first);
      score_group(first, count);
      if (progress) progress(first + count, windows_.size(), nll_.mean());
    }
    return result();
  }

 private:
  void score_group(std::size_t first, std::size_t count) {
    const auto group = std::span(windows_).subspan(first, count);
    source_.start(group);
    if (other_source_) other_source_->start(group);
    // Kept by window, so that the order of sums is that of the text on both paths.
    std::vector<std::vector<TokenScore>> scores(count);
    LogitRows rows;
    LogitRows other_rows;
    while (source_.next(rows)) {
      if (other_source_) (void)other_source_->next(other_rows);
      const std::vector<TokenScore> scored = score_rows(first, rows, other_rows);
      for (std::size_t i = 0; i < scored.size(); ++i) {
        scores[rows.places[i].window].push_back(scored[i]);
      }
    }
    for (const auto& window : scores) {
      for (const TokenScore& score : window) add(score);
    }
  }

  std::vector<TokenScore> score_rows(std::size_t first_window, const LogitRows& rows,
                                     const LogitRows& other_rows) const {
    std::vector<TokenScore> scores(rows.places.size());
    const auto cols = static_cast<std::size_t>(rows.logits.cols);
    run_parallel(parallel_for_, std::ssize(scores), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const LogitRows::Place place = rows.places[static_cast<std::size_t>(i)];
        const std::size_t window = first_window + place.window;
        const auto target = static_cast<std::size_t>(windows_[window][place.position + 1]);
        TokenScore& score = scores[static_cast<std::size_t>(i)];
        const std::span row(rows.logits.row(i), cols);
        const RowSummary s = summarise(row);
        require_finite("the model", s, window, place.position);
        score.nll = -s.log_probability(row[target]);
        if (!other_source_) continue;
        const std::span other(other_rows.logits.row(i), cols);
        const RowSummary t = summarise(other);
        require_finite("the other model", t, window, place.position);
        score.other_nll = -t.log_probability(other[target]);
        score.kl = divergence(row, s, other, t);
        score.same_best = s.best == t.best;
      }
    });
    return scores;
  }

  static void require_finite(std::string_view whose, const RowSummary& s, std::size_t window,
                             std::size_t position) {
    if (s.finite) return;
    throw data_error(
        "the logits of {} in window {} after position {} are not finite: the weights are damaged "
        "(see --check-tensors) or overflow in this precision (try --precision f32)",
        whose, window, position);
  }

  void add(const TokenScore& score) {
    nll_.add(score.nll);
    token_nll_.push_back(static_cast<float>(score.nll));
    if (!other_source_) return;
    other_nll_.add(score.other_nll);
    difference_.add(score.nll - score.other_nll);
    kl_.add(score.kl);
    same_best_.add(score.same_best ? 1 : 0);
  }

  PerplexityResult result() {
    PerplexityResult r;
    r.nll = nll_.mean();
    r.perplexity = std::exp(r.nll);
    r.perplexity_error = r.perplexity * nll_.error();
    r.tokens = nll_.count();
    r.windows = std::ssize(windows_);
    r.token_nll = std::move(token_nll_);
    if (other_source_) {
      r.against = PairedScores{std::exp(other_nll_.mean()),
                               difference_.mean(),
                               difference_.error(),
                               kl_.mean(),
                               kl_.error(),
                               same_best_.mean()};
    }
    return r;
  }

  const TokenWindows& windows_;
  ParallelFor parallel_for_;
  WindowLogits source_;
  std::optional<WindowLogits> other_source_;
  RunningMean nll_, other_nll_, difference_, kl_, same_best_;
  std::vector<float> token_nll_;
};

}  // namespace

TokenWindows cut_windows(std::span<const std::int32_t> ids, int window, int max_windows) {
  FUT_CHECK(window >= 2, "a window of {} tokens", window);
  const auto size = static_cast<std::size_t>(window);
  std::size_t count = ids.size() / size;
  if (count == 0) {
    throw data_error(
        "the text has {} tokens and one window takes {}: give a longer text or a smaller --window",
        ids.size(), window);
  }
  if (max_windows > 0) count = std::min(count, static_cast<std::size_t>(max_windows));
  TokenWindows windows;
  for (std::size_t w = 0; w < count; ++w) {
    const auto part = ids.subspan(w * size, size);
    windows.emplace_back(part.begin(), part.end());
  }
  return windows;
}

PerplexityResult score_windows(const ScoredModel& scored, const TokenWindows& windows,
                               const ScoredModel* against, const ScoringProgress& progress) {
  FUT_CHECK(!windows.empty(), "{} windows", windows.size());
  const int vocab_size = scored.model->config().vocab_size;
  for (const auto& window : windows) check_ids(window, vocab_size, "the text");
  if (against != nullptr && against->model->config().vocab_size != vocab_size) {
    throw data_error(
        "the models have {} and {} ids and cannot be compared token by token: take two of the same "
        "family, with embeddings of the same size",
        vocab_size, against->model->config().vocab_size);
  }
  return Scoring(scored, windows, against).run(progress);
}

}  // namespace fut
