// What goes to which stream and when: the reply alone on standard output, whole characters, stop
// texts that never show, writes that fail.
#include <csignal>

#include "tests/cli/fut_process.h"

namespace fut::test {
namespace {

ProcessResult raw(const std::string& model, std::vector<std::string> more,
                  ProcessOptions options = {}) {
  std::vector<std::string> words = {"run", "-m", model, "--raw", "-p", "x"};
  words.insert(words.end(), more.begin(), more.end());
  return fut(std::move(words), std::move(options));
}

bool is_valid_utf8(std::string_view bytes) {
  try {
    (void)nlohmann::json(std::string(bytes)).dump();
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

TEST(StandardOutput, HoldsTheReplyAndNothingElse) {
  Script script;
  script.say("x", {"Hi", "<|eot_id|>"}).say("\n\n", {"Hi"});
  const std::string model = script.write();
  expect_success(raw(model, {}), "Hi");
  // The chat form ends with one newline.
  expect_success(fut({"run", "-m", model, "-p", "x"}), "Hi\n");
}

TEST(StandardOutput, IsTheSameAtEveryVerbosity) {
  Script script;
  script.say("x", {"Hi", "<|eot_id|>"});
  const std::string model = script.write();
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{"-v"},
                                             {"-vv"},
                                             {"-v", "-v", "-v"},
                                             {"--verbosity", "5"},
                                             {"-q"},
                                             {"--verbosity=0"},
                                             {"--color", "on", "-v"},
                                             {"--verbose-prompt"}}) {
    expect_success(raw(model, flags), "Hi");
  }
  EXPECT_EQ(raw(model, {}).err, "");
  expect_mentions(raw(model, {"-v", "--seed", "7"}).err,
                  {"temperature", "default", "seed 7 (flag)", "tokens/s"});
}

TEST(StandardOutput, MessagesGoToTheLogFileToo) {
  Script script;
  script.say("x", {"Hi", "<|eot_id|>"});
  const std::string model = script.write();
  const auto log = *script.folder / "log";
  expect_success(raw(model, {"-v", "--log-file", log.string()}), "Hi");
  expect_mentions(read_file(log), {"temperature"});
  expect_failure(raw(model, {"--log-file", "/dev/null/log"}), 1, {"/dev/null/log"});
  // No folders of a mistyped name.
  const auto nowhere = *script.folder / "nowhere";
  expect_failure(raw(model, {"--log-file", (nowhere / "log").string()}), 1,
                 {"--log-file", "no folder", nowhere.string()});
  EXPECT_FALSE(std::filesystem::exists(nowhere));
}

// Results and messages go into no file that a model is made of, nor into each other's.
TEST(StandardOutput, NothingIsWrittenOverAModelOrATextThatIsRead) {
  Script script;
  script.say("x", {"Hi", "<|eot_id|>"});
  const std::filesystem::path model = script.write();
  const auto refused = [&](std::vector<std::string> words, const std::filesystem::path& file,
                           const char* flag) {
    const std::string before = read_file(file);
    words.insert(words.end(), {flag, file.string()});
    expect_failure(fut(words), 2, {flag, file.string(), "written over"});
    EXPECT_TRUE(read_file(file) == before) << file;
  };
  const auto prompt = *script.folder / "prompt";
  write_file(prompt, "x");
  for (const char* name : {"model.safetensors", "config.json", "tokenizer.json"}) {
    for (const char* flag : {"--output-file", "--log-file"}) {
      refused({"run", "-m", model.string(), "-p", "x"}, model / name, flag);
      refused({"tokenize", "-m", model.string(), "-p", "x"}, model / name, flag);
      refused({"inspect", "-m", model.string()}, model / name, flag);
    }
  }
  // By another name, and of a model that is not the one in use.
  const auto link = *script.folder / "link";
  std::filesystem::create_symlink(model / "model.safetensors", link);
  refused({"perplexity", "-f", prompt.string()}, link, "--output-file");
  refused({"run", "-m", model.string(), "-f", prompt.string()}, prompt, "--log-file");
  const std::string both = (*script.folder / "both").string();
  expect_failure(raw(model.string(), {"--output-file", both, "--log-file", both}), 2,
                 {"--output-file " + both, "--log-file " + both, "the same file"});
  EXPECT_FALSE(std::filesystem::exists(both));
}

TEST(StandardOutput, IsADashToo) {
  Script script;
  script.say("x", {"Hi", "<|eot_id|>"});
  const std::string model = script.write();
  expect_success(raw(model, {"--output-file", "-"}), "Hi");
}

TEST(StandardOutput, ColourOnlyOnATerminalAndNotWithNoColor) {
  ProcessOptions options;
  options.error_to_terminal = true;
  options.environment = {{"TERM", "xterm"}};
  const std::vector<std::string> words = {"run", "-m", "/nowhere", "-p", "x"};
  EXPECT_NE(fut(words, options).terminal.find('\033'), std::string::npos);
  options.environment["NO_COLOR"] = "1";
  EXPECT_EQ(fut(words, options).terminal.find('\033'), std::string::npos);
  options.environment = {{"TERM", "dumb"}};
  EXPECT_EQ(fut(words, options).terminal.find('\033'), std::string::npos);
  options.environment = {{"TERM", std::nullopt}};
  EXPECT_EQ(fut(words, options).terminal.find('\033'), std::string::npos);
  EXPECT_EQ(fut(words).err.find('\033'), std::string::npos);
  EXPECT_NE(fut({"run", "-m", "/nowhere", "-p", "x", "--color", "on"}).err.find('\033'),
            std::string::npos);
}

TEST(StandardOutput, ARawReplyOnATerminalEndsItsLine) {
  Script script;
  script.say("x", {"Hi", "<|eot_id|>"});
  ProcessOptions options;
  options.output_kind = ProcessOptions::Output::Terminal;
  EXPECT_EQ(raw(script.write(), {}, options).terminal, "Hi\r\n");
}

// ---- characters --------------------------------------------------------------------------------

TEST(Characters, SpreadOverTokensComeWhole) {
  // An emoji and a Chinese character byte by byte; then a token with the last byte of one character
  // and the first of the next.
  Script script;
  script.say("x", {"\xF0", "\x9F", "\x98", "\x80", "\xE6", "\x97", "\xA5", "word", "\xC3",
                   "\xA9\xC2", "\xA7", "<|eot_id|>"});
  const std::string reply = "\xF0\x9F\x98\x80\xE6\x97\xA5word\xC3\xA9\xC2\xA7";
  const std::string model = script.write();
  const ProcessResult result = raw(model, {});
  expect_success(result, reply);
  for (const OutputChunk& chunk : result.chunks) EXPECT_TRUE(is_valid_utf8(chunk.bytes));
  EXPECT_EQ(json_of(raw(model, {"-o", "json"})).at("text"), reply);
  std::string joined;
  for (const std::string& line : lines_of(raw(model, {"-o", "jsonl"}).out)) {
    const auto object = nlohmann::json::parse(line);
    if (!object.contains("ids")) joined += object.at("text").get<std::string>();
  }
  EXPECT_EQ(joined, reply);
}

TEST(Characters, AppearInTheStepThatCompletesThem) {
  Script script;
  script.say("x", {"\xE6", "\x97", "\xA5", "Hi", "\xC3", "\xA9", "<|eot_id|>"});
  const ProcessResult result = raw(script.write(), {"-o", "jsonl"});
  std::vector<std::string> pieces;
  for (const std::string& line : lines_of(result.out)) {
    const auto object = nlohmann::json::parse(line);
    if (!object.contains("ids")) pieces.push_back(object.at("text"));
  }
  EXPECT_EQ(pieces, (std::vector<std::string>{"\xE6\x97\xA5", "Hi", "\xC3\xA9"}));
}

TEST(Characters, FamilyEmojiSurviveAndUnfinishedOnesAreFlushed) {
  // Man, woman, girl, boy with joiners. A byte can follow itself only once in a script, so words of
  // two bytes carry it.
  const std::string family =
      "\xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7\xE2\x80\x8D\xF0\x9F"
      "\x91\xA6";
  ScriptedModel model;
  std::string previous = "x";
  for (std::size_t at = 0; at < family.size(); at += 5) {
    const std::string word = family.substr(at, 5);
    model.link(previous, word);
    previous = word;
  }
  model.link(previous, "<|eot_id|>");
  const TempFolder folder;
  expect_success(raw(write_scripted_model(folder / "m", model).string(), {}), family);

  Script cut;
  cut.say("x", {"a", "\xE6", "\x97", "<|eot_id|>"});
  const std::string path = cut.write();
  expect_success(raw(path, {}), "a\xE6\x97");
  // JSON cannot hold half a character; the ids can.
  const auto document = json_of(raw(path, {"-o", "json"}));
  EXPECT_EQ(document.at("text"), "a\xEF\xBF\xBD");
  EXPECT_EQ(document.at("ids").at(1), 0xE6);
}

TEST(Characters, EveryPieceLeavesTheProcessAtOnce) {
  // The script goes round for ever; the reader must see text while the program still runs.
  Script script;
  script.say("x", {"tick", "x"});
  script.model.files.max_position_embeddings = 8192;
  ProcessOptions options;
  options.arguments = {"run", "-m", script.write(), "--raw", "-p", "x", "-n", "-1"};
  Process process(FUT_BINARY, on_cpu_in_f32(options));
  EXPECT_TRUE(process.wait_for_output("tickxtick"));
  process.send_signal(SIGINT);
  EXPECT_EQ(process.finish().exit_code, 130);
}

// ---- stop texts --------------------------------------------------------------------------------

class StopTexts : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    script = std::make_unique<Script>();
    script->say("x", {"Hel", "lo", " EN", "D!", " more", "<|eot_id|>"});
    script->say("y", {"\xC3", "\xA9", "z", "<|eot_id|>"});
    script->say("w", {"Hey", " E", "<|eot_id|>"});
    script->say("u", {"aa", "a", "b", "c", "<|eot_id|>"});
    model = script->write();
  }
  static void TearDownTestSuite() { script.reset(); }
  static ProcessResult stop_at(const std::string& prompt, const std::vector<std::string>& stops,
                               bool json = false) {
    std::vector<std::string> words = {"run", "-m", model, "--raw", "-p", prompt};
    for (const std::string& stop : stops) words.insert(words.end(), {"--stop", stop});
    if (json) words.insert(words.end(), {"-o", "json"});
    return fut(words);
  }
  static std::unique_ptr<Script> script;
  static std::string model;
};
std::unique_ptr<Script> StopTexts::script;
std::string StopTexts::model;

