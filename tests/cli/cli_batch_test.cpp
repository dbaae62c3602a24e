// fut run -i: many prompts at a time. Replies are those of single runs, in order, whole and once,
// whatever happens to rows, processes and disks on the way.
#include <algorithm>
#include <csignal>
#include <fmt/format.h>
#include <thread>

#include "tests/cli/quantized_case.h"

namespace fut::test {
namespace {

using nlohmann::json;

class BatchRun : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    script = std::make_unique<Script>();
    script->say("x", {"Hel", "lo", " EN", "D!", " more", "<|eot_id|>"});
    script->say("y", {"\xC3", "\xA9", "z", "<|eot_id|>"});
    script->say("t", {"tick", "t"});  // goes round
    script->say("\n\n", {"Hi", "<|eot_id|>"});
    script->model.files.max_position_embeddings = 4096;
    model = script->write();
  }
  static void TearDownTestSuite() { script.reset(); }

  [[nodiscard]] std::string path(std::string_view name) const { return (folder_ / name).string(); }
  [[nodiscard]] std::string prompts(const std::string& rows) const {
    write_file(folder_ / "prompts.jsonl", rows);
    return path("prompts.jsonl");
  }
  [[nodiscard]] std::string replies() const { return path("replies.jsonl"); }
  [[nodiscard]] static std::vector<std::string> words(const std::string& input,
                                                      std::vector<std::string> more) {
    std::vector<std::string> all = {"run", "-m", model, "-i", input};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  [[nodiscard]] static ProcessResult batch(const std::string& input,
                                           std::vector<std::string> more = {},
                                           ProcessOptions options = {}) {
    return fut(words(input, std::move(more)), std::move(options));
  }
  // Every line is one object.
  [[nodiscard]] static std::vector<json> parse(std::string_view text) {
    EXPECT_TRUE(text.empty() || text.back() == '\n');
    std::vector<json> rows;
    for (const std::string& line : lines_of(text)) {
      rows.push_back(json::parse(line, nullptr, false));
      EXPECT_FALSE(rows.back().is_discarded()) << line;
    }
    return rows;
  }
  // What does not depend on clocks or dice.
  [[nodiscard]] static std::vector<json> lasting(std::vector<json> rows) {
    for (json& row : rows) {
      row.erase("timings");
      row.erase("seed");
    }
    return rows;
  }
  [[nodiscard]] std::vector<json> written() const { return parse(read_file(replies())); }

  TempFolder folder_;
  static std::unique_ptr<Script> script;
  static std::string model;
};
std::unique_ptr<Script> BatchRun::script;
std::string BatchRun::model;

constexpr const char* kMixed =
    "{\"id\": \"a\", \"prompt\": \"x\", \"raw\": true}\n"
    "{\"prompt\": \"t\", \"raw\": true, \"max_tokens\": 50}\n"
    "\n"
    "{\"id\": 7, \"prompt\": \"hello\"}\n"
    "{\"prompt\": \"x\", \"raw\": true, \"stop\": \"END\", \"temperature\": 0.5, \"seed\": 3}\n"
    "{\"messages\": [{\"role\": \"user\", \"content\": \"hello\"}], \"max_tokens\": 1}\n"
    "{\"prompt\": \"y\", \"raw\": true, \"stop\": [\"q\", \"z\"], \"logprobs\": 2}\n";

TEST_F(BatchRun, GivesARowForEachInTheirOrderWhateverTheBatch) {
  const std::string input = prompts(kMixed);
  const ProcessResult one = batch(input, {"-b", "1"});
  EXPECT_EQ(one.exit_code, 0) << one.err;
  const std::vector<json> rows = parse(one.out);
  ASSERT_EQ(rows.size(), 6U);
  for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i].at("index"), i);
  EXPECT_EQ(rows[0].at("id"), "a");
  EXPECT_EQ(rows[0].at("text"), "Hello END! more");
  EXPECT_EQ(rows[0].at("finish_reason"), "eos");
  EXPECT_EQ(rows[1].at("ids").size(), 50U);
  EXPECT_EQ(rows[1].at("finish_reason"), "length");
  EXPECT_EQ(rows[2].at("id"), 7);
  EXPECT_EQ(rows[2].at("text"), "Hi");
  EXPECT_EQ(rows[3].at("text"), "Hello ");
  EXPECT_EQ(rows[3].at("stop"), "END");
  EXPECT_EQ(rows[3].at("seed"), 3);
  EXPECT_EQ(rows[4].at("text"), "Hi");
  EXPECT_EQ(rows[4].at("finish_reason"), "length");
  EXPECT_EQ(rows[5].at("text"), "\xC3\xA9");  // a character of two tokens
  EXPECT_EQ(rows[5].at("logprobs").size(), 3U);
  EXPECT_FALSE(rows[4].contains("logprobs"));
  for (const char* at_a_time : {"2", "3", "64"}) {
    const ProcessResult result =
        batch(input, {"-b", at_a_time, "--output-file", replies(), "--overwrite"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_EQ(lasting(written()), lasting(rows)) << at_a_time;
  }
}

TEST_F(BatchRun, AReplyIsThatOfARunAlone) {
  TempFolder folder;
  const std::string random = write_toy_model(folder / "m").string();
  std::string rows;
  for (int i = 0; i < 12; ++i) {
    rows += json{{"prompt", std::string(static_cast<std::size_t>(1 + 17 * i), 'a')},
                 {"temperature", i % 3 * 0.5},
                 {"seed", i},
                 {"max_tokens", 3 + 5 * (i % 4)}}
                .dump() +
            "\n";
  }
  const ProcessResult result = fut({"run", "-m", random, "--raw", "-i", prompts(rows), "-b", "5"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::vector<json> lines = parse(result.out);
  ASSERT_EQ(lines.size(), 12U);
  for (const int i : {0, 4, 7, 11}) {
    const auto alone = json_of(fut(
        {"run", "-m", random, "--raw", "-p", std::string(static_cast<std::size_t>(1 + 17 * i), 'a'),
         "--temp", fmt::format("{}", i % 3 * 0.5), "-s", std::to_string(i), "-n",
         std::to_string(3 + 5 * (i % 4)), "-o", "json"}));
    EXPECT_EQ(lines[static_cast<std::size_t>(i)].at("ids"), alone.at("ids")) << i;
  }
}

TEST_F(BatchRun, ABadRowStopsNoOther) {
  const std::string long_text(5000, 'q');
  // So deep that a function which calls itself for each level would run out of stack.
  const std::string nested = std::string(100000, '[') + std::string(100000, ']');
  const struct {
    std::string row;
    int code;
    const char* part;
  } bad[] = {{"no json", 3, "prompts.jsonl:2: the line is not JSON"},
             {"[1]", 3, "object"},
             {R"({"prompt": "x", "id": )" + nested + "}", 3, "levels deep"},
             {R"({"prompt": "x", "prompt": "y"})", 3, "twice"},
             {R"({"prompt": "x", "id": 12345678901234567890123})", 3, "come back changed"},
             {R"({"prompt": "x", "id": [{"a": 0.5}]})", 3, "come back changed"},
             {R"({"prompt": "x", "top_k": )" + nested + "}", 3, "levels deep"},
             {std::string("{\"prompt\": \"x\"}\0 rest", 21), 3, "at byte 16"},
             {R"({"prompt": "x", "top_p": 1e999})", 3, "float64"},
             {R"({"prompt": "x", "a\nb": 1})", 2, "\"a?b\""},
             {R"({"id": 1})", 2, "prompt"},
             {R"({"prompt": "x", "messages": [{"role": "user", "content": "x"}]})", 2, "both"},
             {R"({"prompt": 5})", 3, "prompt"},
             {R"({"prompt": "x", "temprature": 1})", 2, "temperature"},
             {R"({"prompt": "x", "top_p": 2})", 2, "top_p"},
             {R"({"prompt": "x", "top_k": "many"})", 2, "top_k"},
             {R"({"prompt": "x", "max_tokens": 0})", 2, "max_tokens"},
             {R"({"prompt": "x", "stop": ["a", ""]})", 2, "stop"},
             {R"({"prompt": "x", "stop": ["a", 3]})", 2, "3 is not a text"},
             {R"({"prompt": "x", "stop": 3})", 2, "3 is not a text"},
             {R"({"prompt": "x", "ignore_eos": "yes"})", 2, "ignore_eos"},
             {R"({"prompt": "x", "raw": true, "system": "s"})", 2, "raw"},
             {R"({"messages": [{"role": "user"}]})", 3, "message 1"},
             {R"({"prompt": ")" + long_text + R"("})", 4, "4096"}};
  std::string rows = "{\"prompt\": \"x\", \"raw\": true}\n";
  for (const auto& b : bad) rows += b.row + "\n";
  rows += "{\"prompt\": \"y\", \"raw\": true}\n";
  const std::string input = prompts(rows);
  const ProcessResult result = batch(input, {"-b", "3", "--output-file", replies()});
  EXPECT_EQ(result.exit_code, 3) << result.err;  // the first one's
  expect_mentions(result.err, {fmt::format("{} of {} rows", std::size(bad), std::size(bad) + 2)});
  const std::vector<json> lines = written();
  ASSERT_EQ(lines.size(), std::size(bad) + 2);
  EXPECT_EQ(lines.front().at("text"), "Hello END! more");
  EXPECT_EQ(lines.back().at("text"), "\xC3\xA9z");
  for (std::size_t i = 0; i < std::size(bad); ++i) {
    const json& line = lines[i + 1];
    EXPECT_EQ(line.at("index"), i + 1);
    EXPECT_FALSE(line.contains("text"));
    EXPECT_EQ(line.at("error").at("code"), bad[i].code) << line;
    expect_mentions(line.at("error").at("message").get<std::string>(), {bad[i].part});
  }
}

TEST_F(BatchRun, AnEmptyPromptIsItsOwnRowsMatter) {
  const std::string input =
      prompts("{\"prompt\": \"x\"}\n{\"prompt\": \"\"}\n{\"prompt\": \"y\"}\n");
  const std::vector<json> with_bos = parse(batch(input, {"--raw", "-n", "3"}).out);
  ASSERT_EQ(with_bos.size(), 3U);
  EXPECT_EQ(with_bos[1].at("timings").at("prompt_tokens"), 1);
  Script no_bos;
  no_bos.say("x", {"Hel", "<|eot_id|>"}).say("y", {"z", "<|eot_id|>"});
  no_bos.model.files.add_bos_token = false;
  const ProcessResult result = fut({"run", "-m", no_bos.write(), "--raw", "-i", input});
  EXPECT_EQ(result.exit_code, 2);
  const std::vector<json> rows = parse(result.out);
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].at("text"), "Hel");
  EXPECT_EQ(rows[1].at("error").at("code"), 2);
  EXPECT_EQ(rows[2].at("text"), "z");
}

TEST_F(BatchRun, TextsOfRowsAreValidUtf8) {
  Script cut;
  cut.say("x", {"a", "\xE6", "\x97", "<|eot_id|>"});
  cut.say("w", {"\xF0\x9F", "\x98", "\x80", "<|eot_id|>"});
  const ProcessResult result = fut({"run", "-m", cut.write(), "--raw", "-i",
                                    prompts("{\"prompt\": \"x\"}\n{\"prompt\": \"w\"}\n")});
  const std::vector<json> rows = parse(result.out);
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].at("text"), "a\xEF\xBF\xBD");  // half a character; the ids have its bytes
  EXPECT_EQ(rows[0].at("ids").at(1), 0xE6);
  EXPECT_EQ(rows[1].at("text"), "\xF0\x9F\x98\x80");
}

