// Special tokens and BOS: what is found in a text and what is not, and that there is one BOS.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/toy_tokenizers.h"
#include "tokenizer/tokenizer.h"

namespace fut {
namespace {

using test::TempFolder;
using Ids = std::vector<TokenId>;

constexpr int kSize = 300;

// A byte-level toy as it is, or changed before it is loaded.
class SpecialTokens : public testing::Test {
 protected:
  Tokenizer load() {
    test::write_file(folder_ / "tokenizer.json", file_.dump());
    test::write_file(folder_ / "tokenizer_config.json", config_.dump());
    return Tokenizer::load(folder_.path());
  }
  std::string load_error() {
    return test::error_message(ErrorKind::Data, [this] { load(); });
  }
  [[nodiscard]] TokenId id(std::string_view token) const { return vocabulary_.id(token); }

  // Adds a word with flags to the added tokens; its id is the next free one.
  TokenId add_word(const std::string& text, nlohmann::json flags) {
    const TokenId next = kSize + added_words_++;
    flags["id"] = next;
    flags["content"] = text;
    file_["added_tokens"].push_back(flags);
    return next;
  }

  TempFolder folder_;
  test::ToyVocabulary vocabulary_ = test::merged_vocabulary(kSize);
  nlohmann::json file_ = test::tokenizer_json(vocabulary_);
  nlohmann::json config_ = test::tokenizer_config_json(vocabulary_, false);
  int added_words_ = 0;
};

TEST_F(SpecialTokens, SpeltOutInATextTheyBecomeTheirIds) {
  const Tokenizer tokenizer = load();
  EXPECT_EQ(tokenizer.encode("x<|eot_id|>y", {.add_bos = false}),
            (Ids{'x', id("<|eot_id|>"), 'y'}));
  EXPECT_EQ(tokenizer.encode("<|eot_id|><|eot_id|>", {.add_bos = false}),
            (Ids{id("<|eot_id|>"), id("<|eot_id|>")}));
}

TEST_F(SpecialTokens, ArePlainTextWhereTheCallerSaysSo) {
  const Tokenizer tokenizer = load();
  const std::string text = "x<|eot_id|>y<|begin_of_text|>";
  const Ids ids = tokenizer.encode(text, {.add_bos = false, .parse_special = false});
  for (const TokenId token : ids) EXPECT_FALSE(tokenizer.is_special(token)) << token;
  EXPECT_EQ(tokenizer.decode(ids), text);
}

TEST_F(SpecialTokens, AlmostOneIsPlainText) {
  const Tokenizer tokenizer = load();
  for (const char* text : {"<|eot_id|", "|eot_id|>", "<|EOT_ID|>", "<| eot_id|>", "<|<|"}) {
    const Ids ids = tokenizer.encode(text, {.add_bos = false});
    for (const TokenId token : ids) EXPECT_FALSE(tokenizer.is_special(token)) << text;
    EXPECT_EQ(tokenizer.decode(ids), text);
  }
}

TEST_F(SpecialTokens, AreLeftOutOfDecodedTextUnlessAskedFor) {
  const Tokenizer tokenizer = load();
  const Ids ids = {id("<|begin_of_text|>"), 'h', 'i', id("<|eot_id|>")};
  EXPECT_EQ(tokenizer.decode(ids), "hi");
  EXPECT_EQ(tokenizer.decode(ids, true), "<|begin_of_text|>hi<|eot_id|>");
  EXPECT_EQ(tokenizer.piece(id("<|eot_id|>")), "<|eot_id|>");
}

TEST_F(SpecialTokens, AnIdOutsideTheVocabularyIsRefused) {
  const Tokenizer tokenizer = load();
  EXPECT_EQ(tokenizer.vocab_size(), kSize);
  for (const TokenId bad : {-1, kSize, 1 << 30}) {
    EXPECT_FALSE(tokenizer.is_special(bad));
    const std::string message =
        test::error_message(ErrorKind::Data, [&] { static_cast<void>(tokenizer.piece(bad)); });
    test::expect_mentions(message, {std::to_string(bad), std::to_string(kSize)});
  }
}

TEST_F(SpecialTokens, AreFoundByTheirExactSpelling) {
  const Tokenizer tokenizer = load();
  EXPECT_EQ(tokenizer.find("<|eot_id|>"), id("<|eot_id|>"));
  EXPECT_EQ(tokenizer.find("z"), 'z');
  EXPECT_EQ(tokenizer.find("<|eot_id"), std::nullopt);
  EXPECT_EQ(tokenizer.find(""), std::nullopt);
}

TEST_F(SpecialTokens, AnAddedWordIsFoundEvenInPlainText) {
  const TokenId word = add_word("qux", {{"special", false}});
  const Tokenizer tokenizer = load();
  EXPECT_EQ(tokenizer.encode("a quxx", {.add_bos = false, .parse_special = false}),
            (Ids{'a', ' ', word, 'x'}));
  EXPECT_FALSE(tokenizer.is_special(word));
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{'a', word}), "aqux");
}

