// The toy models that other tests are built on: that their files load with the program's own
// readers, that the same options give the same bytes, and that a scripted model says its script.
#include "tests/support/toy_models.h"

#include <gtest/gtest.h>
#include <stdexcept>

#include "loader/checkpoint.h"
#include "tests/support/model_runner.h"
#include "tests/support/temp_folder.h"
#include "tokenizer/tokenizer.h"

namespace fut {
namespace {

using test::ScriptedModel;
using test::TempFolder;
using test::ToyModelOptions;
using test::ToyTokenizer;

constexpr EncodeOptions kNoBos{.add_bos = false, .parse_special = true};

std::vector<std::int32_t> encode(const std::filesystem::path& folder, std::string_view text) {
  return Tokenizer::load(folder).encode(text, kNoBos);
}

TEST(ToyModel, TheSameOptionsGiveTheSameBytes) {
  const TempFolder folder;
  ToyModelOptions options;
  test::write_toy_model(folder / "a", options);
  test::write_toy_model(folder / "b", options);
  options.seed = 2;
  test::write_toy_model(folder / "c", options);
  const auto weights = [&](const char* name) {
    return test::read_file(folder / name / "model.safetensors");
  };
  EXPECT_EQ(weights("a"), weights("b"));
  EXPECT_NE(weights("a"), weights("c"));
}

TEST(ToyModel, LoadsInEveryTypeAndSize) {
  for (const DType dtype : {DType::F32, DType::F16, DType::BF16}) {
    for (ToyModelOptions options : {ToyModelOptions{}, test::large_toy_model()}) {
      const TempFolder folder;
      options.files.dtype = dtype;
      test::write_toy_model(folder.path(), options);
      ModelConfig config = load_model_config(folder.path());
      const Checkpoint checkpoint = Checkpoint::open(folder.path(), config);
      EXPECT_EQ(checkpoint.global(GlobalTensor::LmHead).dtype, dtype);
      EXPECT_TRUE(checkpoint.notices().empty());
      EXPECT_EQ(load_generation_defaults(folder.path()).eos_token_ids,
                (std::vector<std::int32_t>{506, 510, 509}));
    }
  }
}

TEST(ToyModel, PatchesChangeAndRemoveKeys) {
  ToyModelOptions options;
  options.files.config_patch = {{"head_dim", nullptr}, {"rope_theta", 10000}};
  const nlohmann::json config = test::toy_config(options);
  EXPECT_FALSE(config.contains("head_dim"));
  EXPECT_EQ(config["rope_theta"], 10000);
  const TempFolder folder;
  test::write_toy_model(folder.path(), options);
  test::set_json_key(folder / "config.json", "eos_token_id", nullptr);
  EXPECT_TRUE(load_model_config(folder.path()).eos_token_ids.empty());
}

TEST(ToyTokenizers, EveryKindGivesTextBack) {
  for (const ToyTokenizer kind : {ToyTokenizer::Json, ToyTokenizer::RankTable,
                                  ToyTokenizer::JsonAndRanks, ToyTokenizer::SentencePiece}) {
    SCOPED_TRACE(static_cast<int>(kind));
    const TempFolder folder;
    ToyModelOptions options;
    options.files.tokenizer = kind;
    test::write_toy_model(folder.path(), options);
    const Tokenizer tokenizer = Tokenizer::load(folder.path());
    EXPECT_EQ(tokenizer.vocab_size(), options.vocab_size);
    for (const std::string text : {"Hello world", "the thing that  was", "日😀\n\n'll 1234"}) {
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, {})), text);
    }
    for (TokenId id = 0; id < options.vocab_size; ++id) (void)tokenizer.piece(id);
  }
}

TEST(ToyTokenizers, RanksAndJsonAgree) {
  const TempFolder folder;
  ToyModelOptions options;
  const auto json = test::write_toy_model(folder / "json", options);
  options.files.tokenizer = ToyTokenizer::RankTable;
  const auto ranks = test::write_toy_model(folder / "ranks", options);
  for (const std::string text :
       {"There is another one.", "<|begin_of_text|>when<|eot_id|>", "\xFF", " 12345"}) {
    EXPECT_EQ(encode(json, text), encode(ranks, text)) << text;
  }
  // Bytes are their own ids, merges follow, special tokens come last.
  EXPECT_EQ(encode(json, "A\x07"), (std::vector<std::int32_t>{0x41, 0x07}));
  EXPECT_EQ(encode(json, " t").size(), 1U);
  EXPECT_EQ(encode(json, "<|python_tag|>"), (std::vector<std::int32_t>{511}));
}