TEST_F(BatchRun, StandardInputAndSettingsForAllRows) {
  const ProcessResult result = batch(
      "-", {"--raw", "--stop", "END", "-n", "100"},
      with_input("{\"prompt\": \"x\"}\r\n{\"prompt\": \"x\", \"stop\": \" more\", \"raw\": true}\n"
                 "{\"prompt\": \"hello\", \"raw\": false, \"system\": \"s\"}"));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::vector<json> rows = parse(result.out);
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].at("text"), "Hello ");
  EXPECT_EQ(rows[1].at("text"), "Hello END!");
  EXPECT_EQ(rows[2].at("text"), "Hi");
}

TEST_F(BatchRun, RefusesWhatMakesNoSense) {
  const std::string input = prompts("{\"prompt\": \"x\"}\n");
  expect_failure(batch(path("none.jsonl"), {"--output-file", replies()}), 3, {"none.jsonl"});
  expect_failure(batch(prompts("\n \n"), {"--output-file", replies()}), 2, {"no row"});
  (void)prompts("{\"prompt\": \"x\"}\n");
  expect_failure(batch(input, {"-p", "x"}), 2, {"-i", "-p"});
  // What goes to standard output ends with its error, as -o jsonl has it.
  const ProcessResult no_file = batch(input, {"--resume"});
  EXPECT_EQ(no_file.exit_code, 2);
  expect_mentions(no_file.err, {"--output-file"});
  EXPECT_EQ(json_of(no_file).at("error").at("code"), 2);
  expect_failure(batch(input, {"--resume", "--overwrite", "--output-file", replies()}), 2,
                 {"--resume", "--overwrite"});
  expect_failure(batch(input, {"--output-file", input}), 2, {"is the input"});
  expect_failure(batch(input, {"-b", "0"}), 2, {"-b"});
  expect_failure(fut({"run", "-m", model, "-p", "x", "-b", "2"}), 2, {"-i"});
  expect_failure(fut({"run", "-m", model, "-p", "x", "--resume"}), 2, {"-i"});
  EXPECT_EQ(batch(input, {"-o", "json"}).exit_code, 2);
  // A variable is there for many commands.
  EXPECT_EQ(fut({"run", "-m", model, "-p", "x", "-n", "1"}, with_variables({{"FUT_BATCH", "2"}}))
                .exit_code,
            0);
}

