// tests/bench/alternate.py, which measures fut and PyTorch in turn: with the real fut on the CPU, and in
// PyTorch's place a program that answers what it was told to.
#include "tests/cli/fut_process.h"

namespace fut::test {
namespace {

constexpr const char* kPeer = R"py(
import json, sys
print("something that is no answer")
print(json.dumps({"ready": True}), flush=True)
built = set()
for line in sys.stdin:
    words = line.split()
    if words[0] == "build" and ("int4-b8" in words[1] or "padded" in words[1]):
        answer = {"line": line, "error": "no kernel for it"}
    elif words[0] == "build":
        built.add(words[1])
        answer = {"built": words[1], "attention": "some", "built_s": 1.5}
    elif words[0] == "drop":
        built.remove(words[1])
        answer = {"dropped": words[1]}
    elif words[0] == "read":
        answer = {"case": "read", "TBps": 4.5}
    elif words[0].startswith("gemm-fp8"):
        answer = {"case": words[0], "TFLOPs": 1400}
    elif words[0] in built and float(words[1]) > 0:
        slow = "bf16" in words[0] or "tuned" in words[0]
        answer = {"case": words[0], "us_block": 4e6 if slow else 3e6}
    else:
        answer = {"line": line, "error": "not built"}
    print(json.dumps(answer), flush=True)
)py";

class Alternating {
 public:
  Alternating() {
    write_file((folder_.path() / "peer.py").string(), kPeer);
    for (const char* size : {"8b", "70b"}) {
      write_file((folder_.path() / (std::string("llama-3.1-") + size + ".json")).string(),
                 R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 128,
        "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 300,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0})");
    }
  }

  // Empty where there is no Python.
  [[nodiscard]] static std::string missing() {
    ProcessOptions options;
    options.arguments = {"python3", "-c", "pass"};
    return run_process("/usr/bin/env", options).exit_code == 0 ? "" : "no python3";
  }

  [[nodiscard]] ProcessResult run(std::vector<std::string> points, const std::string& binary) {
    ProcessOptions options;
    options.arguments = {"python3",
                         FUT_SOURCE_DIR "/tests/bench/alternate.py",
                         "--fut",
                         binary,
                         "--configs",
                         folder_.path().string(),
                         "--peers",
                         (folder_.path() / "peer.py").string(),
                         "--device",
                         "cpu",
                         "--precision",
                         "bf16",
                         "--prefill-precision",
                         "bf16",
                         "--prefill-layers",
                         "1",
                         "--context",
                         "20",
                         "--rounds",
                         "3",
                         "--round",
                         "2",
                         "--warm-up",
                         "1",
                         "--out",
                         out()};
    options.arguments.insert(options.arguments.end(), points.begin(), points.end());
    options.environment["PYTHONDONTWRITEBYTECODE"] = "1";
    return run_process("/usr/bin/env", options);
  }
  [[nodiscard]] std::string out() const { return (folder_.path() / "out.jsonl").string(); }

 private:
  TempFolder folder_;
};

TEST(Alternate, ComparesWithTheFasterPeerAtEachPoint) {
  if (const std::string why = Alternating::missing(); !why.empty()) GTEST_SKIP() << why;
  Alternating a;
  const ProcessResult result = a.run({"8b:1", "70b:8", "step:32"}, FUT_BINARY);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const std::vector<std::string> lines = lines_of(read_file(a.out()));
  ASSERT_EQ(lines.size(), 3U) << result.out;
  for (const std::string& line : lines) {
    const auto r = nlohmann::json::parse(line);
    const std::string point = r.at("point");
    EXPECT_EQ(r.at("rounds"), 3);
    EXPECT_EQ(r.at("peer_read_TBps"), 4.5);
    EXPECT_GT(r.at("ours_read_TBps").get<double>(), 1e-4);
    const double ours = r.at("ours").at("us");
    EXPECT_LE(r.at("ours").at("us_least"), ours);
    EXPECT_GE(r.at("ours").at("us_most"), ours);
    const bool lacks_int4 = point == "70b:8";
    EXPECT_EQ(r.at("faster"), lacks_int4 ? "bf16" : "int4");
    EXPECT_EQ(r.at("missing").size(), lacks_int4 ? 1U : 0U) << line;
    EXPECT_DOUBLE_EQ(r.at("ratio").get<double>(), (lacks_int4 ? 4e6 : 3e6) / ours);
    EXPECT_NE(result.out.find("\n" + point), std::string::npos) << result.out;
  }
}

TEST(Alternate, ComparesPromptsByOperationsASecond) {
  if (const std::string why = Alternating::missing(); !why.empty()) GTEST_SKIP() << why;
  Alternating a;
  const ProcessResult result = a.run({"prefill-8b:1x512", "prefill-70b:mixed"}, FUT_BINARY);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const std::vector<std::string> lines = lines_of(read_file(a.out()));
  ASSERT_EQ(lines.size(), 2U) << result.out;
  for (const std::string& line : lines) {
    const auto r = nlohmann::json::parse(line);
    const double ours = r.at("ours").at("us");
    EXPECT_EQ(r.at("faster"), "fp8");
    EXPECT_DOUBLE_EQ(r.at("ratio").get<double>(), 3e6 / ours);
    EXPECT_EQ(r.at("tuned").at("us"), 4e6);
    EXPECT_EQ(r.at("built_s").at("tuned"), 1.5);
    EXPECT_EQ(r.at("missing").contains("padded"), r.at("point") == "prefill-70b:mixed");
    EXPECT_DOUBLE_EQ(r.at("PFLOPs").at("ours").get<double>(),
                     r.at("flops").get<double>() / ours / 1e9);
    EXPECT_DOUBLE_EQ(r.at("peer_product_PFLOPs").get<double>(), 1.4);
  }
  // Nothing begins when the time is over.
  const ProcessResult late = a.run({"--seconds", "-1", "prefill-8b"}, FUT_BINARY);
  EXPECT_EQ(late.exit_code, 1);
  expect_mentions(late.out, {"prefill-8b:8x2048", "left out"});
}

TEST(Alternate, SaysWhichPointFailedAndGoesOn) {
  if (const std::string why = Alternating::missing(); !why.empty()) GTEST_SKIP() << why;
  Alternating a;
  const ProcessResult result = a.run({"8b:1", "step:1"}, "/nowhere/fut");
  EXPECT_EQ(result.exit_code, 1);
  for (const char* point : {"8b:1 ", "step:1 "}) {
    EXPECT_NE(result.out.find(point), std::string::npos) << result.out;
  }
  expect_mentions(result.out, {"FAILED", "/nowhere/fut"});
  EXPECT_EQ(a.run({"8b:3"}, FUT_BINARY).exit_code, 2);
}

}  // namespace
}  // namespace fut::test
