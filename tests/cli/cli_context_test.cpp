// Prompts at, under and over the context; empty prompts; BOS; what the model is really given.
#include "tests/cli/fut_process.h"

namespace fut::test {
namespace {

// Says "Hi" to x and to everything in the chat form.
class Context : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    script = std::make_unique<Script>();
    script->say("x", {"Hi", "<|eot_id|>"}).say("\n\n", {"Hi"});
    model = script->write();
    bos = script->model.token("<|begin_of_text|>");
  }
  static void TearDownTestSuite() { script.reset(); }

  static ProcessResult run(std::vector<std::string> more, ProcessOptions options = {}) {
    std::vector<std::string> words = {"run", "-m", model};
    words.insert(words.end(), more.begin(), more.end());
    return fut(std::move(words), std::move(options));
  }
  static std::vector<int> prompt_ids(std::vector<std::string> more, ProcessOptions options = {}) {
    more.insert(more.end(), {"-o", "json"});
    return json_of(run(std::move(more), std::move(options))).at("prompt_ids");
  }
  static auto count_bos(const std::vector<int>& ids) {
    return std::count(ids.begin(), ids.end(), bos);
  }
  // A raw prompt of this many tokens, BOS included, that ends with x.
  static std::string prompt_of(int tokens) {
    return std::string(static_cast<std::size_t>(tokens - 2), 'a') + "x";
  }
  static std::unique_ptr<Script> script;
  static std::string model;
  static int bos;
};
std::unique_ptr<Script> Context::script;
std::string Context::model;
int Context::bos;

