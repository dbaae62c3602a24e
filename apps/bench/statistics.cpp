// See the header.
#include "apps/bench/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace fut::app {
namespace {

// Of sorted values, between the two next ones.
double quantile(std::span<const double> sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  return quantile(values, 0.5);
}

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Of the mean: the sample's variance over its size.
double squared_error(std::span<const double> values, double mean) {
  double sum = 0;
  for (const double v : values) sum += (v - mean) * (v - mean);
  const auto n = static_cast<double>(values.size());
  return sum / (n - 1) / n;
}

}  // namespace

double student_95(double degrees_of_freedom) {
  // Hill's expansion around the normal quantile; within 0.2 % from three degrees on.
  if (degrees_of_freedom < 1.5) return 12.706;
  if (degrees_of_freedom < 2.5) return 4.303;
  constexpr double z = 1.959964;
  const double v = degrees_of_freedom;
  const double z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z, z9 = z7 * z * z;
  return z + (z3 + z) / (4 * v) + (5 * z5 + 16 * z3 + 3 * z) / (96 * v * v) +
         (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * v * v * v) +
         (79 * z9 + 776 * z7 + 1482 * z5 - 1920 * z3 - 945 * z) / (92160 * v * v * v * v);
}

Summary summarise(std::span<const double> values) {
  Summary s;
  s.count = values.size();
  if (values.empty()) return s;
  std::vector<double> sorted(values.begin(), values.end());
  std::ranges::sort(sorted);
  s.mean = mean_of(values);
  if (s.count > 1) {
    s.half_width =
        student_95(static_cast<double>(s.count - 1)) * std::sqrt(squared_error(values, s.mean));
  }
  s.least = sorted.front();
  s.median = quantile(sorted, 0.5);
  s.p90 = quantile(sorted, 0.9);
  s.p99 = quantile(sorted, 0.99);
  s.most = sorted.back();
  return s;
}

bool is_steady(std::span<const double> values) {
  constexpr double kNear = 0.02;
  if (values.size() < 2 * kSteadyWindow) return false;
  const auto last = values.last(kSteadyWindow);
  const auto before = values.last(2 * kSteadyWindow).first(kSteadyWindow);
  const double a = median_of({before.begin(), before.end()});
  const double b = median_of({last.begin(), last.end()});
  return std::abs(a - b) <= kNear * std::max(a, b);
}

std::vector<std::size_t> outliers(std::span<const double> values) {
  constexpr double kFar = 6;
  constexpr double kLeastShare = 0.05;
  std::vector<std::size_t> found;
  if (values.size() < 3) return found;
  const double median = median_of({values.begin(), values.end()});
  std::vector<double> distances;
  for (const double v : values) distances.push_back(std::abs(v - median));
  const double limit = median + std::max(kFar * median_of(distances), kLeastShare * median);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] > limit) found.push_back(i);
  }
  return found;
}

Comparison compare_means(std::span<const double> before, std::span<const double> after) {
  Comparison c;
  if (before.empty() || after.empty()) return c;
  const double a = mean_of(before), b = mean_of(after);
  c.change = a > 0 ? (b - a) / a : 0;
  if (before.size() < 2 || after.size() < 2 || a <= 0) return c;
  const double ea = squared_error(before, a), eb = squared_error(after, b);
  const double sum = ea + eb;
  const double freedom = sum > 0 ? sum * sum /
                                       (ea * ea / static_cast<double>(before.size() - 1) +
                                        eb * eb / static_cast<double>(after.size() - 1))
                                 : static_cast<double>(before.size() + after.size() - 2);
  c.half_width = student_95(freedom) * std::sqrt(sum) / a;
  c.verdict = std::abs(c.change) <= c.half_width ? Verdict::Same
              : c.change < 0                     ? Verdict::Faster
                                                 : Verdict::Slower;
  return c;
}

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::Same:
      return "no difference seen";
    case Verdict::Faster:
      return "faster";
    case Verdict::Slower:
      return "slower";
    case Verdict::TooFew:
      break;
  }
  return "too few values";
}

}  // namespace fut::app
