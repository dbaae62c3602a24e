// Which file of a folder is read, and what a damaged, foreign or contradictory one gets: an error
// of one line that names the file and the place, never a crash.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/toy_tokenizers.h"
#include "tokenizer/tokenizer.h"

namespace fut {
namespace {

using nlohmann::json;
using test::TempFolder;

constexpr int kSize = 300;

std::string load_error(const TempFolder& folder) {
  return test::error_message(ErrorKind::Data, [&] { Tokenizer::load(folder.path()); });
}

// The message for a tokenizer.json with this content.
std::string json_error(std::string_view content) {
  const TempFolder folder;
  test::write_file(folder / "tokenizer.json", content);
  return load_error(folder);
}

std::string model_error(std::string_view content) {
  const TempFolder folder;
  test::write_file(folder / "tokenizer.model", content);
  return load_error(folder);
}

json toy_json() {
  return test::tokenizer_json(test::merged_vocabulary(kSize));
}

TEST(TokenizerFiles, TheKindIsToldByContentNotByName) {
  const test::ToyVocabulary vocabulary = test::merged_vocabulary(kSize);
  const TempFolder folder;
  test::write_file(folder / "tokenizer.model", test::rank_table(vocabulary));
  EXPECT_EQ(Tokenizer::load(folder.path()).kind(), "byte-level BPE (rank table)");
  test::write_file(folder / "tokenizer.model", test::sentencepiece_model(400));
  EXPECT_EQ(Tokenizer::load(folder.path()).kind(), "SentencePiece (tokenizer.model)");
  test::write_file(folder / "tokenizer.model", toy_json().dump());
  EXPECT_EQ(Tokenizer::load(folder.path()).kind(), "byte-level BPE (tokenizer.json)");
}

TEST(TokenizerFiles, TokenizerJsonWinsOverTokenizerModel) {
  const TempFolder folder;
  test::write_file(folder / "tokenizer.json", toy_json().dump());
  test::write_file(folder / "tokenizer.model", "damaged");
  EXPECT_EQ(Tokenizer::load(folder.path()).source(), folder / "tokenizer.json");
}

TEST(TokenizerFiles, AFolderWithNeitherIsToldBothNames) {
  const TempFolder folder;
  test::expect_mentions(load_error(folder), {"tokenizer.json", "tokenizer.model"});
  EXPECT_NE(test::error_message(ErrorKind::Data, [] { Tokenizer::load("/no/such/folder"); }), "");
}

TEST(TokenizerFiles, AFolderUnderAFilesNameIsNoFile) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "tokenizer.json");
  test::expect_mentions(load_error(folder), {"tokenizer.json", "not a file"});
}

TEST(TokenizerFiles, WhatIsNoTokenizerAtAllIsCalledWhatItLooksLike) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
  test::expect_mentions(json_error(pointer), {"byte 1", "LFS"});
  test::expect_mentions(json_error("<!DOCTYPE html><html>"), {"byte 1", "web page"});
  test::expect_mentions(json_error(""), {"empty"});
  test::expect_mentions(model_error(pointer), {"LFS"});
  test::expect_mentions(model_error("<!DOCTYPE html><html>"), {"web page"});
  test::expect_mentions(model_error(""), {"empty"});
}

// ---- tokenizer.json ----------------------------------------------------------------------------

TEST(TokenizerJson, CutAnywhereIsAnErrorWithFileAndByte) {
  const std::string whole = toy_json().dump();
  for (const std::size_t size : {whole.size() / 2, whole.size() - 1, std::size_t{1}}) {
    test::expect_mentions(json_error(whole.substr(0, size)),
                          {"tokenizer.json", "byte " + std::to_string(size + 1)});
  }
}

TEST(TokenizerJson, JsonOfAnotherShapeIsRefused) {
  for (const char* content : {"[1]", "{}", "3", "null", R"({"model": 1})", R"({"model": {}})"}) {
    test::expect_mentions(json_error(content), {"tokenizer.json"});
  }
}

TEST(TokenizerJson, ModelsOfOtherTypesAreRefusedByName) {
  json file = toy_json();
  for (const char* type : {"Unigram", "WordPiece", "WordLevel"}) {
    file["model"]["type"] = type;
    test::expect_mentions(json_error(file.dump()), {"tokenizer.json", type});
  }
  const json scored = json::array({json::array({"a", -1.5}), json::array({"b", -2.5})});
  file["model"] = {{"type", "Unigram"}, {"vocab", scored}};
  test::expect_mentions(json_error(file.dump()), {"Unigram"});
}

