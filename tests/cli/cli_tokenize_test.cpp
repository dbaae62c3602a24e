// `fut tokenize`: ids, pieces, conversations, JSON Lines; every kind of tokenizer file and what a
// damaged one gets.
#include "tests/cli/fut_process.h"

namespace fut::test {
namespace {

namespace fs = std::filesystem;

// Pieces and merges as in the demonstration model's first 200, with nothing but tokenizer files.
class Tokenize : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder = std::make_unique<TempFolder>();
    whole = write_toy_model(*folder / "whole").string();
    only = (*folder / "tokenizer-only").string();
    fs::create_directory(only);
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
      fs::copy_file(fs::path(whole) / name, fs::path(only) / name);
    }
  }
  static void TearDownTestSuite() { folder.reset(); }
  static ProcessResult tokenize(std::vector<std::string> more, ProcessOptions options = {}) {
    std::vector<std::string> words = {"tokenize", "-m", only};
    words.insert(words.end(), more.begin(), more.end());
    return fut(std::move(words), std::move(options));
  }
  static std::unique_ptr<TempFolder> folder;
  static std::string whole, only;
};
std::unique_ptr<TempFolder> Tokenize::folder;
std::string Tokenize::whole, Tokenize::only;

TEST_F(Tokenize, NeedsTokenizerFilesOnly) {
  const ProcessResult result = tokenize({"-p", "Hello"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(result.out.starts_with("505 ")) << result.out;  // <|begin_of_text|>
  EXPECT_EQ(fut({"tokenize", "-m", whole, "-p", "Hello"}).out, result.out);
}

TEST_F(Tokenize, BosAndControlTokensCanBeLeftOut) {
  EXPECT_EQ(tokenize({"-p", "!"}).out, "505 33\n");
  EXPECT_EQ(tokenize({"-p", "!", "--no-bos"}).out, "33\n");
  EXPECT_EQ(tokenize({"-p", "<|eot_id|>", "--no-bos"}).out, "509\n");
  EXPECT_EQ(tokenize({"-p", "<|begin_of_text|>!"}).out, "505 33\n");
  const ProcessResult text = tokenize({"-p", "<|eot_id|>", "--no-bos", "--no-special"});
  EXPECT_GT(text.out.size(), 10U);
  EXPECT_EQ(text.out.find("509"), std::string::npos);
  EXPECT_EQ(tokenize({"--pieces", "-p", "a<|eot_id|>b"}).out, "a\n<|eot_id|>\nb\n");
  EXPECT_EQ(tokenize({"--pieces", "--no-special", "-p", "a<|eot_id|>b"}).out,
            "a\n<|\neot\n_id\n|>\nb\n");
}

TEST_F(Tokenize, PiecesFollowTheSplitPatternOfLlama3) {
  struct Case {
    const char* text;
    std::vector<std::string> pieces;
  };
  const std::vector<Case> cases = {
      {"3333+777", {"333", "3", "+", "777"}},
      {"1234567", {"123", "456", "7"}},
      {"I'LL we'd don't", {"I", "'LL", " we", "'d", " don", "'t"}},
      {"'sad", {"'s", "ad"}},
      {"don\u2019t", {"don", "\u2019t"}},
      {"a  b", {"a", " ", " b"}},
      {"a\n\n b", {"a", "\n\n", " b"}},
      {"  \n  \n x", {"  \n  \n", " x"}},
      {"x   ", {"x", "   "}},
      {"a\tb", {"a", "\tb"}},
      {"!!\n\n\n?", {"!!\n\n\n", "?"}},
      {"\u0663\u0664\u0665\u0666", {"\u0663\u0664\u0665", "\u0666"}},
      {"\u00BD\u00B2\u21674", {"\u00BD\u00B2\u2167", "4"}},
      {"\u65E5\u672C\u8A9E123\u8A9E", {"\u65E5\u672C\u8A9E", "123", "\u8A9E"}},
      {"e\u0301a", {"e", "\u0301a"}},
      {"\u00A0\u3000a", {"\u00A0", "\u3000a"}},
  };
  for (const Case& c : cases) {
    const ProcessResult result = tokenize({"--pieces", "-o", "json", "--no-escape", "-p", c.text});
    EXPECT_EQ(json_of(result).at("pieces"), c.pieces) << c.text;
  }
}

TEST_F(Tokenize, PiecesAreALineEachWithControlCharactersSpeltOut) {
  EXPECT_EQ(tokenize({"--pieces", "-p", "a\\n\\n b\\\\"}).out, "a\n\\n\\n\n b\n\\\\\n");
  EXPECT_EQ(tokenize({"--pieces", "-p", "日本"}).out, "日本\n");
}

TEST_F(Tokenize, LargeInputsAreNotQuadratic) {
  for (const char letter : {'a', ' ', '1'}) {
    const std::string text(1'000'000, letter);
    const ProcessResult ids = tokenize({}, with_input(text));
    EXPECT_EQ(ids.exit_code, 0);
    EXPECT_LT(ids.seconds, 30) << letter;
    const auto document = json_of(tokenize({"--pieces", "-o", "json"}, with_input(text)));
    std::string joined;
    for (const auto& piece : document.at("pieces")) joined += piece.get<std::string>();
    EXPECT_TRUE(joined == text) << letter;
  }
}

TEST_F(Tokenize, FilesAndStandardInputAreTakenByteForByte) {
  const std::string bytes("a\0\xFF\n", 4);
  write_file(*folder / "bytes", bytes);
  EXPECT_EQ(tokenize({"--no-bos", "-f", (*folder / "bytes").string()}).out, "97 0 255 10\n");
  EXPECT_EQ(tokenize({"--no-bos"}, with_input(bytes)).out, "97 0 255 10\n");
  EXPECT_EQ(tokenize({"--no-bos", "-p", "-"}, with_input(bytes)).out, "97 0 255 10\n");
  expect_failure(tokenize({"-f", "/nowhere/text"}), 3, {"/nowhere/text"});
  expect_failure(tokenize({}), 2, {"-p"});
}

TEST_F(Tokenize, JsonLinesGiveALineEach) {
  const std::string file = (*folder / "rows.jsonl").string();
  write_file(file,
             "{\"text\": \"!\"}\n\n{\"text\": \"\", \"other\": 1}\n{\"text\": \"\\u0021!\"}\n");
  EXPECT_EQ(tokenize({"--no-bos", "-i", file}).out, "33\n\n33 33\n");
  EXPECT_EQ(tokenize({"--no-bos", "-i", file, "-o", "jsonl"}).out,
            "{\"ids\":[33]}\n{\"ids\":[]}\n{\"ids\":[33,33]}\n");
  EXPECT_EQ(json_of(tokenize({"--no-bos", "-i", file, "-o", "json"})).at("items").size(), 3U);
  write_file(file, "{\"text\": \"a\"}\n{\"txt\": \"b\"}\n");
  EXPECT_EQ(tokenize({"-i", file}).exit_code, 3);
  expect_mentions(tokenize({"-i", file}).err, {"rows.jsonl:2", "text"});
}

TEST_F(Tokenize, ConversationsAreRenderedToTextOrIds) {
  const std::string file = (*folder / "messages.json").string();
  write_file(file, R"([{"role": "system", "content": "S"}, {"role": "user", "content": "hi"}])");
  const std::string turns =
      "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
      "<|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>";
  const std::string opening = "<|start_header_id|>assistant<|end_header_id|>\n\n";
  EXPECT_EQ(tokenize({"--messages", file, "--render"}).out, turns + opening);
  EXPECT_EQ(tokenize({"--messages", file, "--render", "--no-generation-prompt"}).out, turns);
  // The ids are those of the rendered text.
  write_file(*folder / "rendered", turns + opening);
  EXPECT_EQ(tokenize({"--messages", file}).out,
            tokenize({"-f", (*folder / "rendered").string()}).out);
}

TEST_F(Tokenize, ConversationsShowTheDateThatIsAskedFor) {
  const std::string file = (*folder / "dated.json").string();
  write_file(file, R"([{"role": "user", "content": "hi"}])");
  const std::vector<std::string> words = {"--messages", file, "--render", "--chat-template",
                                          "llama-3.1"};
  expect_mentions(tokenize(words).out, {"Today Date: 26 Jul 2024"});
  std::vector<std::string> dated = words;
  dated.insert(dated.end(), {"--date", "01 Feb 2025"});
  expect_mentions(tokenize(dated).out, {"Today Date: 01 Feb 2025"});
}

TEST_F(Tokenize, MessagesAreTextUnlessAskedOtherwise) {
  const std::string file = (*folder / "special.json").string();
  write_file(file, R"([{"role": "user", "content": "<|eot_id|>"}])");
  const auto count = [&](std::vector<std::string> more) {
    more.insert(more.end(), {"--messages", file, "-o", "json"});
    const auto ids = json_of(tokenize(more)).at("ids").get<std::vector<int>>();
    return std::count(ids.begin(), ids.end(), 509);
  };
  EXPECT_EQ(count({}), 1);
  EXPECT_EQ(count({"--parse-special"}), 2);
}

TEST_F(Tokenize, BrokenConversationsAreNamed) {
  const std::string file = (*folder / "broken.json").string();
  write_file(file, "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"user\"}]");
  expect_failure(tokenize({"--messages", file}), 3, {"broken.json", "message 2", "content"});
  write_file(file, "{}");
  expect_failure(tokenize({"--messages", file}), 3, {"broken.json", "list"});
  write_file(file, "[{]");
  expect_failure(tokenize({"--messages", file}), 3, {"broken.json", "JSON"});
  write_file(file, "[1e999]");
  expect_failure(tokenize({"--messages", file}), 3, {"broken.json", "float64"});
}

// ---- tokenizer files ---------------------------------------------------------------------------

class TokenizeFiles : public ::testing::Test {
 protected:
  fs::path write(ToyTokenizer kind) {
    ToyModelOptions options;
    options.files.tokenizer = kind;
    return write_toy_model(folder / "m", options);
  }
  static ProcessResult tokenize(const fs::path& model) {
    return fut({"tokenize", "-m", model.string(), "-p", "Hello there"});
  }
  TempFolder folder;
};

TEST_F(TokenizeFiles, JsonWinsOverARankTable) {
  const fs::path model = write(ToyTokenizer::JsonAndRanks);
  write_file(model / "tokenizer.model", "damaged");
  const ProcessResult result = tokenize(model);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
}

TEST_F(TokenizeFiles, ARankTableAloneWorks) {
  const ProcessResult result = tokenize(write(ToyTokenizer::RankTable));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, tokenize(write(ToyTokenizer::Json)).out);
}

TEST_F(TokenizeFiles, ASentencePieceFileWorks) {
  const ProcessResult result = tokenize(write(ToyTokenizer::SentencePiece));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(result.out.starts_with("1 ")) << result.out;
}

TEST_F(TokenizeFiles, DamageIsNamedWithFileAndPlace) {
  fs::path model = write(ToyTokenizer::RankTable);
  std::vector<std::string> lines = lines_of(read_file(model / "tokenizer.model"));
  lines.at(99) = "!!!! what";
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  write_file(model / "tokenizer.model", text);
  const ProcessResult damaged = tokenize(model);
  expect_failure(damaged, 3, {"tokenizer.model", "100"});
  EXPECT_EQ(damaged.err.find("protobuf"), std::string::npos);

  const fs::path other = folder / "other";
  fs::copy(write(ToyTokenizer::Json), other);
  const std::string whole = read_file(other / "tokenizer.json");
  write_file(other / "tokenizer.json", whole.substr(0, whole.size() / 2));
  expect_failure(tokenize(other), 3, {"tokenizer.json", "byte"});
}

TEST_F(TokenizeFiles, WhatFollowsANulIsNotOverlooked) {
  const fs::path model = write(ToyTokenizer::Json);
  write_file(model / "tokenizer.json",
             read_file(model / "tokenizer.json") + std::string("\0garbage", 8));
  expect_failure(tokenize(model), 3, {"tokenizer.json", "NUL"});
}

TEST_F(TokenizeFiles, ADeadLinkIsNamed) {
  const fs::path model = write(ToyTokenizer::Json);
  fs::remove(model / "tokenizer.json");
  fs::create_symlink(folder / "gone", model / "tokenizer.json");
  expect_failure(tokenize(model), 3, {"tokenizer.json"});
}

TEST_F(TokenizeFiles, AControlTokenThatLostItsFlagIsStillOne) {
  const fs::path model = write(ToyTokenizer::Json);
  nlohmann::json document = nlohmann::json::parse(read_file(model / "tokenizer.json"));
  for (nlohmann::json& token : document["added_tokens"]) token["special"] = false;
  write_file(model / "tokenizer.json", document.dump());
  const ProcessResult text =
      fut({"tokenize", "-m", model.string(), "--no-bos", "--no-special", "-p", "<|eot_id|>"});
  EXPECT_EQ(text.out.find("509"), std::string::npos) << text.out;
}

TEST_F(TokenizeFiles, NoFileAtAllNamesBoth) {
  const fs::path model = write(ToyTokenizer::None);
  expect_failure(tokenize(model), 3, {"tokenizer.json", "tokenizer.model"});
  expect_failure(fut({"run", "-m", model.string(), "-p", "x"}), 3,
                 {"tokenizer.json", "tokenizer.model"});
}

TEST_F(TokenizeFiles, AnotherModelTypeIsRefusedByName) {
  const fs::path model = write(ToyTokenizer::Json);
  nlohmann::json document = nlohmann::json::parse(read_file(model / "tokenizer.json"));
  document["model"] = {{"type", "Unigram"}, {"vocab", nlohmann::json::array()}};
  write_file(model / "tokenizer.json", document.dump());
  expect_failure(tokenize(model), 3, {"tokenizer.json", "Unigram"});
}

// ---- SentencePiece blanks and bytes ------------------------------------------------------------

TEST(SentencePieceReplies, RepliesKeepTheirBlanksAndJoinTheirBytes) {
  Script script(ToyTokenizer::SentencePiece);
  script.say(" go", {" Hello", " world", "\xE6", "\x97", "\xA5", " end", "</s>"});
  const std::string model = script.write();
  const auto run = [&](std::vector<std::string> more) {
    std::vector<std::string> words = {"run", "-m", model, "--raw", "-p", "go"};
    words.insert(words.end(), more.begin(), more.end());
    return fut(words);
  };
  // A continuation keeps the blank in front of its first word.
  const std::string reply = " Hello world\xE6\x97\xA5 end";
  expect_success(run({}), reply);
  EXPECT_EQ(json_of(run({"-o", "json"})).at("text"), reply);
  std::string joined;
  for (const std::string& line : lines_of(run({"-o", "jsonl"}).out)) {
    const auto object = nlohmann::json::parse(line);
    if (!object.contains("ids")) joined += object.at("text").get<std::string>();
  }
  EXPECT_EQ(joined, reply);
}

TEST(SentencePieceReplies, ByteTokensTypedByAUserAreText) {
  const Script script(ToyTokenizer::SentencePiece);
  const std::string model = script.write();
  const ProcessResult typed = fut({"tokenize", "-m", model, "-p", "<0x41>", "-o", "json"});
  const auto ids = json_of(typed).at("ids").get<std::vector<int>>();
  EXPECT_EQ(std::count(ids.begin(), ids.end(), kSentencePieceFirstByte + 0x41), 0);
  EXPECT_GT(ids.size(), 4U);
}

TEST(SentencePieceReplies, AReplyInTheChatFormDropsTheDummyBlank) {
  Script script(ToyTokenizer::SentencePiece);
  script.say("[/INST]", {" Hello", " world", "</s>"});
  const std::string model = script.write();
  expect_success(fut({"run", "-m", model, "-p", "hi", "--chat-template", "llama-2"}),
                 "Hello world\n");
}

}  // namespace
}  // namespace fut::test
