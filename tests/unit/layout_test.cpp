// The KV page layout: every element has one place, and the picture in kernels/README.md shows it.
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/layout/kv_page.h"
#include "tests/support/test_data.h"

namespace fut::test {
namespace {

using layout::kPageTokens;
using layout::KvPageDense;

TEST(KvPage, GivesEveryElementOnePlaceAndLeavesNoHole) {
  for (const KvPageDense page :
       {KvPageDense{1, 2}, KvPageDense{2, 16}, KvPageDense{8, 128}, KvPageDense{3, 6}}) {
    std::vector<int> uses(static_cast<std::size_t>(page.elements()));
    for (int head = 0; head < page.num_kv_heads; ++head) {
      for (int slot = 0; slot < kPageTokens; ++slot) {
        for (int d = 0; d < page.head_dim; ++d) {
          ++uses.at(static_cast<std::size_t>(page.k_offset(head, slot) + d));
          ++uses.at(static_cast<std::size_t>(page.v_offset(head, slot) + d));
        }
      }
    }
    for (std::size_t i = 0; i < uses.size(); ++i) {
      ASSERT_EQ(uses[i], 1) << "element " << i << " of a page of " << page.num_kv_heads
                            << " heads of " << page.head_dim;
    }
  }
}

TEST(KvPage, NeedsNoMorePagesThanTokensAskFor) {
  EXPECT_EQ(layout::pages_for_tokens(0), 0);
  EXPECT_EQ(layout::pages_for_tokens(1), 1);
  EXPECT_EQ(layout::pages_for_tokens(63), 1);
  EXPECT_EQ(layout::pages_for_tokens(64), 1);
  EXPECT_EQ(layout::pages_for_tokens(65), 2);
  EXPECT_EQ(layout::pages_for_tokens(131072), 2048);
}

// The rows of the table that follows `heading` in a Markdown file, each cut at its bars.
std::vector<std::vector<std::string>> table_after(const std::string& heading) {
  std::ifstream file(source_path("kernels/README.md"));
  std::vector<std::vector<std::string>> rows;
  bool found = false;
  for (std::string line; std::getline(file, line);) {
    if (!found) {
      found = line.find(heading) != std::string::npos;
      continue;
    }
    if (line.empty() || line[0] != '|') {
      if (rows.empty()) continue;
      break;
    }
    std::istringstream cells(line.substr(1));
    rows.emplace_back();
    for (std::string cell; std::getline(cells, cell, '|');) rows.back().push_back(cell);
  }
  return rows;
}

// The page of the picture: two heads of four values.
TEST(KvPage, IsDrawnInTheReadmeAsItIs) {
  constexpr KvPageDense kDrawn = {2, 4};
  const auto rows = table_after("KvPageDense{num_kv_heads 2, head_dim 4}");
  ASSERT_GE(rows.size(), 3U) << "the table of kernels/README.md was not found";
  std::size_t num_checked = 0;
  for (std::size_t i = 2; i < rows.size(); ++i) {  // after the heading and the line under it
    ASSERT_EQ(rows[i].size(), 5U);
    const std::string kind = rows[i][0];
    const int head = std::stoi(rows[i][1]);
    const int slot = std::stoi(rows[i][2]);
    const std::int64_t first = kind.find('K') != std::string::npos ? kDrawn.k_offset(head, slot)
                                                                   : kDrawn.v_offset(head, slot);
    EXPECT_EQ(std::stoll(rows[i][3]), first) << kind << " head " << head << " slot " << slot;
    EXPECT_EQ(std::stoll(rows[i][4]), first + kDrawn.head_dim - 1);
    ++num_checked;
  }
  EXPECT_GE(num_checked, 8U);
}

}  // namespace
}  // namespace fut::test