TEST_F(StopTexts, SpreadOverTokensNeverShow) {
  expect_success(stop_at("x", {"END"}), "Hello ");
  expect_success(stop_at("x", {"ENX"}), "Hello END! more");
  expect_success(stop_at("x", {"END", "lo"}), "Hel");
  expect_success(stop_at("y", {"\xC3\xA9"}), "");
  expect_success(stop_at("u", {"aab"}), "a");
  const auto document = json_of(stop_at("x", {"zzz", "END"}, true));
  EXPECT_EQ(document.at("finish_reason"), "stop");
  EXPECT_EQ(document.at("stop"), "END");
  EXPECT_EQ(document.at("text"), "Hello ");
}

TEST_F(StopTexts, BeginningsThatCameToNothingAreReleased) {
  expect_success(stop_at("w", {"END"}), "Hey E");
  EXPECT_EQ(json_of(stop_at("w", {"END"}, true)).at("stop"), nullptr);
}

TEST_F(StopTexts, DoNotMatchThePrompt) {
  expect_success(stop_at("END x", {"END "}), "Hello END! more");
  expect_success(stop_at("x", {"x"}), "Hello END! more");
}

TEST_F(StopTexts, MayBeGivenAsReversePrompt) {
  expect_success(fut({"run", "-m", model, "--raw", "-p", "x", "-r", "lo"}), "Hel");
  expect_failure(stop_at("x", {""}), 2, {"--stop"});
}