TEST_F(Context, APromptMustLeaveRoomForOneToken) {
  const ProcessResult fits = run({"--raw", "-c", "64", "-p", prompt_of(63), "-o", "json"});
  EXPECT_EQ(fits.exit_code, 0) << fits.err;
  EXPECT_EQ(json_of(fits).at("ids").size(), 1U);
  EXPECT_EQ(json_of(fits).at("finish_reason"), "context");
  for (const int tokens : {64, 65, 10'000}) {
    expect_failure(run({"--raw", "-c", "64", "-p", prompt_of(tokens)}), 4,
                   {std::to_string(tokens), "64", "-c", "--truncate"});
  }
}

TEST_F(Context, TheChatFormIsCountedWithItsTemplate) {
  expect_failure(run({"-c", "64", "-p", "hello", "-sys", std::string(80, 's')}), 4, {"64"});
  expect_failure(run({"-c", "64", "-p", std::string(80, 's')}), 4, {"64"});
}

TEST_F(Context, AHugeFileIsRefusedInSecondsAndLittleMemory) {
  const auto file = *script->folder / "huge";
  write_file(file, "start");
  std::filesystem::resize_file(file, 100'000'000);
  for (const char* form : {"--raw", "--color=off"}) {
    const ProcessResult result = run({form, "-c", "64", "-f", file.string()});
    expect_failure(result, 4, {"huge", "100000000", "64"});
    EXPECT_LT(result.seconds, 20);
#ifndef FUT_SANITIZED
    EXPECT_LT(result.max_memory_kib, 100'000);
#endif
  }
  ProcessOptions piped;
  piped.arguments = {"-c", "exec " + std::string(FUT_BINARY) + " run --raw -c 64 -m " + model +
                               " < <(head -c 100000000 /dev/zero)"};
  expect_failure(run_process("/bin/bash", on_cpu_in_f32(piped)), 4, {"standard input", "64"});
}

TEST_F(Context, SizesThatCannotBeAreWrongUsage) {
  for (const char* size : {"0", "1", "-5"}) {
    expect_failure(run({"--raw", "-p", "x", "-c", size}), 2, {"-c", size});
  }
  expect_failure(run({"--raw", "-p", "x", "-c", "1025"}), 2, {"1025", "1024"});
  expect_success(run({"--raw", "-p", "x", "-c", "1024"}), "Hi");
}

TEST_F(Context, TruncatingIsDoneOnRequestAndTold) {
  std::string letters = "x";
  for (int i = 0; i < 25; ++i) letters += static_cast<char>('a' + i);  // 26 tokens and BOS
  const std::string text = letters + letters + letters + "x";
  const ProcessResult head =
      run({"--raw", "-c", "32", "-n", "4", "--truncate", "head", "-p", text, "-o", "json"});
  EXPECT_EQ(head.exit_code, 0) << head.err;
  const std::vector<int> kept = json_of(head).at("prompt_ids");
  ASSERT_EQ(kept.size(), 28U);  // room for the four tokens of -n
  EXPECT_EQ(kept.front(), bos);
  EXPECT_EQ(kept.back(), 'x');
  expect_mentions(head.err, {"first 52 tokens"});
  const ProcessResult tail =
      run({"--raw", "-c", "32", "-n", "4", "--truncate", "tail", "-p", text, "-o", "json"});
  const std::vector<int> beginning = json_of(tail).at("prompt_ids");
  ASSERT_EQ(beginning.size(), 28U);
  EXPECT_EQ(beginning[1], 'x');
  EXPECT_EQ(beginning[2], 'a');
  expect_mentions(tail.err, {"last 52 tokens"});
  // A prompt that fits is left alone.
  const ProcessResult fits = run({"--raw", "-c", "64", "--truncate", "head", "-p", "x"});
  expect_success(fits, "Hi");
  EXPECT_EQ(fits.err, "");
}

TEST_F(Context, TruncatingAChatKeepsSystemTurnAndTemplate) {
  const std::string text = std::string(200, 'a') + "END";
  const std::vector<std::string> words = {"-c", "128", "-n", "8",    "-sys",      "SYSTEM",
                                          "-p", text,  "-o", "json", "--truncate"};
  const auto with = [&](const char* which) {
    std::vector<std::string> all = words;
    all.emplace_back(which);
    const ProcessResult result = run(all);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    expect_mentions(result.err, {"dropped"});
    const auto document = json_of(result);
    EXPECT_EQ(document.at("text"), "Hi");
    std::string bytes;
    for (const int id : document.at("prompt_ids").get<std::vector<int>>()) {
      if (id < 256) bytes += static_cast<char>(id);
    }
    EXPECT_EQ(count_bos(document.at("prompt_ids")), 1);
    EXPECT_LE(document.at("prompt_ids").size(), 120U);
    EXPECT_GE(document.at("prompt_ids").size(), 115U);
    EXPECT_NE(bytes.find("SYSTEM"), std::string::npos);
    return bytes;
  };
  EXPECT_NE(with("head").find("END"), std::string::npos);
  EXPECT_EQ(with("tail").find("END"), std::string::npos);
}

// ---- empty prompts -----------------------------------------------------------------------------

TEST_F(Context, AnEmptyRawPromptIsItsBos) {
  const ProcessResult result = run({"--raw", "-p", "", "-n", "1", "-o", "json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json_of(result).at("prompt_ids"), std::vector<int>{bos});
  write_file(*script->folder / "empty", "");
  const std::string file = (*script->folder / "empty").string();
  EXPECT_EQ(prompt_ids({"--raw", "-f", file, "-n", "1"}), std::vector<int>{bos});
}

TEST_F(Context, WithoutABosAnEmptyPromptIsWrongUsage) {
  Script plain;
  plain.model.files.add_bos_token = false;
  plain.say("x", {"Hi", "<|eot_id|>"});
  const std::string path = plain.write();
  expect_failure(fut({"run", "-m", path, "--raw", "-p", ""}), 2, {"empty", "-p"});
  expect_success(fut({"run", "-m", path, "--raw", "-p", "x"}), "Hi");
}

TEST_F(Context, AnEmptyTextInTheTemplateIsAPrompt) {
  expect_success(run({"-p", ""}), "Hi\n");
}

// ---- BOS ---------------------------------------------------------------------------------------

TEST_F(Context, ExactlyOneBosStandsInFront) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"-p", "Hi"},
                                             {"-p", "Hi", "-sys", "short"},
                                             {"--raw", "-p", "Hi"},
                                             {"--raw", "-p", "<|begin_of_text|>Hi"}}) {
    const std::vector<int> ids = prompt_ids(words);
    EXPECT_EQ(ids.front(), bos);
    EXPECT_EQ(count_bos(ids), 1);
  }
}

