// sample on the CPU. Probabilities and their sums are float64, so that no finite logit and no
// parameter within its range can overflow, and so that the stages of ops.h do what they say.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "kernels/check.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/numeric/philox.h"

namespace fut::cpu {
namespace {

struct Candidate {
  float logit = 0;
  std::int32_t id = 0;
};

// Falling logit, ties by rising id: the order of every stage.
bool comes_before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// Visits candidates in falling order, sorting only as far as it is asked.
class FallingOrder {
 public:
  explicit FallingOrder(std::vector<Candidate> candidates) : heap_(std::move(candidates)) {
    std::make_heap(heap_.begin(), heap_.end(), comes_after);
  }
  [[nodiscard]] bool empty() const { return heap_.empty(); }
  Candidate next() {
    std::pop_heap(heap_.begin(), heap_.end(), comes_after);
    const Candidate best = heap_.back();
    heap_.pop_back();
    return best;
  }

 private:
  static bool comes_after(const Candidate& a, const Candidate& b) { return comes_before(b, a); }
  std::vector<Candidate> heap_;
};

// exp((logit - best) / temperature), at most 1.
double weight_of(const Candidate& c, float best, double temperature) {
  return std::exp((static_cast<double>(c.logit) - static_cast<double>(best)) / temperature);
}

double total_weight(const std::vector<Candidate>& candidates, float best, double temperature) {
  double total = 0;
  for (const Candidate& c : candidates) total += weight_of(c, best, temperature);
  return total;
}

// The largest logit, or NaN if any is NaN.
float largest(std::span<const float> logits) {
  float best = -std::numeric_limits<float>::infinity();
  for (const float logit : logits) {
    if (std::isnan(logit)) return logit;
    best = std::max(best, logit);
  }
  return best;
}

float penalized(float logit, const SampleParams& p, std::int64_t times_seen) {
  // In float64, then back into the finite float32 range: a huge penalty may order ids as it likes,
  // but it must not make an infinity.
  double value = logit;
  value = value > 0 ? value / static_cast<double>(p.repetition_penalty)
                    : value * static_cast<double>(p.repetition_penalty);
  value -= static_cast<double>(p.presence_penalty);
  value -= static_cast<double>(times_seen) * static_cast<double>(p.frequency_penalty);
  constexpr double kLimit = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(value, -kLimit, kLimit));
}

// All ids with a finite logit, by rising id; candidates[id] only where nothing is left out.
std::vector<Candidate> penalized_candidates(std::span<const float> logits, const SampleParams& p,
                                            std::span<const std::int32_t> history) {
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (std::size_t id = 0; id < logits.size(); ++id) {
    candidates.push_back({logits[id], static_cast<std::int32_t>(id)});
  }
  std::vector<std::int32_t> seen(history.begin(), history.end());
  std::sort(seen.begin(), seen.end());
  for (auto first = seen.begin(); first != seen.end();) {
    const auto end = std::upper_bound(first, seen.end(), *first);
    Candidate& c = candidates[static_cast<std::size_t>(*first)];
    if (std::isfinite(c.logit)) c.logit = penalized(c.logit, p, end - first);
    first = end;
  }
  // A logit of minus infinity has no probability at any temperature.
  std::erase_if(candidates, [](const Candidate& c) { return !std::isfinite(c.logit); });
  return candidates;
}

// Every filter keeps the candidates by rising id and keeps at least the best one.

void keep_up_to(std::vector<Candidate>& candidates, const Candidate& last) {
  std::erase_if(candidates, [&](const Candidate& c) { return comes_before(last, c); });
}

void keep_top_k(std::vector<Candidate>& candidates, int top_k) {
  if (top_k <= 0 || static_cast<std::size_t>(top_k) >= candidates.size()) return;
  std::vector<Candidate> ordered = candidates;
  const auto last = ordered.begin() + (top_k - 1);
  std::nth_element(ordered.begin(), last, ordered.end(), comes_before);
  keep_up_to(candidates, *last);
}

// The shortest run from the best on whose probabilities sum up to at least top_p.
void keep_top_p(std::vector<Candidate>& candidates, float top_p, float best, double temperature) {
  if (top_p >= 1.0F) return;
  const double wanted = static_cast<double>(top_p) * total_weight(candidates, best, temperature);
  FallingOrder order(candidates);
  double sum = 0;
  while (!order.empty()) {
    const Candidate c = order.next();
    sum += weight_of(c, best, temperature);
    if (sum >= wanted) return keep_up_to(candidates, c);
  }
}

// Those with at least min_p of the largest probability. min_p of 1 keeps the best one alone: at
// high temperatures all weights round to 1 and would all pass.
void keep_min_p(std::vector<Candidate>& candidates, float min_p, float best, double temperature) {
  if (min_p <= 0.0F) return;
  if (min_p >= 1.0F) {
    const Candidate first = *std::min_element(candidates.begin(), candidates.end(), comes_before);
    return keep_up_to(candidates, first);
  }
  std::erase_if(candidates, [&](const Candidate& c) {
    return weight_of(c, best, temperature) < static_cast<double>(min_p);
  });
}

std::int32_t draw(const std::vector<Candidate>& candidates, float best, double temperature,
                  float uniform) {
  const double wanted = static_cast<double>(uniform) * total_weight(candidates, best, temperature);
  FallingOrder order(candidates);
  double sum = 0;
  std::int32_t chosen = kNoToken;
  while (!order.empty()) {
    const Candidate c = order.next();
    const double weight = weight_of(c, best, temperature);
    if (weight > 0) chosen = c.id;
    sum += weight;
    if (sum > wanted) break;
  }
  // Where rounding keeps the sum at or below the wanted share, the last possible one is chosen.
  return chosen;
}

std::int32_t sample_row(std::span<const float> logits, const SampleParams& p,
                        std::uint64_t draw_index, std::span<const std::int32_t> history) {
  if (!std::isfinite(largest(logits))) return kNoToken;
  std::vector<Candidate> candidates = penalized_candidates(logits, p, history);
  const Candidate first = *std::min_element(candidates.begin(), candidates.end(), comes_before);
  if (p.temperature <= kGreedyTemperature) return first.id;
  const double temperature = p.temperature;
  const double filter_temperature = p.temperature_first ? temperature : 1.0;
  keep_top_k(candidates, p.top_k);
  keep_top_p(candidates, p.top_p, first.logit, filter_temperature);
  keep_min_p(candidates, p.min_p, first.logit, filter_temperature);
  return draw(candidates, first.logit, temperature, philox_uniform(p.seed, draw_index));
}

void check_row(const SampleArgs& a, std::int64_t row) {
  const SampleParams& p = a.params[row];
  FUT_CHECK(p.temperature >= 0, "sample: row {} has temperature {}", row, p.temperature);
  FUT_CHECK(p.top_p > 0 && p.top_p <= 1, "sample: row {} has top_p {}", row, p.top_p);
  FUT_CHECK(p.min_p >= 0 && p.min_p <= 1, "sample: row {} has min_p {}", row, p.min_p);
  FUT_CHECK(p.repetition_penalty > 0 && std::isfinite(p.repetition_penalty),
            "sample: row {} has repetition_penalty {}", row, p.repetition_penalty);
  FUT_CHECK(std::isfinite(p.presence_penalty) && std::isfinite(p.frequency_penalty),
            "sample: row {} has presence_penalty {}, frequency_penalty {}", row, p.presence_penalty,
            p.frequency_penalty);
  for (std::int32_t i = a.history_begins[row]; i < a.history_ends[row]; ++i) {
    FUT_CHECK(a.history[i] >= 0 && a.history[i] < a.logits.cols,
              "sample: history[{}] is {}, the vocabulary has {} ids", i, a.history[i],
              a.logits.cols);
  }
}

}  // namespace

void sample(Workers& workers, const SampleArgs& a) {
  check(a);
  for (std::int64_t row = 0; row < a.logits.rows; ++row) check_row(a, row);
  // A logit costs an exponential or two, some ten multiply-adds.
  workers.pool.parallel_for(
      a.logits.rows, 10 * a.logits.cols, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t row = begin; row < end; ++row) {
          const std::span logits(a.logits.row(row), static_cast<std::size_t>(a.logits.cols));
          const std::span history(a.history + a.history_begins[row],
                                  a.history + a.history_ends[row]);
          a.next_ids[row] = sample_row(logits, a.params[row], a.draw_index[row], history);
        }
      });
}

}  // namespace fut::cpu
