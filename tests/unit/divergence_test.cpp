// How far two rows of logits are apart, and two texts beside each other.
#include "apps/compare/divergence.h"

#include <cmath>
#include <gtest/gtest.h>

#include "apps/compare/columns.h"
#include "apps/wide_text.h"
#include "tests/support/expect_error.h"

namespace fut::app {
namespace {

using Row = std::vector<float>;

TEST(Divergence, IsZeroForRowsThatDifferByAConstant) {
  const Row a = {1, 2, 3, 4, 5, 6};
  Row b = a;
  for (float& v : b) v += 8;
  const Divergence d = divergence(a, b, 3);
  EXPECT_NEAR(d.kl, 0, 1e-12);
  EXPECT_NEAR(d.probability[0], d.probability[1], 1e-12);
  EXPECT_TRUE(d.gone.empty());
  EXPECT_TRUE(d.come.empty());
}

TEST(Divergence, IsThatOfTheDefinition) {
  // Odds of 1 to 3 against 1 to 1.
  const Row a = {0, std::log(3.0F)}, b = {0, 0};
  const Divergence d = divergence(a, b, 1);
  EXPECT_NEAR(d.kl, 0.25 * std::log(0.5) + 0.75 * std::log(1.5), 1e-6);
  EXPECT_NEAR(d.probability[0], 0.75, 1e-6);
  EXPECT_NEAR(d.probability[1], 0.5, 1e-12);
  EXPECT_EQ(d.best[0], 1);
  EXPECT_EQ(d.best[1], 0);  // a tie goes to the lower id
}

TEST(Divergence, NamesWhatLeftTheFiveBest) {
  const Row a = {9, 8, 7, 6, 5, 1, 0}, b = {9, 8, 7, 6, 0, 1, 5};
  const Divergence d = divergence(a, b, 0);
  EXPECT_EQ(d.gone, std::vector<std::int32_t>{4});
  EXPECT_EQ(d.come, std::vector<std::int32_t>{6});
}

TEST(Divergence, IsOfRowsOfOneSizeAndOfATokenInThem) {
  const Row a = {1, 2, 3}, b = {1, 2};
  for (const auto& [first, second, next] :
       {std::tuple(a, b, 0), std::tuple(b, a, 0), std::tuple(a, a, 3), std::tuple(a, a, -1)}) {
    (void)test::error_message(ErrorKind::Runtime, [&] { (void)divergence(first, second, next); });
  }
}

TEST(Columns, StandBesideEachOther) {
  EXPECT_EQ(side_by_side("a", "b", 3), "a   | b\n");
  EXPECT_EQ(side_by_side("one two three", "x", 8), "one two  | x\nthree    |\n");
  EXPECT_EQ(side_by_side("abcdefgh", "", 3), "abc |\ndef |\ngh  |\n");
  EXPECT_EQ(side_by_side("a\nb", "c", 2), "a  | c\nb  |\n");
  use_utf8_locale();
  EXPECT_EQ(side_by_side("\u65e5\u672c", "x", 5), "\u65e5\u672c  | x\n");
  EXPECT_EQ(side_by_side("\033[1m", "", 12), "\\x1B[1m      |\n");
}

}  // namespace
}  // namespace fut::app
