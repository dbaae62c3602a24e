// See the header.
#include "apps/compare/divergence.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/check.h"

namespace fut::app {
namespace {

constexpr std::ptrdiff_t kBest = 5;

// Log of the sum of exponentials.
double log_sum(std::span<const float> row) {
  const double most = *std::ranges::max_element(row);
  double sum = 0;
  for (const float v : row) sum += std::exp(static_cast<double>(v) - most);
  return most + std::log(sum);
}

std::vector<std::int32_t> best_of(std::span<const float> row) {
  std::vector<std::int32_t> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  const std::ptrdiff_t count = std::min(kBest, std::ssize(order));
  std::partial_sort(order.begin(), order.begin() + count, order.end(),
                    [&](std::int32_t a, std::int32_t b) {
                      const float va = row[static_cast<std::size_t>(a)];
                      const float vb = row[static_cast<std::size_t>(b)];
                      return va != vb ? va > vb : a < b;
                    });
  order.resize(static_cast<std::size_t>(count));
  return order;
}

std::vector<std::int32_t> without(const std::vector<std::int32_t>& from,
                                  const std::vector<std::int32_t>& those) {
  std::vector<std::int32_t> left;
  for (const std::int32_t id : from) {
    if (std::ranges::find(those, id) == those.end()) left.push_back(id);
  }
  return left;
}

}  // namespace

Divergence divergence(std::span<const float> first, std::span<const float> second,
                      std::int32_t next) {
  FUT_CHECK(first.size() == second.size(), "{} and {} logits", first.size(), second.size());
  const auto at = static_cast<std::size_t>(next);
  FUT_CHECK(at < first.size(), "token {} of {}", next, first.size());
  Divergence d;
  const double a = log_sum(first), b = log_sum(second);
  for (std::size_t i = 0; i < first.size(); ++i) {
    const double p = static_cast<double>(first[i]) - a;
    const double q = static_cast<double>(second[i]) - b;
    d.kl += std::exp(p) * (p - q);
  }
  d.kl = std::max(d.kl, 0.0);  // rounding
  d.probability[0] = std::exp(static_cast<double>(first[at]) - a);
  d.probability[1] = std::exp(static_cast<double>(second[at]) - b);
  const std::vector<std::int32_t> mine = best_of(first), others = best_of(second);
  d.best[0] = mine.front();
  d.best[1] = others.front();
  d.gone = without(mine, others);
  d.come = without(others, mine);
  return d;
}

}  // namespace fut::app
