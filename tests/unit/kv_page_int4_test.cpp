// Where codes and parameters of the INT4 cache lie, the rows kept raw, and which keys a query reads
// raw. What the real instruction makes of a page is asked by tests/kernel/fragment_probe_test.cu.
#include "kernels/layout/kv_page_int4.h"

#include <algorithm>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/support/test_data.h"

namespace fut {
namespace {

using layout::Int4FragmentSlot;
using layout::Int4Slot;
using layout::is_raw;
using layout::KvInt4Coord;
using layout::KvPageInt4;
using layout::KvPart;
using layout::KvRawStore;

constexpr KvPart kParts[] = {KvPart::Key, KvPart::Value};

// Every document that shows the picture of a page; each is held to it.
constexpr const char* kDocuments[] = {"kernels/layout/kv_page_int4.h", "kernels/README.md"};

TEST(KvInt4Picture, AHeadHasTheOffsetsDrawn) {
  // The picture of one page takes two lines, with a comment mark between them or not.
  const std::regex picture(
      R"(INT4 page, head_dim (\d+), kv group (\d+): keys 0 \.\. (\d+), values (\d+) \.\. (\d+),[\s/]+)"
      R"(key parameters (\d+) \.\. (\d+), value parameters (\d+) \.\. (\d+), (\d+) bytes a head)");
  for (const char* document : kDocuments) {
    std::ifstream file(test::source_path(document));
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    int pictures = 0;
    for (std::sregex_iterator it(text.begin(), text.end(), picture), end; it != end; ++it) {
      const auto number = [&](int index) { return std::stoi((*it)[index]); };
      const KvPageInt4 page{1, number(1), number(2)};
      const int last_group = page.num_groups() - 1;
      EXPECT_EQ(page.block_offset(KvPart::Key, 0, 0), 0);
      EXPECT_EQ(page.block_offset(KvPart::Key, 0, 3) + page.block_bytes() - 1, number(3));
      EXPECT_EQ(page.block_offset(KvPart::Value, 0, 0), number(4));
      EXPECT_EQ(page.block_offset(KvPart::Value, 0, 3) + page.block_bytes() - 1, number(5));
      EXPECT_EQ(page.params_offset(KvPart::Key, 0, 0, 0), number(6));
      EXPECT_EQ(page.params_offset(KvPart::Key, 0, 63, last_group) + 3, number(7));
      EXPECT_EQ(page.params_offset(KvPart::Value, 0, 0, 0), number(8));
      EXPECT_EQ(page.params_offset(KvPart::Value, 0, 63, last_group) + 3, number(9));
      EXPECT_EQ(page.bytes(), number(10));
      ++pictures;
    }
    EXPECT_EQ(pictures, 2) << "pictures of a page in " << document;
  }
}

// ---- the page ----------------------------------------------------------------------------------

struct Shape {
  int num_kv_heads, head_dim, kv_group;
};

class KvInt4Page : public testing::TestWithParam<Shape> {
 protected:
  // All heads x 64 tokens x all dims of both parts.
  template <class Visit>
  void for_each_number(Visit visit) const {
    for (const KvPart part : kParts) {
      for (int head = 0; head < page_.num_kv_heads; ++head) {
        for (int token = 0; token < layout::kPageTokens; ++token) {
          for (int dim = 0; dim < page_.head_dim; ++dim) visit(part, head, token, dim);
        }
      }
    }
  }