TEST_F(Context, ATypedBosIsTakenAndNotedOnce) {
  const ProcessResult result = run({"--raw", "-p", "<|begin_of_text|>x"});
  expect_success(result, "Hi");
  expect_mentions(result.err, {"<|begin_of_text|>"});
  EXPECT_EQ(lines_of(result.err).size(), 1U);
  EXPECT_EQ(run({"--raw", "-p", "x"}).err, "");
}

TEST_F(Context, NoBosWhereTheTokenizerWantsNone) {
  Script plain;
  plain.model.files.add_bos_token = false;
  plain.say("x", {"Hi", "<|eot_id|>"});
  const auto document =
      json_of(fut({"run", "-m", plain.write(), "--raw", "-p", "x", "-o", "json"}));
  EXPECT_EQ(document.at("prompt_ids"), std::vector<int>{'x'});
}

TEST_F(Context, OtherTurnsOfAChatHaveNoBos) {
  const ProcessResult result = fut({"chat", "-m", model, "--verbose-prompt"}, with_input("a\nb\n"));
  expect_success(result, "Hi\nHi\n");
  // Two prompts are printed, each with one BOS.
  std::size_t count = 0;
  for (const std::string& line : lines_of(result.err)) {
    if (line.find("'<|begin_of_text|>'") != std::string::npos) ++count;
  }
  EXPECT_EQ(count, 2U);
}

TEST_F(Context, VerbosePromptShowsEveryToken) {
  const ProcessResult result = run({"--raw", "-p", "a\\nx", "--verbose-prompt"});
  expect_success(result, "Hi");
  expect_mentions(result.err, {"4 tokens", "97 'a'", "10 '\\n'", "120 'x'"});
}

// ---- control tokens in texts -------------------------------------------------------------------

TEST_F(Context, ControlTokensInMessagesStayTextUnlessAskedFor) {
  const int eot = script->model.token("<|eot_id|>");
  const auto count_eot = [&](const std::vector<int>& ids) {
    return std::count(ids.begin(), ids.end(), eot);
  };
  const auto plain = prompt_ids({"-p", "a<|eot_id|>b"});
  EXPECT_EQ(count_eot(plain), 1);  // the one that the template puts after the turn
  EXPECT_EQ(count_eot(prompt_ids({"-p", "a<|eot_id|>b", "--parse-special"})), 2);
  EXPECT_EQ(count_eot(prompt_ids({"--raw", "-p", "a<|eot_id|>b"})), 1);
  EXPECT_EQ(count_eot(prompt_ids({"--raw", "-p", "a<|eot_id|>b", "--no-special"})), 0);
}

TEST_F(Context, AFolderWithoutTemplateNeedsANameOrRaw) {
  Script bare;
  bare.model.files.chat_template = false;
  bare.say("x", {"Hi", "<|eot_id|>"}).say("\n\n", {"Hi"});
  const std::string path = bare.write();
  expect_failure(fut({"run", "-m", path, "-p", "x"}), 3, {"llama-3.1", "chatml", "--raw"});
  expect_failure(fut({"chat", "-m", path}), 3, {"llama-3.1", "--raw"});
  expect_success(fut({"run", "-m", path, "--raw", "-p", "x"}), "Hi");
  expect_success(fut({"run", "-m", path, "--chat-template", "llama-3", "-p", "x"}), "Hi\n");
  expect_failure(fut({"run", "-m", path, "--chat-template", "vicuna", "-p", "x"}), 2,
                 {"vicuna", "llama-3"});
}

TEST_F(Context, AnUnknownTemplateIsSaidAndNotReplaced) {
  Script odd;
  odd.model.files.tokenizer_config_patch = {{"chat_template", "{{ messages }}"}};
  odd.say("x", {"Hi", "<|eot_id|>"}).say("\n\n", {"Hi"});
  const std::string path = odd.write();
  expect_failure(fut({"run", "-m", path, "-p", "x"}), 3, {"--chat-template", "llama-3.1"});
  expect_success(fut({"run", "-m", path, "--chat-template", "llama-3", "-p", "x"}), "Hi\n");
  expect_success(fut({"run", "-m", path, "--raw", "-p", "x"}), "Hi");
  const auto report = json_of(fut({"inspect", "-m", path, "-o", "json"}));
  EXPECT_EQ(report.at("chat_template"), "not recognised");
}

}  // namespace
}  // namespace fut::test