TEST_F(SpecialTokens, MaySwallowTheBlanksBesideThem) {
  const TokenId left = add_word("<L>", {{"special", true}, {"lstrip", true}});
  const TokenId right = add_word("<R>", {{"special", true}, {"rstrip", true}});
  const Tokenizer tokenizer = load();
  EXPECT_EQ(tokenizer.encode("a \n<L>  <R> c", {.add_bos = false}),
            (Ids{'a', left, ' ', ' ', right, 'c'}));
}

TEST_F(SpecialTokens, OneThatNeedsWordBordersIsRefusedByName) {
  add_word("<W>", {{"special", true}, {"single_word", true}});
  test::expect_mentions(load_error(), {"<W>", "single_word", "tokenizer.json"});
}

using Bos = SpecialTokens;

TEST_F(Bos, IsPutInFrontOfATextWhereThePostProcessorSaysSo) {
  const Tokenizer tokenizer = load();
  EXPECT_TRUE(tokenizer.adds_bos());
  EXPECT_EQ(tokenizer.bos_id(), id("<|begin_of_text|>"));
  EXPECT_EQ(tokenizer.encode("z", {}), (Ids{id("<|begin_of_text|>"), 'z'}));
  EXPECT_EQ(tokenizer.encode("", {}), (Ids{id("<|begin_of_text|>")}));
  EXPECT_EQ(tokenizer.encode("z", {.add_bos = false}), (Ids{'z'}));
}

TEST_F(Bos, TypedAtTheStartItIsTheOnlyOne) {
  const Tokenizer tokenizer = load();
  const TokenId bos = id("<|begin_of_text|>");
  EXPECT_EQ(tokenizer.encode("<|begin_of_text|>z", {}), (Ids{bos, 'z'}));
  EXPECT_EQ(tokenizer.encode("<|begin_of_text|>z", {.add_bos = false}), (Ids{bos, 'z'}));
  EXPECT_EQ(tokenizer.encode("<|begin_of_text|>", {}), (Ids{bos}));
  // What the user typed twice stays twice; what stands further on is no first token.
  EXPECT_EQ(tokenizer.encode("<|begin_of_text|><|begin_of_text|>", {}), (Ids{bos, bos}));
  EXPECT_EQ(tokenizer.encode("z<|begin_of_text|>", {}), (Ids{bos, 'z', bos}));
}

TEST_F(Bos, TypedAsPlainTextItDoesNotCount) {
  const Tokenizer tokenizer = load();
  const Ids ids = tokenizer.encode("<|begin_of_text|>", {.parse_special = false});
  EXPECT_EQ(ids.front(), id("<|begin_of_text|>"));
  EXPECT_EQ(tokenizer.decode(ids), "<|begin_of_text|>");
}

TEST_F(Bos, TheConfigurationDecidesOverThePostProcessor) {
  config_["add_bos_token"] = false;
  EXPECT_EQ(load().encode("z", {}), (Ids{'z'}));
  EXPECT_FALSE(load().adds_bos());
  config_["add_bos_token"] = true;
  file_["post_processor"] = nullptr;
  EXPECT_EQ(load().encode("z", {}), (Ids{id("<|begin_of_text|>"), 'z'}));
  config_["add_bos_token"] = nullptr;
  EXPECT_EQ(load().encode("z", {}), (Ids{'z'}));
}

TEST_F(Bos, TheTokenMayBeGivenAsAnObject) {
  config_["add_bos_token"] = true;
  config_["bos_token"] = {{"content", "<|eom_id|>"}, {"lstrip", false}};
  EXPECT_EQ(load().bos_id(), id("<|eom_id|>"));
}

TEST_F(Bos, AskedForButUnknownIsAnErrorThatNamesTheToken) {
  config_["add_bos_token"] = true;
  config_["bos_token"] = "<no such token>";
  file_["post_processor"] = nullptr;
  test::expect_mentions(load_error(), {"<no such token>", "tokenizer_config.json"});
}

TEST_F(Bos, APostProcessorOfAnIdThatNoTokenHasIsRefused) {
  auto& bos = file_["post_processor"]["processors"][1]["special_tokens"]["<|begin_of_text|>"];
  bos["ids"] = {kSize + 7};
  test::expect_mentions(load_error(), {"post_processor", std::to_string(kSize + 7)});
  bos["ids"] = {1, 2};
  test::expect_mentions(load_error(), {"post_processor", "<|begin_of_text|>"});
  bos["ids"] = {-1};
  test::expect_mentions(load_error(), {"post_processor", "-1"});
}

using EndToken = SpecialTokens;

TEST_F(EndToken, ComesFromTheConfiguration) {
  EXPECT_EQ(load().eos_id(), id("<|eot_id|>"));
  config_["eos_token"] = "<|end_of_text|>";
  EXPECT_EQ(load().eos_id(), id("<|end_of_text|>"));
}

TEST_F(EndToken, ComesFromTheMapOfSpecialTokensWhereTheConfigurationIsSilent) {
  config_.erase("eos_token");
  EXPECT_EQ(load().eos_id(), std::nullopt);
  test::write_file(folder_ / "special_tokens_map.json",
                   R"({"eos_token": {"content": "<|eom_id|>"}})");
  EXPECT_EQ(load().eos_id(), id("<|eom_id|>"));
  config_["eos_token"] = "<|eot_id|>";
  EXPECT_EQ(load().eos_id(), id("<|eot_id|>"));
}

}  // namespace
}  // namespace fut