TEST(TokenizerJson, PartsOfUnknownTypesAreRefusedByPartAndName) {
  const std::pair<const char*, json> cases[] = {
      {"normalizer", {{"type", "NFC"}}},
      {"pre_tokenizer", {{"type", "Metaspace"}}},
      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {{{"type", "Digits"}}}}}},
      {"decoder", {{"type", "WordPiece"}}},
      {"post_processor", {{"type", "BertProcessing"}}},
  };
  for (const auto& [part, value] : cases) {
    json file = toy_json();
    file[part] = value;
    const json& inner = value.contains("pretokenizers") ? value["pretokenizers"][0] : value;
    test::expect_mentions(json_error(file.dump()), {part, inner["type"].get<std::string>()});
  }
}

TEST(TokenizerJson, SettingsThatAreNotSupportedAreRefused) {
  const std::pair<json::json_pointer, json> cases[] = {
      {json::json_pointer("/pre_tokenizer/pretokenizers/0/behavior"), "Removed"},
      {json::json_pointer("/pre_tokenizer/pretokenizers/0/invert"), true},
      {json::json_pointer("/pre_tokenizer/pretokenizers/0/pattern"), {{"String", " "}}},
      {json::json_pointer("/pre_tokenizer/pretokenizers/1/add_prefix_space"), true},
      {json::json_pointer("/pre_tokenizer/pretokenizers/1/use_regex"), true},
      {json::json_pointer("/model/continuing_subword_prefix"), "##"},
      {json::json_pointer("/model/end_of_word_suffix"), "</w>"},
      {json::json_pointer("/model/dropout"), 0.1},
      {json::json_pointer("/model/ignore_merges"), "yes"},
      {json::json_pointer("/decoder"), nullptr},
      {json::json_pointer("/added_tokens"), 5},
      {json::json_pointer("/added_tokens/0/id"), nullptr},
      {json::json_pointer("/added_tokens/0/content"), ""},
      {json::json_pointer("/added_tokens/0/content"), std::string(300, 'x')},
  };
  for (const auto& [where, value] : cases) {
    json file = toy_json();
    file[where] = value;
    EXPECT_NE(json_error(file.dump()), "") << where;
  }
}

TEST(TokenizerJson, ATokenBehindTheTextIsRefused) {
  json file = toy_json();
  json& single = file["post_processor"]["processors"][1]["single"];
  single.push_back({{"SpecialToken", {{"id", "<|eot_id|>"}, {"type_id", 0}}}});
  test::expect_mentions(json_error(file.dump()), {"post_processor", "<|eot_id|>"});
}

TEST(TokenizerJson, IdsGivenTwiceAreRefusedWithBothTokens) {
  json file = toy_json();
  file["model"]["vocab"]["qqq"] = 65;
  test::expect_mentions(json_error(file.dump()), {"65", "qqq", "'A'"});
  file = toy_json();
  file["added_tokens"][1]["id"] = file["added_tokens"][0]["id"];
  test::expect_mentions(json_error(file.dump()), {"<|begin_of_text|>", "<|end_of_text|>"});
  file = toy_json();
  file["added_tokens"][1]["id"] = 65;
  test::expect_mentions(json_error(file.dump()), {"65", "<|end_of_text|>", "'A'"});
  file = toy_json();
  file["model"]["vocab"]["<|eot_id|>"] = 295;
  test::expect_mentions(json_error(file.dump()), {"<|eot_id|>", "295"});
}

TEST(TokenizerJson, ATokenGivenTwiceIsRefused) {
  std::string text = toy_json().dump();
  const std::string entry = "\"A\":65";
  text.insert(text.find(entry), "\"A\":64999,");
  test::expect_mentions(json_error(text), {"'A'", "65", "64999"});
}

TEST(TokenizerJson, IdsOutOfAllProportionAreRefusedWithoutTakingMemory) {
  for (const char* id : {"-1", "2147483647", "99999999999999999999", "1000000000"}) {
    std::string text = toy_json().dump();
    const std::string entry = "\"A\":65";
    text.replace(text.find(entry), entry.size(), std::string("\"A\":") + id);
    test::expect_mentions(json_error(text), {"'A'"});
  }
  for (const char* id : {"1.5", "\"7\"", "null", "[]", "{}", "true"}) {
    std::string text = toy_json().dump();
    const std::string entry = "\"A\":65";
    text.replace(text.find(entry), entry.size(), std::string("\"A\":") + id);
    test::expect_mentions(json_error(text), {"'A'", "vocab"});
  }
}

