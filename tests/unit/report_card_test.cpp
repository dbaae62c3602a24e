// The report card as text and back.
#include "loader/report_card.h"

#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <limits>

#include "tests/support/expect_error.h"

namespace fut::test {
namespace {

MatrixReport round_to_nearest_report(double relative_error) {
  MatrixReport report;
  report.name = "layers.0.o_proj";
  report.relative_error = relative_error;
  return report;
}

TEST(ReportCard, SurvivesTheFile) {
  ReportCard card;
  card.calibration_tokens = 2048;
  card.notices = {"the calibration text has 10 tokens", "\"quoted\""};
  card.matrices.push_back({"layers.0.qkv_proj", 0.1, 1.0 / 3, 0.5, "3 inputs are always zero"});
  card.matrices.push_back(round_to_nearest_report(0x1.23456789abcdep-7));
  const ReportCard back = parse_report_card(report_card_json(card));
  EXPECT_EQ(back.calibration_tokens, card.calibration_tokens);
  EXPECT_EQ(back.notices, card.notices);
  ASSERT_EQ(back.matrices.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(back.matrices[i].name, card.matrices[i].name);
    EXPECT_EQ(back.matrices[i].relative_error, card.matrices[i].relative_error);
    EXPECT_EQ(back.matrices[i].relative_loss, card.matrices[i].relative_loss);
    EXPECT_EQ(back.matrices[i].rtn_loss, card.matrices[i].rtn_loss);
    EXPECT_EQ(back.matrices[i].note, card.matrices[i].note);
  }
}

TEST(ReportCard, EqualCardsGiveEqualText) {
  ReportCard card;
  card.matrices.push_back(round_to_nearest_report(0.01));
  EXPECT_EQ(report_card_json(card), report_card_json(parse_report_card(report_card_json(card))));
}

TEST(ReportCard, KeepsTheFirstOfManyNoticesAndCountsTheRest) {
  ReportCard card;
  for (int i = 0; i < 10; ++i) card.notices.push_back(fmt::format("notice {}", i));
  EXPECT_EQ(parse_report_card(report_card_json(card)).notices, card.notices);
  card.notices.emplace_back("one too many");
  std::vector<std::string> expected(card.notices.begin(), card.notices.begin() + 9);
  expected.emplace_back("and 2 notices more");
  EXPECT_EQ(parse_report_card(report_card_json(card)).notices, expected);
}

TEST(ReportCard, CutsLongTextsBetweenCharacters) {
  ReportCard card;
  card.notices.emplace_back(200, 'a');
  card.matrices.push_back(round_to_nearest_report(0.01));
  for (int i = 0; i < 70; ++i) card.matrices.back().note += "\u20AC";  // 3 bytes each
  const ReportCard back = parse_report_card(report_card_json(card));
  EXPECT_EQ(back.notices, card.notices);
  EXPECT_EQ(back.matrices[0].note, card.matrices[0].note.substr(0, 195) + "...");
}

TEST(ReportCard, NumbersThatAreNotFiniteComeBackAsNan) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  ReportCard card;
  card.matrices.push_back({"layers.0.o_proj", kNan, kInfinity, kNan, ""});
  card.matrices.push_back({"layers.0.down_proj", 0.25, 0.5, 0.75, ""});
  const ReportCard back = parse_report_card(report_card_json(card));
  ASSERT_EQ(back.matrices.size(), 2U);
  EXPECT_TRUE(std::isnan(back.matrices[0].relative_error));
  EXPECT_TRUE(std::isnan(back.matrices[0].relative_loss));
  EXPECT_TRUE(std::isnan(back.matrices[0].rtn_loss));
  EXPECT_EQ(back.matrices[1].relative_error, 0.25);
  EXPECT_EQ(report_card_json(back), report_card_json(card));
}

TEST(ReportCard, OtherTextIsRefused) {
  for (const char* text : {"", "[]", "{}", "{\"matrices\": 1}",
                           R"({"calibration_tokens": 1, "matrices": [{}], "notices": []})",
                           R"({"calibration_tokens": 1, "matrices": [], "notices": [1]})",
                           R"({"calibration_tokens": 1.5, "matrices": [], "notices": []})",
                           R"({"calibration_tokens": 1, "matrices": [1], "notices": []})",
                           R"({"calibration_tokens": 1, "matrices": [{"name": "a"}],
                               "notices": []})",
                           R"({"calibration_tokens": 1, "notices": [],
                               "matrices": [{"name": "a", "relative_error": "b"}]})",
                           R"({"calibration_tokens": 1, "calibration_tokens": 2,
                               "matrices": [], "notices": []})"}) {
    SCOPED_TRACE(text);
    expect_mentions(error_message(ErrorKind::Data, [&] { (void)parse_report_card(text); }),
                    {"report card", "quantise the checkpoint again"});
  }
}

TEST(ReportCard, IsParsedWithinBounds) {
  const std::string text = R"({"calibration_tokens": 1, "matrices": [], "notices": )";
  const std::string deep = text + std::string(100, '[') + std::string(100, ']') + "}";
  expect_mentions(error_message(ErrorKind::Data, [&] { (void)parse_report_card(deep); }),
                  {"report card", "32 levels", "quantise the checkpoint again"});
}

}  // namespace
}  // namespace fut::test
