// Numbers about repeated measurements. Pure arithmetic; knows no clock. A percentile, the median among
// them, lies between the two values next to it in proportion to its distance from each.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

namespace fut::app {

struct Summary {
  std::size_t count = 0;
  double mean = 0;
  double half_width = 0;  // of the mean's 95 % interval; 0 for fewer than two values
  double least = 0, median = 0, p90 = 0, p99 = 0, most = 0;
  // The interval's half as a share of the mean.
  [[nodiscard]] double spread() const { return mean > 0 ? half_width / mean : 0; }
};
[[nodiscard]] Summary summarise(std::span<const double> values);

// Of the 95 % two-sided quantile of Student's distribution.
[[nodiscard]] double student_95(double degrees_of_freedom);

// Whether the last values are as the ones before: medians of the last two windows within 2 %.
inline constexpr std::size_t kSteadyWindow = 5;
[[nodiscard]] bool is_steady(std::span<const double> values);

// Positions of values that no spread of the others explains: above the median by more than six times
// the median distance from it, and by more than a twentieth.
[[nodiscard]] std::vector<std::size_t> outliers(std::span<const double> values);

// Welch's test of two means.
enum class Verdict { Same, Faster, Slower, TooFew };
struct Comparison {
  double change = 0;      // (new - old) / old
  double half_width = 0;  // of the change's 95 % interval
  Verdict verdict = Verdict::TooFew;
};
// `values` are times: less is faster.
[[nodiscard]] Comparison compare_means(std::span<const double> before,
                                       std::span<const double> after);
[[nodiscard]] std::string_view verdict_name(Verdict verdict);

}  // namespace fut::app