TEST(TokenizerJson, MergesMayBeWrittenInBothWays) {
  const test::ToyVocabulary vocabulary = test::merged_vocabulary(kSize);
  json file = toy_json();
  const auto encode = [&](const json& content) {
    const TempFolder folder;
    test::write_file(folder / "tokenizer.json", content.dump());
    return Tokenizer::load(folder.path()).encode("the rain and then the sun", {});
  };
  const auto ids = encode(file);
  for (json& merge : file["model"]["merges"]) {
    const std::string pair = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
    merge = pair;
  }
  EXPECT_EQ(encode(file), ids);
  EXPECT_LT(ids.size(), 25U);
}

TEST(TokenizerJson, MergesOfUnknownTokensAreRefusedWithTheirPlace) {
  for (const json& bad : {json({"A", "unknown"}), json({"unknown", "A"}), json({"A", "B"})}) {
    json file = toy_json();
    file["model"]["merges"][4] = bad;
    const std::string joined = bad[0].get<std::string>() + bad[1].get<std::string>();
    test::expect_mentions(json_error(file.dump()), {"entry 5", "'"});
  }
}

TEST(TokenizerJson, MergesOfAnotherFormAreRefusedWithTheirPlace) {
  for (const json& bad :
       {json("AB"), json("A B C"), json(" B"), json("A "), json(""), json(7), json::array(),
        json({"A"}), json({"A", "B", "C"}), json({"A", 1}), json::object(), json(nullptr)}) {
    json file = toy_json();
    file["model"]["merges"][4] = bad;
    test::expect_mentions(json_error(file.dump()), {"merges", "entry 5"});
  }
}

TEST(TokenizerJson, AByteWithoutATokenIsRefused) {
  json file = toy_json();
  file["model"]["merges"] = json::array();
  file["model"]["vocab"].erase("Z");
  test::expect_mentions(json_error(file.dump()), {"0x5A"});
}

TEST(TokenizerJson, HolesBetweenIdsAreEmptyTokens) {
  const TempFolder folder;
  json file = toy_json();
  file["added_tokens"].push_back({{"id", 1000}, {"content", "<far>"}, {"special", true}});
  test::write_file(folder / "tokenizer.json", file.dump());
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer.vocab_size(), 1001);
  EXPECT_EQ(tokenizer.piece(999), "");
  EXPECT_FALSE(tokenizer.is_special(999));
}

TEST(TokenizerJson, WithoutASplitPatternATextIsOnePiece) {
  const TempFolder folder;
  json file = toy_json();
  file["pre_tokenizer"] = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  test::write_file(folder / "tokenizer.json", file.dump());
  EXPECT_EQ(Tokenizer::load(folder.path()).split("a b 12").size(), 1U);
  file["pre_tokenizer"]["use_regex"] = true;
  test::write_file(folder / "tokenizer.json", file.dump());
  EXPECT_EQ(Tokenizer::load(folder.path()).split("it's 1234  x"),
            (std::vector<std::string>{"it", "'s", " 1234", " ", " x"}));
}

