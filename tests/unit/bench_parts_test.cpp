// What fut bench reckons with: statistics, histograms, lists of numbers, drawings.
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <random>

#include "apps/bench/histogram.h"
#include "apps/bench/int_list.h"
#include "apps/bench/latency_plot.h"
#include "apps/bench/statistics.h"
#include "apps/svg.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

using Values = std::vector<double>;

Values normal(std::size_t count, double mean, double deviation, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> distribution(mean, deviation);
  Values values;
  for (std::size_t i = 0; i < count; ++i) values.push_back(distribution(random));
  return values;
}

TEST(Statistics, SummariesAreThoseOfATextbook) {
  const Values values = {4, 1, 3, 2, 5};
  const Summary s = summarise(values);
  EXPECT_EQ(s.count, 5U);
  EXPECT_DOUBLE_EQ(s.mean, 3);
  EXPECT_DOUBLE_EQ(s.median, 3);
  EXPECT_DOUBLE_EQ(s.least, 1);
  EXPECT_DOUBLE_EQ(s.most, 5);
  EXPECT_DOUBLE_EQ(s.p90, 4.6);
  EXPECT_NEAR(s.half_width, 2.776 * std::sqrt(2.5 / 5), 0.01);
  EXPECT_EQ(summarise(Values{}).count, 0U);
  EXPECT_EQ(summarise(Values{7}).half_width, 0);
}

TEST(Statistics, StudentsQuantilesAreThoseOfTables) {
  constexpr struct {
    double freedom, quantile;
  } kTable[] = {{1, 12.706}, {2, 4.303},  {3, 3.182},   {5, 2.571},
                {10, 2.228}, {30, 2.042}, {1000, 1.962}};
  for (const auto& [freedom, quantile] : kTable) {
    EXPECT_NEAR(student_95(freedom), quantile, quantile * 0.005) << freedom;
  }
}

TEST(Statistics, IntervalsHoldTheMeanAsOftenAsTheySay) {
  int held = 0;
  constexpr int kTimes = 2000;
  for (unsigned i = 0; i < kTimes; ++i) {
    const Summary s = summarise(normal(8, 10, 2, i));
    held += std::abs(s.mean - 10) <= s.half_width ? 1 : 0;
  }
  // 1900 are expected, with a deviation of 10.
  EXPECT_NEAR(held, 0.95 * kTimes, 40);
}

TEST(Statistics, WarmingUpEndsWhereTimesNoLongerFall) {
  Values falling;
  for (int i = 0; i < 20; ++i) falling.push_back(100.0 / (i + 1));
  EXPECT_FALSE(is_steady(falling));
  EXPECT_FALSE(is_steady(Values{1, 1, 1}));
  Values settled = falling;
  settled.insert(settled.end(), 10, 4.0);
  EXPECT_TRUE(is_steady(settled));
}

TEST(Statistics, WhatStandsOutIsFound) {
  Values values = normal(200, 5, 0.05, 3);
  EXPECT_TRUE(outliers(values).empty());
  values[17] = 9;
  values[120] = 6;
  EXPECT_EQ(outliers(values), (std::vector<std::size_t>{17, 120}));
  EXPECT_TRUE(outliers(Values(50, 2.0)).empty());
}

TEST(Statistics, ComparisonsSeeRealDifferencesAndNoOthers) {
  const Values before = normal(30, 10, 0.3, 1);
  EXPECT_EQ(compare_means(before, normal(30, 9, 0.3, 2)).verdict, Verdict::Faster);
  EXPECT_EQ(compare_means(before, normal(30, 11, 0.3, 2)).verdict, Verdict::Slower);
  EXPECT_NEAR(compare_means(before, normal(30, 11, 0.3, 2)).change, 0.1, 0.02);
  EXPECT_EQ(compare_means(before, Values{}).verdict, Verdict::TooFew);
  EXPECT_EQ(compare_means(Values{1}, Values{2}).verdict, Verdict::TooFew);
  EXPECT_EQ(compare_means(Values(9, 3.0), Values(9, 3.0)).verdict, Verdict::Same);
  int seen = 0;
  constexpr int kTimes = 1000;
  for (unsigned i = 0; i < kTimes; ++i) {
    const auto c = compare_means(normal(12, 10, 1, 2 * i), normal(12, 10, 1, 2 * i + 1));
    seen += c.verdict == Verdict::Same ? 0 : 1;
  }
  EXPECT_NEAR(seen, 0.05 * kTimes, 28);  // four deviations
}

TEST(Histogram, CountsEveryValueOnce) {
  const Values values = normal(1000, 5, 1, 4);
  std::size_t sum = 0;
  for (const HistogramBin& bin : histogram(values)) sum += bin.count;
  EXPECT_EQ(sum, 1000U);
  EXPECT_TRUE(histogram(Values{}).empty());
  EXPECT_EQ(histogram(Values(7, 2.0)).size(), 1U);
  const std::string text = histogram_text(histogram(values), "ms");
  EXPECT_EQ(std::ranges::count(text, '\n'), 12);
  EXPECT_NE(text.find(std::string(50, '#')), text.npos);
}

std::vector<int> list(const std::string& text) {
  return parse_int_list(Argument{text, "-p"}, 0, 1 << 20);
}