// ---- failing writes ----------------------------------------------------------------------------

class FailingWrites : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    script = std::make_unique<Script>();
    script->say("x", {"Hi", "<|eot_id|>"}).say("y", {"tick", "y"});
    model = script->write();
  }
  static void TearDownTestSuite() { script.reset(); }
  static std::unique_ptr<Script> script;
  static std::string model;
};
std::unique_ptr<Script> FailingWrites::script;
std::string FailingWrites::model;

TEST_F(FailingWrites, ToAFullDeviceAreErrors) {
  ProcessOptions full;
  full.output_kind = ProcessOptions::Output::File;
  full.output_path = "/dev/full";
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"run", "-m", model, "--raw", "-p", "x"},
           {"run", "-m", model, "--raw", "-p", "x", "-o", "json"},
           {"run", "-m", model, "--raw", "-p", "x", "-o", "jsonl"},
           {"tokenize", "-m", model, "-p", "x"},
           {"inspect", "-m", model},
           {"perplexity", "-m", model, "-f", model + "/config.json", "--window", "16"},
           {"quantize", "-m", model, "-o", (*script->folder / "q").string(), "--overwrite"},
           {"quantize", "-m", model, "-o", (*script->folder / "q").string(), "--overwrite",
            "--json"},
           {"--help"},
           {"--version"}}) {
    expect_failure(fut(words, full), 1, {"standard output"});
  }
  expect_failure(raw(model, {"--output-file", "/dev/full"}), 1, {"/dev/full"});
  expect_failure(raw(model, {"-o", "json", "--output-file", "/dev/full"}), 1, {"/dev/full"});
}

