// Surroundings that fail: disks, terminals that have to be as they were, streams that end, folders that are
// closed. What is said, the exit code, and that nothing is lost. Faults of files that are read or written
// call by call are in unit/failing_calls_test.cpp.
#include <csignal>
#include <fmt/format.h>
#include <limits>
#include <sys/stat.h>

#include "tests/cli/quantized_case.h"
#include "tests/support/safetensors_writer.h"

namespace fut::test {
namespace {

using nlohmann::json;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Faults : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    script = std::make_unique<Script>();
    script->say("x", {"Hi", "<|eot_id|>"}).say("\n\n", {"tick", "-", "tock", "tick"});
    script->say("w", {"a", "b", "y", "<|eot_id|>"});
    script->model.files.max_position_embeddings = 8192;
    model = script->write();
  }
  static void TearDownTestSuite() { script.reset(); }

  // The same model with an embedding of `token` that is not finite: so are the logits behind it, and no others.
  [[nodiscard]] std::string poisoned(std::string_view token, float value) const {
    const std::filesystem::path folder = folder_ / fmt::format("poisoned-{}", value);
    std::filesystem::copy(model, folder);
    std::vector<NamedTensor> tensors = scripted_tensors(script->model);
    NamedTensor& embedding = tensor_named(tensors, "model.embed_tokens.weight");
    const auto id = static_cast<std::size_t>(script->model.token(token));
    const std::size_t row_bytes = embedding.bytes.size() / ScriptedModel::kVocabSize;
    const NamedTensor row = make_tensor("", DType::BF16, {ScriptedModel::kVocabSize},
                                        std::vector<float>(ScriptedModel::kVocabSize, value));
    EXPECT_EQ(row.bytes.size(), row_bytes);
    embedding.bytes.replace(id * row_bytes, row_bytes, row.bytes);
    write_safetensors(folder / "model.safetensors", tensors);
    return folder.string();
  }

  [[nodiscard]] std::string path(std::string_view name) const { return (folder_ / name).string(); }
  [[nodiscard]] std::string prompts(int count, const std::string& row) const {
    std::string rows;
    for (int i = 0; i < count; ++i) rows += row + "\n";
    write_file(folder_ / "prompts.jsonl", rows);
    return path("prompts.jsonl");
  }

  TempFolder folder_;
  static std::unique_ptr<Script> script;
  static std::string model;
};
std::unique_ptr<Script> Faults::script;
std::string Faults::model;

// ---- reading -----------------------------------------------------------------------------------

// The first page of a process's memory gives the system's own EIO.
TEST_F(Faults, ReadsThatFailNameTheFileAndTheReason) {
  const std::string memory = "/proc/self/mem";
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"run", "-m", model, "--raw", "-f", memory},
           {"run", "-m", model, "-p", "x", "-sysf", memory},
           {"run", "-m", model, "-i", memory, "--output-file", path("r")},
           {"tokenize", "-m", model, "-f", memory},
           {"perplexity", "-m", model, "-f", memory}}) {
    expect_failure(fut(words), 3, {memory, "Input/output error"});
  }
  expect_failure(fut({"run", "-m", model, "-p", "x", "--config", memory}), 3, {memory, "read"});
}

// ---- writing -----------------------------------------------------------------------------------

TEST_F(Faults, MessagesThatCannotBeWrittenLoseNoResult) {
  for (const char* redirection : {"2>/dev/full", "2>&-", "2>/dev/null"}) {
    const std::string line = "exec \"$0\" run -m \"$1\" --raw -p x -v ";
    expect_success(shell(line + redirection, {model}), "Hi");
    EXPECT_EQ(shell(std::string("exec \"$0\" run -m /nowhere -p x ") + redirection, {}).exit_code,
              3);
  }
}

