// fut compare, fut check and fut selftest: two precisions on one prompt, a model against the reference,
// the machine against what is known.
#include "tests/cli/quantized_case.h"

namespace fut::test {
namespace {

std::string demo() {
  return source_path("configs/demo-6m").string();
}

TEST(Compare, AModelAgainstItselfDiffersInNothing) {
  const ProcessResult result = fut({"compare", "-m", demo(), "-p", "Tell me a story.", "-n", "12",
                                    "--precision", "bf16", "--against", "bf16", "-o", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto document = json_of(result);
  EXPECT_TRUE(document.at("first_difference").is_null());
  EXPECT_EQ(document.at("mean_kl"), 0);
  EXPECT_EQ(document.at("first").at("ids"), document.at("second").at("ids"));
  ASSERT_EQ(document.at("positions").size(), 12U);
  for (const auto& position : document.at("positions")) {
    EXPECT_EQ(position.at("kl"), 0);
    EXPECT_TRUE(position.at("left_top5").empty());
    // Greedy: what was said is the best token.
    EXPECT_EQ(position.at("best").at(0), position.at("id"));
  }
}

TEST(Compare, ShowsWhereTwoPrecisionsPart) {
  TempFolder folder;
  const ProcessResult result = fut({"compare", "-m", demo(), "-p", "Tell me a story.", "-n", "24",
                                    "--precision", "int4", "--cache-dir", folder.path().string()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  expect_mentions(result.out,
                  {"int4, cache int4", "| bf16, cache bf16", "mean KL", "same best token",
                   "farthest apart", "MiB of weights", "first token"});
}

TEST(Compare, WithoutRoomForACopyNothingElseIsCompared) {
  const TempFolder folder;
  const auto model = write_toy_model(folder.path() / "toy", small_quantizable_model());
  const ProcessResult result = shell("ulimit -f 64; exec \"$0\" compare -m \"$1\" --raw -p x -n 4",
                                     {model.string()}, in_default_precision(folder.path()));
  expect_failure(result, 1, {"error", "model.safetensors"});
  EXPECT_EQ(result.err.find("bf16"), std::string::npos) << result.err;
}

TEST(Compare, RefusesWhatCannotBeCompared) {
  expect_failure(fut({"compare", "-m", demo()}), 2, {"-p"});
  expect_failure(fut({"compare", "-m", demo(), "-p", "x", "--against", "/nowhere"}), 3,
                 {"/nowhere"});
  Script script;
  const std::string other = script.write();
  expect_failure(
      fut({"compare", "-m", demo(), "-p", "x", "--precision", "bf16", "--against", other + ":f32"}),
      3, {"512"});
  // The same tokenizer, and rows of logits that go on behind its tokens.
  const TempFolder folder;
  ToyModelOptions wide;
  wide.files.config_patch = {{"vocab_size", 528}};
  const auto widened =
      write_changed_toy_model(folder.path() / "wide", wide, [](std::vector<NamedTensor>& tensors) {
        for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
          NamedTensor& tensor = tensor_named(tensors, name);
          tensor.bytes.resize(tensor.bytes.size() / 512 * 528);
          tensor.shape[0] = 528;
        }
      });
  const auto plain = write_toy_model(folder.path() / "plain");
  for (const auto& [first, second] : {std::pair(plain, widened), std::pair(widened, plain)}) {
    expect_failure(fut({"compare", "-m", first.string(), "-p", "x", "--precision", "f32",
                        "--against", second.string() + ":f32"}),
                   3, {"512", "528", "vocab_size"});
  }
}

TEST(Check, TheCpuIsTheReferenceWhateverItsThreads) {
  const ProcessResult result =
      fut({"check", "-m", demo(), "--steps", "2", "--precision", "bf16", "-o", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto document = json_of(result);
  EXPECT_EQ(document.at("same_bits"), true);
  EXPECT_EQ(document.at("same_best"), 2);
  EXPECT_GT(document.at("ops").size(), 10U);
  for (const auto& op : document.at("ops")) EXPECT_EQ(op.at("largest"), 0);
  EXPECT_EQ(document.at("ops").back().at("op"), "whole step");
}

TEST(Check, TellsOpsAndLayers) {
  const ProcessResult result =
      fut({"check", "-m", demo(), "--steps", "1", "--precision", "bf16", "-p", "The old king"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  expect_mentions(result.out,
                  {"against the CPU reference", "o_proj", "lm_head", "whole step", "1 of 1 steps"});
}

TEST(Selftest, AllIsWellHere) {
  ProcessOptions options;
  options.environment = {{"FUT_PRECISION", std::nullopt}, {"FUT_DEVICE", std::nullopt}};
  const ProcessResult result = fut({"selftest", "--json"}, options);
  ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
  const auto document = json_of(result);
  EXPECT_EQ(document.at("failed"), 0);
  ASSERT_EQ(document.at("parts").size(), 6U);
  for (const auto& part : document.at("parts")) EXPECT_EQ(part.at("ok"), true) << part;
  expect_mentions(fut({"selftest"}, options).out, {"ok", "float32 on the CPU", "all is well"});
}

}  // namespace
}  // namespace fut::test