TEST(ScriptedModel, WordsAreSingleTokensWithExactlyTheirBytes) {
  ScriptedModel model;
  model.say("\n\n", {"Hello", " world", "\x80\xF0", "<|eot_id|>"});
  const TempFolder folder;
  test::write_scripted_model(folder.path(), model);
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer.vocab_size(), ScriptedModel::kVocabSize);
  EXPECT_EQ(tokenizer.encode("\n\n", kNoBos), (std::vector<std::int32_t>{256}));
  EXPECT_EQ(tokenizer.encode("Hello world", kNoBos), (std::vector<std::int32_t>{257, 258}));
  EXPECT_EQ(model.token("Hello"), 257);
  EXPECT_EQ(tokenizer.piece(model.token("\x80\xF0")), "\x80\xF0");
  EXPECT_EQ(model.token("a"), 'a');
  EXPECT_EQ(tokenizer.piece('a'), "a");
  EXPECT_EQ(model.token("<|eot_id|>"), 504);
  EXPECT_EQ(tokenizer.find("<|eot_id|>"), 504);
}

TEST(ScriptedModel, RefusesAScriptThatContradictsItself) {
  ScriptedModel model;
  model.say("x", {"Hello", "y"});
  EXPECT_NO_THROW(model.say("a", {"Hello", "y"}));
  EXPECT_THROW(model.say("b", {"Hello", "z"}), std::invalid_argument);
}

TEST(ScriptedModel, SaysWhenThereIsNoMoreRoom) {
  ScriptedModel model;
  EXPECT_THROW(
      {
        for (int i = 0; i < 400; ++i) (void)model.token("word" + std::to_string(i));
      },
      std::length_error);
}

TEST(ScriptedModel, SaysItsScript) {
  ScriptedModel model;
  model.say("\n\n", {"Hello", " wor", "ld", "\xF0", "\x9F", "\x98", "\x80", "<|eot_id|>"});
  const TempFolder folder;
  test::write_scripted_model(folder.path(), model);
  test::ModelRunner runner(folder.path(), {.threads = 1});
  const std::vector<std::int32_t> ids = runner.greedy({500, 'x', 256}, 20, {504});
  EXPECT_EQ(ids, (std::vector<std::int32_t>{257, 258, 259, 0xF0, 0x9F, 0x98, 0x80, 504}));
  EXPECT_EQ(Tokenizer::load(folder.path()).decode(ids), "Hello world\xF0\x9F\x98\x80");
}

TEST(ScriptedModel, LinksWeighWhatTheySay) {
  ScriptedModel model;
  model.link("x", "a", 1.0F);
  model.link("x", "b", 0.95F);
  const TempFolder folder;
  test::write_scripted_model(folder.path(), model);
  test::ModelRunner runner(folder.path(), {.threads = 1});
  const std::vector<float> logits = runner.logits({'x'}).back();
  // After the last norm the coordinate of the current token is at most sqrt(512), about 22.6; what
  // the layers add takes a little from it, less than a tenth. bfloat16 rounds 0.95 to 0.94921875.
  EXPECT_GT(logits['a'], 20);
  EXPECT_LT(logits['a'], 22.7F);
  EXPECT_FLOAT_EQ(logits['b'], logits['a'] * 0.94921875F);
  EXPECT_EQ(logits['c'], 0);
}

TEST(ScriptedModel, SpeaksThroughSentencePieceToo) {
  ScriptedModel model(ToyTokenizer::SentencePiece);
  model.say("x", {" Hello", " world", "\xE6", "\x97", "\xA5", " end", "</s>"});
  const TempFolder folder;
  test::write_scripted_model(folder.path(), model);
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  test::ModelRunner runner(folder.path(), {.threads = 1});
  const std::vector<std::int32_t> ids =
      runner.greedy({test::kSentencePieceBos, model.token("x")}, 20, {test::kSentencePieceEos});
  EXPECT_EQ(ids.back(), test::kSentencePieceEos);
  EXPECT_EQ(tokenizer.decode(ids), "Hello world\xE6\x97\xA5 end");
  EXPECT_EQ(tokenizer.encode(" world", {.add_bos = true, .parse_special = true}).front(),
            test::kSentencePieceBos);
}

}  // namespace
}  // namespace fut