TEST_F(Faults, AReaderOfABatchThatGoesAwayGotWholeLines) {
  const std::string input =
      prompts(40, R"({"prompt": "\n\n", "raw": true, "max_tokens": 50, "seed": 1})");
  const ProcessResult result =
      shell("\"$0\" run -m \"$1\" -i \"$2\" 2>\"$3\" | head -n 2; exit ${PIPESTATUS[0]}",
            {model, input, path("errors")});
  EXPECT_EQ(result.exit_code, 1);
  const std::vector<std::string> lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 2U);
  for (const std::string& line : lines) EXPECT_EQ(json::parse(line).at("ids").size(), 50U);
  expect_mentions(read_file(path("errors")), {"standard output", "reader went away"});
}

TEST_F(Faults, TerminationLeavesWholeLinesOfABatch) {
  ProcessOptions options;
  options.arguments = {"run", "-m", model, "-i",
                       prompts(500, R"({"prompt": "\n\n", "raw": true, "max_tokens": 50})")};
  for (const int signal : {SIGTERM, SIGHUP}) {
    Process process(FUT_BINARY, on_cpu_in_f32(options));
    ASSERT_TRUE(process.wait_for_output("\n"));
    process.send_signal(signal);
    const ProcessResult result = process.finish();
    EXPECT_EQ(result.exit_code, 128 + signal) << result.err;
    EXPECT_TRUE(result.out.ends_with("\n"));
    int index = 0;
    for (const std::string& line : lines_of(result.out)) {
      EXPECT_EQ(json::parse(line).at("index"), index++);
    }
    EXPECT_LT(index, 500);
    expect_mentions(result.err, {fmt::format("behind {} of 500 rows", index)});
  }
}

TEST_F(Faults, ClosedFoldersAndNoHomeStopNoReply) {
  // As somebody who may write nowhere: the superuser may write everywhere.
  const std::string nobody =
      ::geteuid() == 0 ? "setpriv --reuid 65534 --regid 65534 --clear-groups -- " : std::string();
  const std::filesystem::path closed = folder_ / "closed";
  std::filesystem::copy(model, closed);
  for (const auto& entry : std::filesystem::directory_iterator(closed)) {
    ASSERT_EQ(::chmod(entry.path().c_str(), 0444), 0);
  }
  ASSERT_EQ(::chmod(closed.c_str(), 0555), 0);
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0755), 0);
  for (const std::optional<std::string>& home :
       {std::optional(closed.string()), std::optional<std::string>(std::nullopt)}) {
    ProcessOptions options = with_variables({{"HOME", home}});
    options.input = "hello\n/save talk.json\n";
    const ProcessResult result =
        shell("cd \"$1\"; exec " + nobody + "\"$0\" chat -m . -n 4 --history-file \"$1/history\"",
              {closed.string()}, options);
    EXPECT_EQ(result.out, "tick-tocktick\n") << result.err;
    EXPECT_EQ(result.exit_code, 1) << result.err;  // of /save alone
    expect_mentions(result.err, {"talk.json", "Permission denied"});
  }
  expect_failure(
      shell("exec " + nobody + "\"$0\" run -m \"$1\" --raw -p x --output-file \"$1/out\"",
            {closed.string()}),
      1, {"closed/out", "Permission denied"});
  EXPECT_EQ(names_in(closed), names_in(model));
  ASSERT_EQ(::chmod(closed.c_str(), 0755), 0);
}

// ---- the terminal ------------------------------------------------------------------------------

// A chat that a shell waits for, so that the terminal can be looked at when the chat is over.
class TerminalAfterwards : public Faults {
 protected:
  [[nodiscard]] ProcessOptions chat(std::vector<std::string> more = {}) const {
    ProcessOptions o;
    o.arguments = {
        "-c",       "trap : TERM HUP INT; \"$0\" \"$@\"; echo left with $? >&2; read line; exit 0",
        FUT_BINARY, "chat",
        "-m",       model};
    o.arguments.insert(o.arguments.end(), more.begin(), more.end());
    o.input_kind = ProcessOptions::Input::Terminal;
    o.error_to_terminal = true;
    o.environment = {{"TERM", "xterm"}, {"HOME", folder_.path().string()}, {"NO_COLOR", "1"}};
    return on_cpu_in_f32(std::move(o));
  }
  // The chat is over: the terminal takes lines again, and pastes as it always did.
  static void expect_restored(Process& process, int code) {
    ASSERT_TRUE(process.wait_for_terminal(fmt::format("left with {}", code)))
        << process.finish().terminal;
    EXPECT_TRUE(process.terminal_is_as_before());
    process.write("\n");
    const std::string shown = process.finish().terminal;
    EXPECT_GT(shown.rfind("\033[?2004l"), shown.rfind("\033[?2004h"));
  }
};

