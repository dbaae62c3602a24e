// The kinds that put a blank in front of a text and fall back to bytes: SentencePiece models and
// the tokenizer.json files made from them.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"
#include "tests/support/toy_tokenizers.h"
#include "tokenizer/tokenizer.h"

namespace fut {
namespace {

using nlohmann::json;
using test::TempFolder;
using Ids = std::vector<TokenId>;

constexpr TokenId kFirstByte = 3;
constexpr TokenId kMark = 259;   // U+2581, then h, e, l, o, A
constexpr TokenId kHello = 269;  // U+2581 hello

// <unk> 0, <s> 1, </s> 2, byte b is 3 + b, then a few letters and what merges from them.
json byte_fallback_json() {
  const std::string mark = "\u2581";
  json vocabulary = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary[fmt::format("<0x{:02X}>", byte)] = kFirstByte + byte;
  }
  TokenId next = kMark;
  for (const char* letter : {"\u2581", "h", "e", "l", "o", "A"}) vocabulary[letter] = next++;
  json merges = json::array();
  const std::pair<std::string, std::string> pairs[] = {
      {"h", "e"}, {"l", "l"}, {"he", "ll"}, {"hell", "o"}, {mark, "hello"}, {mark, mark}};
  for (const auto& [left, right] : pairs) {
    vocabulary[left + right] = next++;
    merges.push_back({left, right});
  }
  const auto special = [](int id, const char* text) {
    return json{{"id", id}, {"content", text}, {"special", true}, {"normalized", false}};
  };
  const auto replace = [](const std::string& from, const std::string& to) {
    return json{{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  };
  const json prepend = {{"type", "Prepend"}, {"prepend", mark}};
  const json strip = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};
  json file;
  file["added_tokens"] = {special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")};
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", {prepend, replace(" ", mark)}}};
  file["decoder"] = {
      {"type", "Sequence"},
      {"decoders", {replace(mark, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}, strip}}};
  file["model"] = {{"type", "BPE"},         {"unk_token", "<unk>"}, {"fuse_unk", true},
                   {"byte_fallback", true}, {"vocab", vocabulary},  {"merges", merges}};
  return file;
}

Tokenizer load_json(const json& file) {
  const TempFolder folder;
  test::write_file(folder / "tokenizer.json", file.dump());
  return Tokenizer::load(folder.path());
}

std::string json_error(const json& file) {
  return test::error_message(ErrorKind::Data, [&] { load_json(file); });
}

Tokenizer load_model(std::string_view bytes, const json& config = json::object()) {
  const TempFolder folder;
  test::write_file(folder / "tokenizer.model", bytes);
  test::write_file(folder / "tokenizer_config.json", config.dump());
  return Tokenizer::load(folder.path());
}

std::string model_error(std::string_view bytes, const json& config = json::object()) {
  return test::error_message(ErrorKind::Data, [&] { load_model(bytes, config); });
}

// What both kinds promise, for a tokenizer with the bytes at 3 and following.
class DummyBlank : public testing::TestWithParam<bool> {
 protected:
  DummyBlank()
      : tokenizer_(GetParam() ? load_json(byte_fallback_json())
                              : load_model(test::sentencepiece_model(600))) {}
  Tokenizer tokenizer_;
};

TEST_P(DummyBlank, IsPutInFrontOfATextAndDroppedFromIt) {
  EXPECT_TRUE(tokenizer_.has_dummy_prefix());
  for (const char* text : {"hello", " hello", "  hello  hello ", " ", "  ", "", "a\nb", "\n",
                           "x日😀y", "<0x41>", "<0x41><0x0A>", "A"}) {
    const Ids ids = tokenizer_.encode(text, {.add_bos = false});
    EXPECT_EQ(tokenizer_.decode(ids), text);
    std::string joined;
    for (const TokenId id : ids) joined += tokenizer_.piece(id);
    EXPECT_EQ(joined, ids.empty() ? "" : " " + std::string(text));
  }
}

TEST_P(DummyBlank, OnlyTheFirstTokenOfATextLosesIt) {
  const Ids ids = tokenizer_.encode(" hello hello", {.add_bos = false});
  Ids twice = ids;
  twice.insert(twice.end(), ids.begin(), ids.end());
  EXPECT_EQ(tokenizer_.decode(twice), " hello hello  hello hello");
  twice.insert(twice.begin(), 1);  // a hidden <s> in front changes nothing
  EXPECT_EQ(tokenizer_.decode(twice), " hello hello  hello hello");
}

TEST_P(DummyBlank, StandsBeforeEveryStretchBetweenSpecialTokens) {
  const Ids hello = tokenizer_.encode("hello", {.add_bos = false});
  Ids wanted = {1};
  wanted.insert(wanted.end(), hello.begin(), hello.end());
  wanted.push_back(2);
  wanted.insert(wanted.end(), hello.begin(), hello.end());
  EXPECT_EQ(tokenizer_.encode("<s>hello</s>hello", {.add_bos = false}), wanted);
}

TEST_P(DummyBlank, SpecialTokensAreTextUnlessParsed) {
  for (const char* text : {"<s>", "</s>", "a<s>b", "<unk>"}) {
    const Ids plain = tokenizer_.encode(text, {.add_bos = false, .parse_special = false});
    for (const TokenId id : plain) EXPECT_FALSE(tokenizer_.is_special(id)) << text;
    EXPECT_EQ(tokenizer_.decode(plain), text);
  }
  EXPECT_EQ(tokenizer_.encode("<s>", {.add_bos = false}), (Ids{1}));
}

TEST_P(DummyBlank, BytesThatAreNotUtf8AreEncodedAsThemselves) {
  for (const std::string& text :
       {std::string("\xFF"), std::string("a\xE6\x97"), std::string("\xED\xA0\x80 b\x80"),
        std::string("\0\xFE\0", 3), std::string("\xF3\xB0\x80\x80\xFF"), std::string("日\xC3")}) {
    EXPECT_EQ(tokenizer_.decode(tokenizer_.encode(text, {})), text);
  }
  const Ids ids = tokenizer_.encode("\xFF\xFE", {.add_bos = false});
  ASSERT_GE(ids.size(), 2U);
  EXPECT_EQ(ids[ids.size() - 2], kFirstByte + 0xFF);
  EXPECT_EQ(ids.back(), kFirstByte + 0xFE);
}

TEST_P(DummyBlank, RandomTextsComeBack) {
  std::mt19937 random(6);
  const std::string parts[] = {"hello",
                               "h",
                               " ",
                               "  ",
                               "é",
                               "日",
                               "\n",
                               "\xFF",
                               "\xC3",
                               "the ",
                               std::string(1, '\0'),
                               "<0x00>",
                               "</s",
                               "\U000F0000"};
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (std::size_t n = random() % 15; n > 0; --n) text += parts[random() % std::size(parts)];
    EXPECT_EQ(tokenizer_.decode(tokenizer_.encode(text, {})), text);
  }
}

INSTANTIATE_TEST_SUITE_P(BothKinds, DummyBlank, testing::Bool(), [](const auto& kind) {
  return kind.param ? "TokenizerJson" : "SentencePiece";
});

// ---- tokenizer.json with byte fallback ---------------------------------------------------------

TEST(ByteFallbackJson, MergesCharactersAndFallsBackToBytes) {
  const Tokenizer tokenizer = load_json(byte_fallback_json());
  EXPECT_EQ(tokenizer.kind(), "BPE with byte fallback (tokenizer.json)");
  EXPECT_EQ(tokenizer.encode("hello", {}), (Ids{kHello}));
  EXPECT_EQ(tokenizer.encode("é", {}), (Ids{kMark, kFirstByte + 0xC3, kFirstByte + 0xA9}));
  EXPECT_EQ(tokenizer.piece(kFirstByte + 0xC3), "\xC3");
  EXPECT_EQ(tokenizer.piece(kHello), " hello");
  EXPECT_EQ(tokenizer.find("A"), kMark + 5);  // the letter, not the byte <0x41>
  EXPECT_EQ(tokenizer.find("B"), kFirstByte + 'B');
}

TEST(ByteFallbackJson, WithoutBytesUnknownCharactersBecomeTheUnknownToken) {
  json file = byte_fallback_json();
  for (int byte = 0; byte < 256; ++byte) {
    file["model"]["vocab"].erase(fmt::format("<0x{:02X}>", byte));
  }
  EXPECT_EQ(load_json(file).encode("éé\xFFh", {}), (Ids{kMark, 0, kMark + 1}));
  file["model"]["fuse_unk"] = false;
  EXPECT_EQ(load_json(file).encode("éé\xFFh", {}), (Ids{kMark, 0, 0, 0, kMark + 1}));
  file["model"]["unk_token"] = nullptr;
  test::expect_mentions(json_error(file), {"<0x00>"});
}

TEST(ByteFallbackJson, ArrangementsThatAreNotKnownAreRefused) {
  json file = byte_fallback_json();
  file["model"]["byte_fallback"] = false;
  EXPECT_NE(json_error(file), "");
  file = byte_fallback_json();
  file["normalizer"] = nullptr;
  test::expect_mentions(json_error(file), {"normalizer"});
  file = byte_fallback_json();
  file["normalizer"]["normalizers"][0]["prepend"] = "x";
  test::expect_mentions(json_error(file), {"normalizer", "Prepend"});
  file = byte_fallback_json();
  file["decoder"]["decoders"].erase(3);  // the prefix would never come off
  test::expect_mentions(json_error(file), {"decoder"});
  file = byte_fallback_json();
  file["model"]["vocab"].erase("\u2581");
  file["model"]["merges"] = json::array();
  test::expect_mentions(json_error(file), {"U+2581"});
}

TEST(ByteFallbackJson, WithoutAPrefixStepThereIsNoDummyBlank) {
  json file = byte_fallback_json();
  file["normalizer"] = file["normalizer"]["normalizers"][1];
  file["decoder"]["decoders"].erase(3);
  const Tokenizer tokenizer = load_json(file);
  EXPECT_FALSE(tokenizer.has_dummy_prefix());
  EXPECT_EQ(tokenizer.encode(" hello", {}), (Ids{kHello}));
  EXPECT_EQ(tokenizer.decode(Ids{kHello}), " hello");
}

// ---- SentencePiece -----------------------------------------------------------------------------

TEST(SentencePiece, KnowsItsSpecialTokens) {
  const Tokenizer tokenizer = load_model(test::sentencepiece_model(600));
  EXPECT_EQ(tokenizer.vocab_size(), 600);
  EXPECT_EQ(tokenizer.bos_id(), test::kSentencePieceBos);
  EXPECT_EQ(tokenizer.eos_id(), test::kSentencePieceEos);
  EXPECT_TRUE(tokenizer.adds_bos());
  EXPECT_TRUE(tokenizer.is_special(0));
  EXPECT_FALSE(tokenizer.is_special(test::kSentencePieceFirstByte));
  EXPECT_EQ(tokenizer.find("<s>"), test::kSentencePieceBos);
  EXPECT_EQ(tokenizer.piece(test::kSentencePieceFirstByte + 0x41), "A");
}

TEST(SentencePiece, TheConfigurationAddsTokensBehindTheFilesOwn) {
  const json config = {{"added_tokens_decoder",
                        {{"1", {{"content", "<s>"}, {"special", true}}},
                         {"600", {{"content", "<|im_start|>"}, {"special", true}}},
                         {"601", {{"content", "<|im_end|>"}, {"special", true}}}}},
                       {"eos_token", "<|im_end|>"},
                       {"add_bos_token", false}};
  const Tokenizer tokenizer = load_model(test::sentencepiece_model(600), config);
  EXPECT_EQ(tokenizer.vocab_size(), 602);
  EXPECT_EQ(tokenizer.eos_id(), 601);
  EXPECT_FALSE(tokenizer.adds_bos());
  EXPECT_EQ(tokenizer.encode("<|im_start|><|im_end|></s>", {}), (Ids{600, 601, 2}));
}

TEST(SentencePiece, AConfigurationOfAnotherModelIsRefusedWithBothSpellings) {
  const json config = {{"added_tokens_decoder", {{"2", {{"content", "<|end|>"}}}}}};
  test::expect_mentions(model_error(test::sentencepiece_model(600), config),
                        {"<|end|>", "</s>", "tokenizer_config.json"});
}

// The library's texts speak of protobuf and of its own sources, and it writes to standard error.
TEST(SentencePiece, DamagedModelsAreRefusedInOurOwnWordsAlone) {
  const std::string whole = test::sentencepiece_model(600);
  const std::string no_unknown = whole.substr(11);
  const std::string twice = whole + whole.substr(0, 11);
  testing::internal::CaptureStderr();
  std::vector<std::string> messages = {model_error(no_unknown), model_error(twice),
                                       model_error(std::string(50, '\x01')),
                                       model_error(std::string("\x0A\xFF\xFF\xFF\xFF\x7F", 6))};
  for (std::size_t size = 1; size < whole.size(); size += 997) {
    messages.push_back(model_error(whole.substr(0, size)));
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  for (const std::string& message : messages) {
    test::expect_mentions(message, {"tokenizer.model"});
    for (const char* word : {"protobuf", "proto", "Internal", ".cc("}) {
      EXPECT_EQ(message.find(word), std::string::npos) << message;
    }
  }
}

TEST(SentencePiece, DamagedBytesNeverCrash) {
  const std::string whole = test::sentencepiece_model(400);
  std::mt19937 random(7);
  testing::internal::CaptureStderr();
  for (int round = 0; round < 300; ++round) {
    std::string bytes = whole;
    for (std::size_t n = 1 + random() % 3; n > 0; --n) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    try {
      static_cast<void>(load_model(bytes).encode("Some text, 123 \xFF.", {}));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Data) << error.what();
    }
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

// Long texts are encoded in parts where that cannot change the tokens.
TEST(SentencePiece, ALongTextHasTheTokensOfItsWords) {
  const Tokenizer tokenizer = load_model(test::sentencepiece_model(600));
  std::mt19937 random(8);
  const std::string words[] = {"the", "and", "x", "日", "", "\u2581", "hello,", "\n", "thethe"};
  std::string text = "the";
  Ids wanted = tokenizer.encode(text, {.add_bos = false});
  for (int i = 0; i < 3000; ++i) {
    // A word behind one blank is what the dummy blank makes of it; an empty word makes two blanks,
    // and a literal U+2581 is one, so the next word is taken together with it.
    std::string word = words[random() % std::size(words)];
    while (word.empty() || word.ends_with("\u2581")) word += " " + words[random() % 3];
    text += " " + word;
    const Ids ids = tokenizer.encode(word, {.add_bos = false});
    wanted.insert(wanted.end(), ids.begin(), ids.end());
  }
  EXPECT_EQ(tokenizer.encode(text, {.add_bos = false}), wanted);
}

}  // namespace
}  // namespace fut