// ---- the file of replies -----------------------------------------------------------------------

// Rows that take a while.
std::string long_rows(int count) {
  std::string rows;
  for (int i = 0; i < count; ++i) {
    rows += json{{"id", i}, {"prompt", "t"}, {"raw", true}, {"max_tokens", 300 + 100 * (i % 3)}}
                .dump() +
            "\n";
  }
  return rows;
}

// Whether `count` whole lines are there before long.
bool wait_for_lines(const std::string& file, std::ptrdiff_t count) {
  for (int tries = 0; tries < 3000; ++tries) {
    std::error_code ignored;
    if (std::filesystem::exists(file, ignored)) {
      const std::string text = read_file(file);
      if (std::count(text.begin(), text.end(), '\n') >= count) return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

TEST_F(BatchRun, KilledAndResumedItIsCompleteAndWithoutDoubles) {
  const std::string input = prompts(long_rows(24));
  ASSERT_EQ(batch(input, {"-b", "4", "--output-file", path("whole.jsonl")}).exit_code, 0);
  const std::vector<json> whole = lasting(parse(read_file(path("whole.jsonl"))));
  ASSERT_EQ(whole.size(), 24U);
  ProcessOptions options;
  options.arguments = words(input, {"-b", "4", "--output-file", replies(), "--resume"});
  int kills = 0;
  for (const int signal : {SIGKILL, SIGINT, SIGKILL}) {
    const std::string before =
        std::filesystem::exists(replies()) ? read_file(replies()) : std::string();
    Process process(FUT_BINARY, on_cpu_in_f32(options));
    ASSERT_TRUE(wait_for_lines(replies(), std::count(before.begin(), before.end(), '\n') + 2));
    process.send_signal(signal);
    const ProcessResult result = process.finish();
    if (result.exit_code == 0) break;  // it was faster
    ++kills;
    if (signal == SIGINT) {
      EXPECT_EQ(result.exit_code, 130);
      expect_mentions(result.err, {"of 24 rows", "--resume"});
    }
    EXPECT_TRUE(read_file(replies()).starts_with(before));
  }
  EXPECT_GE(kills, 1);
  // As a power failure would leave it.
  std::string torn = read_file(replies());
  torn.resize(torn.size() - 20);
  write_file(replies(), torn);
  const ProcessResult rest = batch(input, {"-b", "8", "--output-file", replies(), "--resume"});
  EXPECT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_EQ(lasting(written()), whole);
  const ProcessResult again = batch(input, {"-b", "8", "--output-file", replies(), "--resume"});
  EXPECT_EQ(again.exit_code, 0);
  expect_mentions(again.err, {"nothing is left to do", "24 rows"});
  // Once more there is nothing to do, and no model to load.
  const std::string complete = read_file(replies());
  EXPECT_EQ(batch(input, {"--output-file", replies(), "--resume"}).exit_code, 0);
  EXPECT_EQ(read_file(replies()), complete);
}

TEST_F(BatchRun, AFileThatHoldsSomethingIsNotTouchedUnasked) {
  const std::string input = prompts("{\"prompt\": \"x\", \"raw\": true}\nbad\n");
  EXPECT_EQ(batch(input, {"--output-file", replies()}).exit_code, 3);
  const std::string first = read_file(replies());
  expect_failure(batch(input, {"--output-file", replies()}), 2,
                 {"2 of 2 rows", "--resume", "--overwrite"});
  // Other settings, another row, another model: not these replies.
  expect_failure(batch(input, {"--output-file", replies(), "--resume", "--temp", "1"}), 3,
                 {"line 1", "--overwrite"});
  (void)prompts("{\"prompt\": \"y\", \"raw\": true}\nbad\n");
  expect_failure(batch(input, {"--output-file", replies(), "--resume"}), 3, {"line 1"});
  (void)prompts("{\"prompt\": \"x\", \"raw\": true}\n");
  expect_failure(batch(input, {"--output-file", replies(), "--resume"}), 3,
                 {"more replies than the 1 row"});
  EXPECT_EQ(read_file(replies()), first);
  // More rows may be added to the end.
  (void)prompts("{\"prompt\": \"x\", \"raw\": true}\nbad\n{\"prompt\": \"y\", \"raw\": true}\n");
  EXPECT_EQ(batch(input, {"--output-file", replies(), "--resume"}).exit_code, 3);
  EXPECT_TRUE(read_file(replies()).starts_with(first));
  EXPECT_EQ(written().size(), 3U);
  EXPECT_EQ(batch(input, {"--output-file", replies(), "--overwrite"}).exit_code, 3);
  EXPECT_EQ(written().size(), 3U);
  // What is to be overwritten stays until there is something better.
  const std::string second = read_file(replies());
  std::filesystem::copy(model, folder_ / "empty");
  std::filesystem::remove(folder_ / "empty" / "model.safetensors");
  expect_failure(
      fut({"run", "-m", path("empty"), "-i", input, "--output-file", replies(), "--overwrite"}), 3,
      {"empty"});
  EXPECT_EQ(read_file(replies()), second);
  write_file(replies(), "a letter to my mother\n");
  expect_failure(batch(input, {"--output-file", replies(), "--resume"}), 3, {"line 1", "no reply"});
  EXPECT_EQ(read_file(replies()), "a letter to my mother\n");
}

TEST_F(BatchRun, TwoProcessesDoNotWriteOneFile) {
  const std::string input = prompts(long_rows(24));
  ProcessOptions options;
  options.arguments = words(input, {"-b", "2", "--output-file", replies()});
  Process process(FUT_BINARY, on_cpu_in_f32(options));
  ASSERT_TRUE(wait_for_lines(replies(), 1));
  expect_failure(batch(input, {"--output-file", replies(), "--resume"}), 1, {"another fut run"});
  process.send_signal(SIGTERM);
  EXPECT_EQ(process.finish().exit_code, 143);
}

TEST_F(BatchRun, ALostReplyIsAFailureAndAFullDiskCanBeGoneOnWith) {
  const std::string input = prompts(long_rows(6));
  expect_failure(batch(input, {"--output-file", "/dev/full"}), 1, {"/dev/full"});
  ProcessOptions full;
  full.output_kind = ProcessOptions::Output::File;
  full.output_path = "/dev/full";
  EXPECT_EQ(batch(input, {}, full).exit_code, 1);
  const ProcessResult limited =
      shell("ulimit -f 8; exec \"$0\" run -m \"$1\" -i \"$2\" --output-file \"$3\" -b 1",
            {model, input, replies()});
  EXPECT_EQ(limited.exit_code, 1) << limited.err;
  EXPECT_EQ(limited.signal, 0);
  expect_mentions(limited.err, {"replies.jsonl", "lost"});
  const std::vector<json> kept = written();  // whole lines alone
  EXPECT_GE(kept.size(), 1U);
  EXPECT_LT(kept.size(), 6U);
  EXPECT_EQ(batch(input, {"--output-file", replies(), "--resume"}).exit_code, 0);
  EXPECT_EQ(written().size(), 6U);
  expect_failure(batch(input, {"--output-file", path("no/such/folder/r.jsonl")}), 1,
                 {"no/such/folder"});
}

}  // namespace
}  // namespace fut::test