// Whatever a byte is changed to: the file loads or is refused with one line, under the sanitizers.
TEST(TokenizerJson, DamagedBytesNeverCrash) {
  const std::string whole = toy_json().dump();
  std::mt19937 random(5);
  const TempFolder folder;
  for (int round = 0; round < 200; ++round) {
    std::string text = whole;
    for (std::size_t n = 1 + random() % 3; n > 0; --n) {
      text[random() % text.size()] =
          round % 2 == 0 ? static_cast<char>(random()) : text[random() % text.size()];
    }
    test::write_file(folder / "tokenizer.json", text);
    try {
      static_cast<void>(Tokenizer::load(folder.path()).encode("Some text, 123.", {}));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Data);
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
}

// ---- rank table --------------------------------------------------------------------------------

TEST(RankTable, SplitsAndMergesAsTheJsonFileOfTheSameTokens) {
  const test::ToyVocabulary vocabulary = test::merged_vocabulary(400);
  const TempFolder json_folder;
  test::write_file(json_folder / "tokenizer.json", test::tokenizer_json(vocabulary).dump());
  const TempFolder table_folder;
  test::write_file(table_folder / "tokenizer.model", test::rank_table(vocabulary));
  test::write_file(table_folder / "tokenizer_config.json",
                   test::tokenizer_config_json(vocabulary, false).dump());
  const Tokenizer from_json = Tokenizer::load(json_folder.path());
  const Tokenizer from_table = Tokenizer::load(table_folder.path());
  EXPECT_EQ(from_json.vocab_size(), from_table.vocab_size());
  for (const char* text : {"the rain and then the sun, and another one", "  they\n\nand  ", "12345",
                           "<|eot_id|>", "", "\xFF\xFEthe"}) {
    EXPECT_EQ(from_json.encode(text, {}), from_table.encode(text, {})) << text;
  }
}

TEST(RankTable, SpecialTokensOfLlama3FollowTheTableWhereNothingSaysOtherwise) {
  const test::ToyVocabulary vocabulary = test::merged_vocabulary(kSize);
  const auto first = static_cast<TokenId>(vocabulary.pieces.size());
  const TempFolder folder;
  test::write_file(folder / "tokenizer.model", test::rank_table(vocabulary));
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer.vocab_size(), first + 256);
  EXPECT_EQ(tokenizer.bos_id(), first);
  EXPECT_EQ(tokenizer.eos_id(), first + 1);
  EXPECT_EQ(tokenizer.find("<|finetune_right_pad_id|>"), first + 4);
  EXPECT_EQ(tokenizer.find("<|eot_id|>"), first + 9);
  EXPECT_EQ(tokenizer.piece(first + 11), "<|reserved_special_token_3|>");
  EXPECT_EQ(tokenizer.piece(first + 255), "<|reserved_special_token_247|>");
  EXPECT_TRUE(tokenizer.is_special(first + 255));
  EXPECT_EQ(tokenizer.encode("z", {}), (std::vector<TokenId>{first, 'z'}));
}

TEST(RankTable, ADamagedLineIsNamed) {
  const std::string table = test::rank_table(test::merged_vocabulary(kSize));
  const auto with_line = [&](std::string_view line) {
    std::size_t begin = 0;
    for (int i = 1; i < 100; ++i) begin = table.find('\n', begin) + 1;
    std::string changed = table;
    return changed.replace(begin, table.find('\n', begin) - begin, line);
  };
  for (const char* bad :
       {"Yw== x", "Yw==", "Yw== ", "Y=w= 99", " 99", "Yw== 99 7", "Yw==  99", "Yw== -99", "Yw== 98",
        "Yg== 99", "c 99", "Yw==\t99", "Yw== 99999999999999999999"}) {
    test::expect_mentions(model_error(with_line(bad)), {"tokenizer.model", "line "});
  }
  test::expect_mentions(model_error(with_line("#### 99")), {"line 100"});
  test::expect_mentions(model_error(with_line("Yw== 2000000000")), {"2000000000"});
}

TEST(RankTable, LineEndsOfWindowsAndBlankLinesDoNotMatter) {
  std::string table = test::rank_table(test::merged_vocabulary(kSize));
  for (std::size_t at = table.find('\n'); at != std::string::npos; at = table.find('\n', at + 2)) {
    table.insert(at, "\r");
  }
  const TempFolder folder;
  test::write_file(folder / "tokenizer.model", table + "\r\n\n");
  EXPECT_EQ(Tokenizer::load(folder.path()).encode("A", {.add_bos = false}),
            (std::vector<TokenId>{'A'}));
}

TEST(RankTable, CutInTheMiddleOfALineIsAnError) {
  const std::string table = test::rank_table(test::merged_vocabulary(kSize));
  test::expect_mentions(model_error(table.substr(0, table.find(' ', 500))), {"line "});
  test::expect_mentions(model_error(table.substr(0, 500)), {"tokenizer.model"});
}

// ---- tokenizer_config.json ---------------------------------------------------------------------

TEST(TokenizerConfig, DamagedOrOfAnotherShapeIsAnErrorThatNamesIt) {
  for (const char* content :
       {"{", "[]", R"({"add_bos_token": 1})", R"({"bos_token": 7})", R"({"eos_token": []})",
        R"({"bos_token": {"content": 7}})", R"({"added_tokens_decoder": []})",
        R"({"added_tokens_decoder": {"x": {"content": "y"}}})",
        R"({"added_tokens_decoder": {"5": "y"}})"}) {
    const TempFolder folder;
    test::write_file(folder / "tokenizer.json", toy_json().dump());
    test::write_file(folder / "tokenizer_config.json", content);
    test::expect_mentions(load_error(folder), {"tokenizer_config.json"});
  }
}

}  // namespace
}  // namespace fut