TEST_F(TerminalAfterwards, IsAsItWasWhateverEndsAPrompt) {
  const struct {
    int signal;
    const char* keys;
    int code;
  } ends[] = {{SIGTERM, "", 143},
              {SIGHUP, "", 129},
              {SIGTERM, "half a line", 143},
              {0, "\x04", 0},
              {0, "/exit\r", 0}};
  for (const auto& end : ends) {
    Process process("/bin/sh", chat());
    ASSERT_TRUE(process.wait_for_terminal("> "));
    EXPECT_FALSE(process.terminal_is_as_before());  // the editor has it
    process.write(end.keys);
    if (end.signal != 0) {
      ASSERT_EQ(::kill(-process.pid(), end.signal), 0);
    }
    expect_restored(process, end.code);
  }
}

TEST_F(TerminalAfterwards, IsAsItWasWhateverEndsAReply) {
  for (const int signal : {SIGTERM, SIGHUP}) {
    Process process("/bin/sh", chat({"-n", "-1"}));
    ASSERT_TRUE(process.wait_for_terminal("> "));
    process.write("hello\r");
    ASSERT_TRUE(process.wait_for_output("tick-tocktick"));
    ASSERT_EQ(::kill(-process.pid(), signal), 0);
    expect_restored(process, 128 + signal);
  }
}

TEST_F(TerminalAfterwards, IsAsItWasWhereTheReplyFails) {
  ProcessOptions options = chat();
  options.arguments[5] = poisoned("\n\n", kInfinity);  // which the chat form ends with
  Process process("/bin/sh", options);
  ASSERT_TRUE(process.wait_for_terminal("> "));
  process.write("hello\r");
  ASSERT_TRUE(process.wait_for_terminal("not finite"));
  expect_restored(process, 1);
}

// ---- logits ------------------------------------------------------------------------------------

