// Known answers: ids that other implementations give for the same texts with the same files.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/sha256.h"
#include "tokenizer/tokenizer.h"

namespace fut {
namespace {

using nlohmann::json;
using test::read_file;
using test::TempFolder;
using Ids = std::vector<TokenId>;

constexpr EncodeOptions kPlain{.add_bos = false, .parse_special = false};

struct Vector {
  std::string text;
  Ids ids;
};

// NAME.inp: texts between lines with a mark; NAME.out: a line of ids for each.
std::vector<Vector> read_vectors(const std::string& name) {
  const std::string mark = "\n__ggml_vocab_test__\n";
  std::string texts = read_file(test::test_data("vectors/" + name + ".inp"));
  std::istringstream lines(read_file(test::test_data("vectors/" + name + ".out")));
  std::vector<Vector> vectors;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t end = texts.find(mark);
    Vector vector{texts.substr(0, end), {}};
    texts.erase(0, end == std::string::npos ? texts.size() : end + mark.size());
    std::istringstream numbers(line);
    for (TokenId id = 0; numbers >> id;) vector.ids.push_back(id);
    vectors.push_back(std::move(vector));
  }
  EXPECT_EQ(texts, "") << "texts without ids";
  return vectors;
}

void expect_vectors(const Tokenizer& tokenizer, const std::string& name) {
  const std::vector<Vector> vectors = read_vectors(name);
  EXPECT_EQ(vectors.size(), 46U);
  for (const Vector& vector : vectors) {
    EXPECT_EQ(tokenizer.encode(vector.text, kPlain), vector.ids) << "'" << vector.text << "'";
    EXPECT_EQ(tokenizer.decode(vector.ids), vector.text);
  }
}

// Loads one file of a folder alone, whatever lies beside it.
Tokenizer load_only(const std::filesystem::path& file) {
  const TempFolder folder;
  std::filesystem::create_symlink(std::filesystem::absolute(file),
                                  folder / file.filename().string());
  return Tokenizer::load(folder.path());
}

TEST(KnownIds, Llama3JsonMatchesTheVectors) {
  const auto file = test::test_data("tokenizers/llama3/tokenizer.json");
  FUT_REQUIRE_TEST_DATA(file);
  expect_vectors(load_only(file), "ggml-vocab-llama-bpe.gguf");
}

TEST(KnownIds, Llama3RankTableMatchesTheVectors) {
  const auto file = test::test_data("tokenizers/llama3/tokenizer.model");
  FUT_REQUIRE_TEST_DATA(file);
  expect_vectors(load_only(file), "ggml-vocab-llama-bpe.gguf");
}

TEST(KnownIds, Llama2MatchesTheVectors) {
  const auto file = test::test_data("tokenizers/llama2/tokenizer.model");
  FUT_REQUIRE_TEST_DATA(file);
  expect_vectors(load_only(file), "ggml-vocab-llama-spm.gguf");
}

TEST(KnownIds, BothLlama3FilesAreTheSameTokenizer) {
  const auto folder = test::test_data("tokenizers/llama3");
  FUT_REQUIRE_TEST_DATA(folder);
  const Tokenizer from_json = load_only(folder / "tokenizer.json");
  const Tokenizer from_table = load_only(folder / "tokenizer.model");
  ASSERT_EQ(from_json.vocab_size(), 128256);
  ASSERT_EQ(from_table.vocab_size(), 128256);
  EXPECT_EQ(from_json.bos_id(), 128000);
  EXPECT_EQ(from_table.bos_id(), 128000);
  for (TokenId id = 0; id < 128256; ++id) {
    ASSERT_EQ(from_json.piece(id), from_table.piece(id)) << id;
    ASSERT_EQ(from_json.is_special(id), from_table.is_special(id)) << id;
  }
  for (TokenId id = 0; id < 128000; id += 97) {
    EXPECT_EQ(from_json.encode(from_json.piece(id) + " and", kPlain),
              from_table.encode(from_json.piece(id) + " and", kPlain));
  }
}

// Number and SHA-256 of the ids of a long text, written as numbers with blanks between, as Hugging
// Face's tokenizers and Google's sentencepiece give them.
TEST(KnownIds, LongTextsMatchOtherImplementations) {
  struct Case {
    const char* tokenizer;
    const char* text;
    std::size_t count;
    const char* digest;
  };
  const Case cases[] = {
      {"tokenizers/llama3/tokenizer.json", "wikitext2/wiki.test.raw", 289076,
       "f666719c164a341ee5ebe22510effc7d3a7a54337bae7c271a825c5ed02ca3cd"},
      {"tokenizers/llama3/tokenizer.model", "wikitext2/wiki.test.raw", 289076,
       "f666719c164a341ee5ebe22510effc7d3a7a54337bae7c271a825c5ed02ca3cd"},
      {"tokenizers/llama2/tokenizer.model", "wikitext2/wiki.test.raw", 335687,
       "6e4178197a6ae238f298de15d74842dcda08866fc8a322c20e478a101d520d5f"},
      {"tokenizers/llama3/tokenizer.json", "heldout.txt", 84535,
       "78316a36d6ed8a35320bbde440e081b50a7ac111c00c377326fe99fd66ab74a8"},
      {"tokenizers/llama2/tokenizer.model", "heldout.txt", 97357,
       "84b6238de0a6ccb9de84bc03c9219bdc3d581797b09212f9bd4dbb7d831c38df"},
  };
  for (const Case& c : cases) {
    FUT_REQUIRE_TEST_DATA(test::test_data(c.text));
    const Tokenizer tokenizer = load_only(test::test_data(c.tokenizer));
    const std::string text = read_file(test::test_data(c.text));
    const Ids ids = tokenizer.encode(text, kPlain);
    EXPECT_EQ(ids.size(), c.count) << c.tokenizer << " " << c.text;
    EXPECT_EQ(sha256_hex(fmt::format("{}", fmt::join(ids, " "))), c.digest);
    EXPECT_EQ(tokenizer.decode(ids), text);
  }
}

// Prompts are plain texts or, with "chat:" in front, one user's turn; replies are spelt with their
// end token.
void expect_prompts(const Tokenizer& tokenizer, const std::filesystem::path& golden) {
  const json file = json::parse(read_file(golden));
  int turns = 0;
  for (const json& c : file["cases"]) {
    const std::string text = c["text"];
    const Ids prompt = c["prompt_ids"];
    constexpr std::string_view kTurn = "chat:";
    if (text.starts_with(kTurn)) {
      const std::vector<ChatMessage> messages = {{"user", text.substr(kTurn.size())}};
      EXPECT_EQ(encode_chat(ChatTemplate::Demo, messages, {}, tokenizer), prompt);
      ++turns;
    } else {
      EXPECT_EQ(tokenizer.encode(text, {}), prompt);
    }
    EXPECT_EQ(tokenizer.decode(c["greedy_ids"].get<Ids>(), true),
              c["greedy_text"].get<std::string>());
  }
  EXPECT_GT(turns, 0);
}

TEST(KnownIds, TheDemonstrationModelsPrompts) {
  expect_prompts(Tokenizer::load(test::source_path("configs/demo-6m")),
                 test::source_path("tests/golden/demo-6m/golden.json"));
}

TEST(KnownIds, TheNovelsModelsPrompts) {
  const auto folder = test::test_data("models/novels-19m");
  FUT_REQUIRE_TEST_DATA(folder);
  expect_prompts(Tokenizer::load(folder), folder / "golden.json");
}

TEST(KnownIds, TheTinyStoriesModelsPromptAndText) {
  const auto folder = test::test_data("models/tinystories-656k");
  FUT_REQUIRE_TEST_DATA(folder);
  const Tokenizer tokenizer = Tokenizer::load(folder);
  const json golden = json::parse(read_file(folder / "golden_f64.json"));
  const std::string prompt = golden["prompt"];
  const Ids ids = golden["ids"];
  EXPECT_EQ(tokenizer.encode(prompt, {}), ids);
  EXPECT_EQ(tokenizer.decode(ids), prompt);
  EXPECT_EQ(tokenizer.eos_id(), 2);
  // The text of prompt and reply token by token, with the blank that the encoder put in front.
  Ids all = ids;
  for (const TokenId id : golden["greedy_ids"]) all.push_back(id);
  std::string joined;
  for (const TokenId id : all) joined += tokenizer.is_special(id) ? "" : tokenizer.piece(id);
  EXPECT_EQ(joined, golden["text"].get<std::string>());
  EXPECT_EQ(" " + tokenizer.decode(all), joined);
}

// Every stretch between special tokens is encoded alone, and random texts of every script come
// back byte for byte.
TEST(KnownIds, OfficialFilesLoseNothing) {
  for (const char* file : {"tokenizers/llama3/tokenizer.json", "tokenizers/llama3/tokenizer.model",
                           "tokenizers/llama2/tokenizer.model"}) {
    FUT_REQUIRE_TEST_DATA(test::test_data(file));
    const Tokenizer tokenizer = load_only(test::test_data(file));
    for (const std::string& text :
         {std::string("Hello world"), std::string(" Hello"), std::string("  two"),
          std::string("a\nb"), std::string("x日😀y"), std::string("<0x41>"), std::string(""),
          std::string("\0", 1), std::string("\xFF\x00\xC3(", 4), std::string("e\u0301\u200D")}) {
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, {})), text) << file;
    }
  }
}

}  // namespace
}  // namespace fut
