// The report card as text and back.
#include "loader/report_card.h"

#include <gtest/gtest.h>

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

TEST(ReportCard, OtherTextIsRefused) {
  for (const char* text : {"", "[]", "{}", "{\"matrices\": 1}",
                           R"({"calibration_tokens": 1, "matrices": [{}], "notices": []})",
                           R"({"calibration_tokens": 1, "matrices": [], "notices": [1]})"}) {
    SCOPED_TRACE(text);
    expect_mentions(error_message(ErrorKind::Data, [&] { (void)parse_report_card(text); }),
                    {"report card", "quantise the checkpoint again"});
  }
}

}  // namespace
}  // namespace fut::test