TEST(IntList, TakesNumbersListsAndRanges) {
  EXPECT_EQ(list("128"), (std::vector<int>{128}));
  EXPECT_EQ(list("16,32"), (std::vector<int>{16, 32}));
  EXPECT_EQ(list("0,8k,32k"), (std::vector<int>{0, 8192, 32768}));
  EXPECT_EQ(list("16-256*2"), (std::vector<int>{16, 32, 64, 128, 256}));
  EXPECT_EQ(list("16-64"), (std::vector<int>{16, 32, 64}));
  EXPECT_EQ(list("100-500+200,7"), (std::vector<int>{100, 300, 500, 7}));
}

TEST(IntList, RefusesTheRestByName) {
  for (const char* text : {"", ",", "1,", "x", "1k5", "-1", "5-1", "1-8*1", "1-8+0", "0-8*2",
                           "1-8*x", "2000k", "1-200+1", "1--2", "1e3", "99999999999k"}) {
    EXPECT_THROW((void)list(text), Error) << text;
  }
}

TEST(Pictures, ShowTheRooflineWithTheKernelsOnIt) {
  const Roofline roofline{4e12, 1.6e15, {{"attention", 2, 4e12}, {"gate_up_swiglu", 800, 8e14}}};
  const PlotSeries series{"one", {1, 2, 3}, histogram(Values{1, 2, 3})};
  const std::string plot = latency_plot({&series, 1}, &roofline);
  for (const char* part : {"roofline", "class=\"roof\"", "attention: 50.0 % of the roof",
                           "gate_up_swiglu: 50.0 % of the roof", "operations a byte", "1 P"}) {
    EXPECT_NE(plot.find(part), plot.npos) << part;
  }
  EXPECT_EQ(plot.find("nan"), plot.npos);
  EXPECT_EQ(plot.find("inf"), plot.npos);
  // The CPU has no second roof; nothing measured is said.
  const Roofline slope{1e10, 0, {{"lm_head", 2, 3e9}}};
  EXPECT_NE(latency_plot({}, &slope).find("lm_head: 15.0 % of the roof"), plot.npos);
  const Roofline empty;
  EXPECT_NE(latency_plot({}, &empty).find("nothing was measured"), plot.npos);
}

// "#abc" or "#aabbcc" as its relative luminance, as WCAG defines it.
double luminance(std::string color) {
  if (color.size() == 4) {
    color = {'#', color[1], color[1], color[2], color[2], color[3], color[3]};
  }
  double sum = 0;
  constexpr double kWeights[] = {0.2126, 0.7152, 0.0722};
  for (std::size_t i = 0; i < 3; ++i) {
    const double c = std::stoi(color.substr(1 + 2 * i, 2), nullptr, 16) / 255.0;
    sum += kWeights[i] * (c <= 0.04045 ? c / 12.92 : std::pow((c + 0.055) / 1.055, 2.4));
  }
  return sum;
}

// The colour that a rule of a style sheet gives to a selector.
std::string color_of(const std::string& style, const std::string& selector) {
  const std::size_t rule = style.find(selector + "{");
  if (rule == style.npos) return "none";
  const std::size_t hash = style.find('#', rule);
  return style.substr(hash, style.find_first_not_of("0123456789abcdef", hash + 1) - hash);
}

TEST(Pictures, AreReadableInLightAndDark) {
  const std::string text = Svg(10, 10, "x").finish();
  const std::size_t dark = text.find("@media(prefers-color-scheme:dark)");
  ASSERT_NE(dark, text.npos);
  // A picture brings its own ground: a page's may be of the other kind.
  EXPECT_NE(text.find("<rect width=\"10\" height=\"10\" class=\"ground\"/>"), text.npos);
  for (const std::string& style : {text.substr(0, dark), text.substr(dark)}) {
    const double ground = luminance(color_of(style, ".ground"));
    for (const char* what : {"text", ".axis", ".a", ".b", ".roof"}) {
      const double other = luminance(color_of(style, what));
      const double contrast = (std::max(ground, other) + 0.05) / (std::min(ground, other) + 0.05);
      // WCAG 2.1: 4.5 for text, 3 for graphical objects.
      EXPECT_GE(contrast, std::string(what) == "text" ? 4.5 : 3.0) << what << style;
    }
  }
}

TEST(Pictures, AreWholeAndEscaped) {
  Svg svg(10, 10, "a < b & \"c\"");
  svg.text(1, 1, "<script>");
  const std::string text = svg.finish();
  EXPECT_EQ(text.find("<script>"), text.npos);
  EXPECT_NE(text.find("a &lt; b &amp; &quot;c&quot;"), text.npos);
  EXPECT_NE(text.find("prefers-color-scheme:dark"), text.npos);
  EXPECT_TRUE(text.ends_with("</svg>\n"));
  EXPECT_EQ(round_up(0.0013), 0.002);
  EXPECT_EQ(round_up(7), 10);
  EXPECT_EQ(round_up(0), 1);
  const PlotSeries series{"one", {1, 2, 3}, histogram(Values{1, 2, 3})};
  const std::string plot = latency_plot({&series, 1});
  EXPECT_EQ(plot.find("nan"), plot.npos);
  EXPECT_NE(plot.find("<circle"), plot.npos);
  EXPECT_TRUE(latency_plot({}).ends_with("</svg>\n"));
}

}  // namespace
}  // namespace fut::app