TEST_F(FailingWrites, ToAClosedStreamAreErrors) {
  ProcessOptions closed;
  closed.output_kind = ProcessOptions::Output::Closed;
  expect_failure(raw(model, {}, closed), 1, {"standard output"});
  expect_failure(fut({"--version"}, closed), 1, {"standard output"});
}

TEST_F(FailingWrites, ToAReaderThatWentAwayEndTheRun) {
  const std::string command = std::string(FUT_BINARY) + " run -m " + model +
                              " --raw -p y -n -1 -c 1024 2>&1 >&3 | cat >&2; exit ${PIPESTATUS[0]}";
  ProcessOptions options;
  options.arguments = {"-c", "exec 3> >(head -c 4 > /dev/null); " + command};
  const ProcessResult result = run_process("/bin/bash", on_cpu_in_f32(options));
  EXPECT_EQ(result.exit_code, 1) << result.err;
  expect_mentions(result.err, {"standard output"});
}

TEST_F(FailingWrites, ToAFileLargerThanAllowedAreErrorsNotSignals) {
  const std::string file = (*script->folder / "big").string();
  const std::string command = std::string("ulimit -f 1; exec ") + FUT_BINARY + " run -m " + model +
                              " --raw -p y -n 1000 --output-file " + file;
  ProcessOptions options;
  options.arguments = {"-c", command};
  const ProcessResult result = run_process("/bin/bash", on_cpu_in_f32(options));
  EXPECT_EQ(result.signal, 0);
  EXPECT_EQ(result.exit_code, 1) << result.err;
  expect_mentions(result.err, {file});
}

TEST_F(FailingWrites, AnOutputFileHoldsTheReplyAndOnlyThat) {
  const auto file = *script->folder / "reply";
  write_file(file, "something longer that was there before");
  expect_success(raw(model, {"--output-file", file.string()}), "");
  EXPECT_EQ(read_file(file), "Hi");
  expect_failure(raw(model, {"--output-file", "/dev/null/reply"}), 1, {"/dev/null/reply"});
  // A run that fails before it has a result leaves the old file as it was.
  expect_failure(fut({"run", "-m", "/nowhere", "-p", "x", "--output-file", file.string()}), 3, {});
  EXPECT_EQ(read_file(file), "Hi");
}

}  // namespace
}  // namespace fut::test