  KvPageInt4 page_{GetParam().num_kv_heads, GetParam().head_dim, GetParam().kv_group};
};

TEST_P(KvInt4Page, CodesAndParametersFillThePageOnceAndLeadBack) {
  std::vector<int> taken(page_.bytes(), 0);  // 1: low half of the byte, 2: high half
  for_each_number([&](KvPart part, int head, int token, int dim) {
    const Int4Slot slot = page_.slot(part, head, token, dim);
    EXPECT_EQ(slot.word % 4, 0);
    EXPECT_EQ(page_.coord(slot.word, slot.nibble), (KvInt4Coord{part, head, token, dim}));
    taken.at(slot.word + slot.nibble / 2) += slot.nibble % 2 == 0 ? 1 : 2;
    if (dim % page_.kv_group != 0) return;
    for (int byte = 0; byte < KvPageInt4::kParamBytes; ++byte) {
      taken.at(page_.params_offset(part, head, token, dim / page_.kv_group) + byte) += 3;
    }
  });
  EXPECT_EQ(std::count(taken.begin(), taken.end(), 3), page_.bytes());
}

TEST_P(KvInt4Page, KeysAreTilesOfTokensByDimsAndValuesOfDimsByTokens) {
  for_each_number([&](KvPart part, int head, int token, int dim) {
    const int row = part == KvPart::Key ? token : dim;
    const int col = part == KvPart::Key ? dim : token;
    const Int4FragmentSlot fragment = layout::int4_fragment_slot(row % 16, col % 16);
    const std::int64_t load =
        page_.block_offset(part, head, token / 16) + dim / 64 * 512 + fragment.lane * 16;
    EXPECT_EQ(page_.slot(part, head, token, dim),
              (Int4Slot{load + dim % 64 / 16 * 4, fragment.nibble}));
  });
}

TEST_P(KvInt4Page, EverythingALaneLoadsIsAligned) {
  EXPECT_EQ(page_.head_bytes() % 16, 0);
  for (const KvPart part : kParts) {
    for (int head = 0; head < page_.num_kv_heads; ++head) {
      for (int block = 0; block < 4; ++block) {
        EXPECT_EQ(page_.block_offset(part, head, block) % 16, 0);
      }
      EXPECT_EQ(page_.params_offset(part, head, 0, 0) % 16, 0);
      const int bytes_of_a_token = page_.num_groups() * KvPageInt4::kParamBytes;
      EXPECT_EQ(page_.params_offset(part, head, 1, 0) % bytes_of_a_token, 0);
    }
  }
}

TEST_P(KvInt4Page, ItsSizeIsHalfAByteANumberAndFourBytesAGroup) {
  const int numbers = 2 * page_.num_kv_heads * 64 * page_.head_dim;
  EXPECT_EQ(page_.bytes(), numbers / 2 + numbers / page_.kv_group * 4);
}

INSTANTIATE_TEST_SUITE_P(Shapes, KvInt4Page,
                         testing::Values(Shape{1, 64, 64}, Shape{2, 64, 32}, Shape{3, 128, 128},
                                         Shape{2, 128, 64}, Shape{2, 128, 32}),
                         [](const auto& instance) {
                           return "heads" + std::to_string(instance.param.num_kv_heads) + "x" +
                                  std::to_string(instance.param.head_dim) + "g" +
                                  std::to_string(instance.param.kv_group);
                         });

TEST(KvInt4Size, SupportedShapes) {
  for (const int head_dim : {64, 128}) {
    for (const int group : {32, 64, head_dim}) EXPECT_TRUE(KvPageInt4::supported(head_dim, group));
  }
  EXPECT_FALSE(KvPageInt4::supported(64, 128));
  EXPECT_FALSE(KvPageInt4::supported(96, 32));
  EXPECT_FALSE(KvPageInt4::supported(256, 64));
  EXPECT_FALSE(KvPageInt4::supported(128, 16));
}

// 32 layers of 8 KV heads of 128: 34,816 bytes a token, where BF16 takes 131,072.
TEST(KvInt4Size, ATokenOfLlama8B) {
  constexpr KvPageInt4 kPage{8, 128, 128};
  EXPECT_EQ(32 * kPage.bytes() / layout::kPageTokens, 34816);
}

// ---- raw rows ----------------------------------------------------------------------------------

TEST(KvRaw, TheFirst16KeysAndTheQuerysOwnBlockAreRaw) {
  for (std::int64_t query = 0; query < 200; ++query) {
    for (std::int64_t key = 0; key <= query; ++key) {
      const bool same_block = key / 16 == query / 16;
      EXPECT_EQ(is_raw(key, query), key < 16 || same_block) << "key " << key << " query " << query;
    }
  }
  EXPECT_TRUE(is_raw(131071, 131071));
  EXPECT_TRUE(is_raw(131056, 131071));
  EXPECT_FALSE(is_raw(131055, 131071));
}

TEST(KvRaw, AKeyOnceReadAsCodesStaysSo) {
  for (std::int64_t key = 0; key < 100; ++key) {
    bool coded = false;
    for (std::int64_t query = key; query < 200; ++query) {
      EXPECT_FALSE(coded && is_raw(key, query));
      coded = coded || !is_raw(key, query);
    }
  }
}

TEST(KvRaw, TheKeysThatAQueryReadsRawHaveRowsOfTheirOwn) {
  const KvRawStore store{2, 64};
  for (std::int64_t query = 0; query < 100; ++query) {
    std::set<std::int64_t> rows;
    std::size_t expected = 0;
    for (const KvPart part : kParts) {
      for (int head = 0; head < store.num_kv_heads; ++head) {
        for (std::int64_t key = 0; key <= query; ++key) {
          if (!is_raw(key, query)) continue;
          const std::int64_t offset = store.offset(part, head, key);
          EXPECT_EQ(offset % store.head_dim, 0);
          EXPECT_LE(offset + store.head_dim, store.elements());
          rows.insert(offset);
          ++expected;
        }
      }
    }
    EXPECT_EQ(rows.size(), expected) << "query " << query;
  }
}

TEST(KvRaw, RowsLieByHeadThenPartThenRegion) {
  const KvRawStore store{3, 128};
  for (int head = 0; head < 3; ++head) {
    for (const KvPart part : kParts) {
      const std::int64_t part_index = 2 * head + static_cast<int>(part);
      for (int slot = 0; slot < 16; ++slot) {
        EXPECT_EQ(store.offset(part, head, slot), ((part_index * 2 + 0) * 16 + slot) * 128);
        EXPECT_EQ(store.offset(part, head, 160 + slot), ((part_index * 2 + 1) * 16 + slot) * 128);
      }
    }
  }
  EXPECT_EQ(store.elements(), 3 * 2 * 2 * 16 * 128);
}

}  // namespace
}  // namespace fut