TEST_F(Faults, LogitsThatAreNotFiniteEndTheReplyWithStepAndPlace) {
  for (const float value : {kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    const std::vector<std::string> words = {"run", "-m", poisoned("b", value), "--raw", "-p", "w"};
    const ProcessResult text = fut(words);
    EXPECT_EQ(text.exit_code, 1);
    EXPECT_EQ(text.out, "ab");  // what was said stays, and nothing is added
    expect_mentions(text.err, {"step 3 of the reply", "position 4", "not finite"});
    for (const std::vector<std::string>& more : std::vector<std::vector<std::string>>{
             {"-o", "json"}, {"-o", "json", "--temp", "1", "--top-k", "5", "-s", "1"}}) {
      std::vector<std::string> all = words;
      all.insert(all.end(), more.begin(), more.end());
      const ProcessResult result = fut(all);
      EXPECT_EQ(result.exit_code, 1);
      const json document = json_of(result);
      EXPECT_EQ(document.at("finish_reason"), "error");
      EXPECT_EQ(document.at("text"), "ab");
      EXPECT_EQ(document.at("error").at("code"), 1);
    }
  }
}

TEST_F(Faults, LogitsOfARowThatAreNotFiniteStopNoOther) {
  write_file(folder_ / "p",
             "{\"prompt\": \"x\"}\n{\"prompt\": \"w\", \"max_tokens\": 20}\n{\"prompt\": \"x\"}\n");
  const ProcessResult result =
      fut({"run", "-m", poisoned("b", kInfinity), "--raw", "-i", path("p"), "-b", "3"});
  EXPECT_EQ(result.exit_code, 1);
  const std::vector<std::string> lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(json::parse(lines[0]).at("text"), "Hi");
  const json bad = json::parse(lines[1]);
  EXPECT_FALSE(bad.contains("text"));
  expect_mentions(bad.at("error").at("message").get<std::string>(), {"step 3", "position 4"});
  EXPECT_EQ(json::parse(lines[2]).at("text"), "Hi");
}

TEST_F(Faults, MatricesOfZerosAndOfVanishingNumbersAreQuantisedAndRun) {
  const auto change = [](const char* zeros, const char* tiny) {
    return [=](std::vector<NamedTensor>& tensors) {
      NamedTensor& zero = tensor_named(tensors, zeros);
      zero = zero_tensor(zeros, zero.shape);
      NamedTensor& small = tensor_named(tensors, tiny);
      // The least BF16 that there is.
      for (std::size_t i = 0; i < small.bytes.size(); ++i) small.bytes[i] = i % 2 == 0 ? 1 : 0;
    };
  };
  const std::string text = model + "/config.json";
  const std::string odd = write_changed_toy_model(folder_ / "odd", small_quantizable_model(),
                                                  change("model.layers.0.self_attn.k_proj.weight",
                                                         "model.layers.1.mlp.down_proj.weight"))
                              .string();
  const ProcessResult made =
      fut({"quantize", "-m", odd, "-o", path("q"), "--method", "gptq", "--calib", text});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  for (const char* precision : {"int4", "fp8"}) {
    const json reply = json_of(fut({"run", "-m", path("q"), "--precision", precision, "--raw", "-p",
                                    "abc", "-n", "5", "--ignore-eos", "-o", "json"}));
    EXPECT_EQ(reply.at("finish_reason"), "length") << precision;
    EXPECT_EQ(reply.at("ids").size(), 5U);
  }
  // Inputs that are all zero have no statistics that a quantiser could go by.
  const std::string mute = write_changed_toy_model(folder_ / "mute", small_quantizable_model(),
                                                   change("model.layers.0.self_attn.v_proj.weight",
                                                          "model.layers.1.mlp.down_proj.weight"))
                               .string();
  expect_failure(
      fut({"quantize", "-m", mute, "-o", path("none"), "--method", "gptq", "--calib", text}), 3,
      {"layers.0.o_proj", "all 128 inputs are zero"});
  EXPECT_FALSE(std::filesystem::exists(path("none")));
}

// ---- ids outside of the vocabulary --------------------------------------------------------------

// A tokenizer with one token more than the model has rows: a text that holds it is refused, wherever it comes
// from.
TEST_F(Faults, TokensThatTheModelLacksAreRefusedFromWhereverTheyCome) {
  const std::filesystem::path small = write_toy_model(folder_ / "small", small_quantizable_model());
  json tokenizer = json::parse(read_file(small / "tokenizer.json"));
  json added = tokenizer.at("added_tokens").at(0);
  added["id"] = 512;
  added["content"] = "zebra";
  added["special"] = false;
  tokenizer["added_tokens"].push_back(added);
  write_file(small / "tokenizer.json", tokenizer.dump());
  write_file(folder_ / "text", "a zebra" + std::string(300, 'a'));
  write_file(folder_ / "rows",
             "{\"prompt\": \"ab\"}\n{\"prompt\": \"a zebra\"}\n{\"prompt\": \"b\"}\n");
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"run", "--raw", "-p", "a zebra", "-n", "2"},
           {"run", "--raw", "-f", path("text"), "-n", "2"},
           {"perplexity", "-f", path("text"), "--window", "64"},
           {"quantize", "-o", path("q"), "--calib", path("text")}}) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {"-m", small.string()});
    expect_failure(fut(all), 3, {"id 512", "512 ids"});
  }
  EXPECT_FALSE(std::filesystem::exists(path("q")));
  const ProcessResult rows =
      fut({"run", "-m", small.string(), "--raw", "-n", "2", "-i", path("rows")});
  EXPECT_EQ(rows.exit_code, 3);
  const std::vector<std::string> lines = lines_of(rows.out);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_TRUE(json::parse(lines[0]).contains("text")) << lines[0];
  EXPECT_EQ(json::parse(lines[1]).at("error").at("code"), 3);
  EXPECT_TRUE(json::parse(lines[2]).contains("text")) << lines[2];
}

}  // namespace
}  // namespace fut::test
