// fut plan: what it says of models that are here and of shapes that are not, and that loading says the
// same where it does not fit. Needs no GPU.
#include <algorithm>
#include <iterator>
#include <sstream>

#include "tests/cli/quantized_case.h"

namespace fut::test {
namespace {

nlohmann::json plan_of(std::vector<std::string> words, int exit_code = 0) {
  words.insert(words.begin(), "plan");
  words.insert(words.end(), {"-o", "json"});
  const ProcessResult result =
      fut(words, with_variables({{"FUT_DEVICE", std::nullopt}, {"FUT_PRECISION", std::nullopt}}));
  EXPECT_EQ(result.exit_code, exit_code) << result.err;
  return json_of(result);
}

TEST(Plan, ShapesNeedNoWeights) {
  const auto plan = plan_of({"-m", "llama-3.1-8b", "--gpu", "h200", "-b", "4"});
  EXPECT_EQ(plan.at("fits"), true);
  EXPECT_EQ(plan.at("context_tokens"), 8192);
  EXPECT_EQ(plan.at("batch"), 4);
  EXPECT_EQ(plan.at("largest_context"), 131072);
  std::int64_t sum = 0;
  const auto& memory = plan.at("memory");
  for (const char* row : {"fp8_copy", "int4_copy", "head", "embedding", "kv_cache", "workspace",
                          "history", "operands", "graphs", "driver"}) {
    EXPECT_GT(memory.at(row).get<std::int64_t>(), 0) << row;
    sum += memory.at(row).get<std::int64_t>();
  }
  EXPECT_EQ(memory.at("needed").get<std::int64_t>(), sum);
  EXPECT_LE(memory.at("needed"), memory.at("free"));
  const auto& roofline = plan.at("roofline");
  EXPECT_GT(roofline.at("decode_ms_empty").get<double>(), 0.8);  // 4.1 GB at 4.8 TB/s
  EXPECT_LT(roofline.at("decode_ms_empty").get<double>(), 0.9);
  EXPECT_GT(roofline.at("decode_ms_full"), roofline.at("decode_ms_empty"));
  EXPECT_GT(roofline.at("prefill_ms").get<double>(), 0);
  EXPECT_TRUE(plan.at("changes").empty());
  // By the name of a file, with weights that are folded, not packed.
  const auto bf16 = plan_of({"-m", source_path("configs/llama-3.1-8b.json").string(), "--gpu",
                             "h200", "--precision", "bf16"});
  EXPECT_NEAR(bf16.at("memory").at("layers").get<double>(), 6.98e9 * 2, 0.02e9);
}

TEST(Plan, PrefillHasItsWeightsFromInt4WhereNothingElseFits) {
  const auto fits = plan_of({"-m", "llama-3.1-70b", "--gpu", "h200"});
  EXPECT_EQ(fits.at("prefill_weights"), "fp8");
  EXPECT_FALSE(fits.at("memory").contains("expanded"));
  const auto smaller = plan_of({"-m", "llama-3.1-70b", "--memory", "80"});
  EXPECT_EQ(smaller.at("prefill_weights"), "int4");
  EXPECT_EQ(smaller.at("fits"), true);
  EXPECT_GT(smaller.at("memory").at("expanded").get<std::int64_t>(), 57344 * 8192);
  EXPECT_FALSE(smaller.at("memory").contains("fp8_copy"));
  const auto asked = plan_of({"-m", "llama-3.1-70b", "--gpu", "h200", "--prefill-weights", "int4"});
  EXPECT_EQ(asked.at("prefill_weights"), "int4");
  const auto refused =
      plan_of({"-m", "llama-3.1-70b", "--memory", "80", "--prefill-weights", "fp8"}, 4);
  EXPECT_EQ(refused.at("prefill_weights"), "fp8");
  std::string changes;
  for (const auto& change : refused.at("changes"))
    changes += change.at("what").get<std::string>() + ' ';
  EXPECT_NE(changes.find("--prefill-weights int4"), std::string::npos) << changes;
}

TEST(Plan, WhatDoesNotFitIsExitCode4AndSaysWhatToChange) {
  const auto plan = plan_of({"-m", "llama-3.1-8b", "--memory", "16", "-c", "131072", "-b", "4"}, 4);
  EXPECT_EQ(plan.at("fits"), false);
  EXPECT_GT(plan.at("memory").at("needed"), plan.at("memory").at("free"));
  const auto& changes = plan.at("changes");
  ASSERT_GE(changes.size(), 1U);
  ASSERT_LE(changes.size(), 3U);
  // What is said to be enough is.
  for (const auto& change : changes) {
    if (change.at("is_enough") != true || change.at("what").get<std::string>()[0] != '-') continue;
    std::vector<std::string> words = {"-m", "llama-3.1-8b", "--memory", "16"};
    std::string what = change.at("what").get<std::string>();
    if (what.find("-c ") == what.npos) what += " -c 131072";
    if (what.find("-b ") == what.npos) what += " -b 4";
    for (std::size_t at = 0; at <= what.size();) {
      const std::size_t end = std::min(what.find(' ', at), what.size());
      words.push_back(what.substr(at, end - at));
      at = end + 1;
    }
    EXPECT_EQ(plan_of(words).at("fits"), true) << what;
  }
  const ProcessResult text =
      fut({"plan", "-m", "llama-3.1-70b", "--gpu", "h100", "--prefill-weights", "fp8"},
          with_variables({{"FUT_PRECISION", std::nullopt}, {"FUT_DEVICE", std::nullopt}}));
  EXPECT_EQ(text.exit_code, 4);
  expect_mentions(text.out, {"FP8 copy", "INT4 copy", "KV cache", "workspace", "graphs",
                             "does not fit", "What to change", "--precision fp8", "h200"});
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  return {std::istream_iterator<std::string>(stream), {}};
}

// Of a shape on so many gigabytes, which does not fit: what is advised, one a line, with what is not
// enough in brackets. What is said to be enough is, and what is not is not.
std::string advice_of(const std::string& line) {
  std::string advice;
  const nlohmann::json plan = plan_of(words_of(line), 4);
  for (const auto& change : plan.at("changes")) {
    const std::string what = change.at("what");
    const bool is_enough = change.at("is_enough");
    advice += is_enough ? what + '\n' : '(' + what + ")\n";
    // The flags of an advice replace those that were given.
    std::vector<std::string> words = words_of(line);
    const std::vector<std::string> added = words_of(what);
    const auto set = [&](const std::string& flag, const std::string& value) {
      const auto at = std::find(words.begin(), words.end(), flag);
      if (at == words.end()) {
        words.insert(words.end(), {flag, value});
      } else {
        at[1] = value;
      }
    };
    if (what[0] == '-') {
      for (std::size_t at = 0; at + 1 < added.size(); at += 2) set(added[at], added[at + 1]);
    } else if (added.at(0) == "another") {
      const auto memory = std::find(words.begin(), words.end(), "--memory");
      *memory = "--gpu";
      memory[1] = added.at(4);
    }
    EXPECT_EQ(plan_of(words, is_enough ? 0 : 4).at("fits"), is_enough) << line << ": " << what;
  }
  return advice;
}

TEST(Plan, AdviceIsWhatAPlanWithItWouldSay) {
  const struct {
    const char* line;
    const char* advice;
  } cases[] = {
      {"-m llama-3.1-70b --memory 24", "another GPU, as --gpu h100 has it\n(-c 1024)\n"},
      {"-m llama-3.1-70b --memory 48 --precision bf16",
       "--precision int4\nanother GPU, as --gpu h200 has it\n(--precision fp8)\n"},
      {"-m llama-3.1-8b --memory 8 --precision fp8",
       "--precision int4\nanother GPU, as --gpu h100 has it\n(-c 1024)\n"},
      // A cache that was chosen stays.
      {"-m llama-3.1-8b --memory 6.6 --precision fp8 --kv-cache-dtype bf16",
       "--precision int4 -c 4672\nanother GPU, as --gpu h100 has it\n(-c 1024)\n"},
      {"-m llama-3.1-8b --memory 8 --precision bf16 --device cpu",
       "--precision int4\n(--precision fp8)\n(-c 1024)\n"},
      {"-m llama-3.1-8b --memory 4 --device cpu", "(-c 1024)\n"},
      {"-m llama-3.1-8b --memory 6.3", "-c 7808\nanother GPU, as --gpu h100 has it\n"},
      {"-m llama-3.1-8b --memory 16 -b 4096 -c 16", "-b 1141\nanother GPU, as --gpu h100 has it\n"},
      {"-m llama-3.1-8b --memory 16 -b 4096 -c 16 --prefill-weights fp8",
       "--prefill-weights int4 -b 1141\n-b 350\nanother GPU, as --gpu h100 has it\n"},
      {"-m llama-3.1-8b --memory 16 -b 64 -c 131072", "-c 3712\n-b 1\n"},
      {"-m llama-3.1-8b --memory 6.5 -b 512 -c 131072", "-c 12864 -b 1\n"}};
  for (const auto& c : cases) EXPECT_EQ(advice_of(c.line), c.advice) << c.line;
}

TEST(Plan, TheLargestThatFitMayHavePrefillFromInt4) {
  const auto largest = [](const std::string& line, int exit_code) {
    const auto plan = plan_of(words_of(line), exit_code);
    return std::pair<int, int>(plan.at("largest_context"), plan.at("largest_batch"));
  };
  const std::string at16 = "-m llama-3.1-8b --memory 16 ";
  EXPECT_EQ(largest(at16, 0), std::pair(131072, 30));
  EXPECT_EQ(largest(at16 + "--prefill-weights fp8", 0), std::pair(79680, 8));
  for (const char* room : {"-c 131072", "-b 16", "-b 30"}) {
    EXPECT_EQ(plan_of(words_of(at16 + room)).at("prefill_weights"), "int4") << room;
  }
  EXPECT_EQ(plan_of(words_of(at16)).at("prefill_weights"), "fp8");
  (void)plan_of(words_of(at16 + "-b 31"), 4);
  const std::string at6 = "-m llama-3.1-8b --memory 6.3 ";
  EXPECT_EQ(largest(at6, 4), std::pair(7808, 0));
  for (const char* room : {"-c 4096", "-c 7808"}) (void)plan_of(words_of(at6 + room));
  (void)plan_of(words_of(at6 + "-c 7809"), 4);
  // The text says where that begins.
  const ProcessResult text =
      fut({"plan", "-m", "llama-3.1-8b", "--memory", "16"},
          with_variables({{"FUT_PRECISION", std::nullopt}, {"FUT_DEVICE", std::nullopt}}));
  expect_mentions(text.out, {"Beyond context 79680 or batch 8 prefill"});
}

TEST(Plan, GigabytesAreNamedAsTheyWereTyped) {
  for (const char* typed : {"5.9", "6.3", "16", "0.1", "1234.5"}) {
    const auto words =
        words_of(std::string("-m llama-3.1-8b -c 1024 --prefill-weights int4 --memory ") + typed);
    const bool fits = std::stod(typed) > 6;
    EXPECT_EQ(plan_of(words, fits ? 0 : 4).at("device"),
              std::string("a GPU with ") + typed + " GB free");
  }
}

TEST(Plan, TheLargestThatFitAreTheLast) {
  const auto plan = plan_of({"-m", "llama-3.1-70b", "--gpu", "h200", "--prefill-weights", "fp8",
                             "-c", "32768", "-b", "4"});
  const std::string context = plan.at("largest_context").dump();
  const std::string batch = plan.at("largest_batch").dump();
  const int next_context = plan.at("largest_context").get<int>() + 1;
  const int next_batch = plan.at("largest_batch").get<int>() + 1;
  const auto with = [](const std::string& c, const std::string& b, int exit_code) {
    (void)plan_of(
        {"-m", "llama-3.1-70b", "--gpu", "h200", "--prefill-weights", "fp8", "-c", c, "-b", b},
        exit_code);
  };
  with(context, "4", 0);
  with("32768", batch, 0);
  if (next_context <= 131072) with(std::to_string(next_context), "4", 4);
  with("32768", std::to_string(next_batch), 4);
}

TEST(Plan, ReadsTheHeadersOfWhatIsThere) {
  const TempFolder folder;
  ToyModelOptions toy = small_quantizable_model();
  toy.files.dtype = DType::F32;
  const std::string model = write_toy_model(folder.path() / "toy", toy).string();
  const auto f32 = plan_of({"-m", model, "--device", "cpu", "--precision", "f32"});
  const auto bf16 = plan_of({"-m", model, "--device", "cpu", "--precision", "bf16"});
  EXPECT_GT(f32.at("memory").at("layers").get<double>(),
            1.9 * bf16.at("memory").at("layers").get<double>());
  EXPECT_TRUE(f32.at("roofline").is_null());
  // A folder that is only begun fails as it would when it is loaded.
  std::filesystem::resize_file(folder.path() / "toy" / "model.safetensors", 100);
  const ProcessResult damaged = fut({"plan", "-m", model});
  expect_failure(damaged, 3, {"model.safetensors"});
  // One with a config alone is planned by that.
  std::filesystem::remove(folder.path() / "toy" / "model.safetensors");
  const ProcessResult config_alone = fut({"plan", "-m", model});
  EXPECT_EQ(config_alone.exit_code, 0);
  expect_mentions(config_alone.err, {"no weights"});
}

TEST(Plan, AQuantisedFolderIsPlannedAsItIs) {
  const TempFolder folder;
  const std::string model =
      write_toy_model(folder.path() / "toy", small_quantizable_model()).string();
  const std::string packed = (folder.path() / "packed").string();
  const ProcessOptions environment = in_default_precision(folder.path());
  ASSERT_EQ(
      fut({"quantize", "-m", model, "-o", packed, "--group-size", "64"}, environment).exit_code, 0);
  const auto of_checkpoint = plan_of({"-m", model, "--device", "cpu"});
  const auto of_packed = plan_of({"-m", packed, "--device", "cpu"});
  EXPECT_GT(of_packed.at("memory").at("int4_copy"), of_checkpoint.at("memory").at("int4_copy"));
  EXPECT_EQ(of_packed.at("memory").at("fp8_copy"), of_checkpoint.at("memory").at("fp8_copy"));
  EXPECT_EQ(of_packed.at("copy_bytes"), 0);
  EXPECT_GT(of_checkpoint.at("copy_bytes").get<std::int64_t>(), 0);
  const ProcessResult bf16 = fut({"plan", "-m", packed, "--precision", "bf16"});
  expect_failure(bf16, 3, {"packed", "bf16"});
}

TEST(Plan, SizesThatCannotBeQuantisedGetTheSameVerdict) {
  const TempFolder folder;
  ToyModelOptions odd;
  odd.hidden_size = 192;
  odd.num_q_heads = 3;
  odd.num_kv_heads = 1;
  odd.head_dim = 64;
  odd.intermediate_size = 344;
  odd.vocab_size = 515;
  const std::string model = write_toy_model(folder.path() / "odd", odd).string();
  const ProcessOptions environment = in_default_precision(folder.path());
  const ProcessResult plan = fut({"plan", "-m", model, "--device", "cpu"}, environment);
  const ProcessResult run = fut({"run", "-m", model, "--raw", "-p", "x"}, environment);
  expect_failure(plan, 3, {"192", "128", "--precision f32"});
  EXPECT_EQ(run.exit_code, 3);
  const ProcessResult f32 = fut({"plan", "-m", model, "--device", "cpu", "--precision", "f32"});
  EXPECT_EQ(f32.exit_code, 0) << f32.err;
}

TEST(Plan, RefusesWhatItCannotPlan) {
  const struct {
    std::vector<std::string> words;
    int exit_code;
    std::initializer_list<std::string> facts;
  } cases[] = {
      {{"-m", "llama-3.1-8b", "--gpu", "a100"}, 2, {"a100", "h200", "--memory"}},
      {{"-m", "llama-3.1-8b", "--gpu", "h200", "--memory", "80"}, 2, {"--gpu", "--memory"}},
      {{"-m", "llama-3.1-8b", "--gpu", "h200", "--device", "cpu"}, 2, {"--gpu", "--device"}},
      {{"-m", "llama-3.1-8b", "--memory", "0"}, 2, {"--memory"}},
      {{"-m", "llama-3.1-8b", "--gpu", "h200", "--precision", "f32"}, 2, {"f32", "--device cpu"}},
      {{"-m", "llama-3.1-8b", "--gpu", "h200", "-c", "131073"}, 2, {"131073", "131072"}},
      {{"-m", "llama-3.1-8b", "--gpu", "h200", "-b", "0"}, 2, {"-b"}},
      {{"-m", "llama-3.2-8b"}, 3, {"llama-3.2-8b"}},
      {{"-m", "/nowhere"}, 3, {"/nowhere"}}};
  for (const auto& c : cases) {
    std::vector<std::string> words = {"plan"};
    words.insert(words.end(), c.words.begin(), c.words.end());
    SCOPED_TRACE(testing::PrintToString(words));
    expect_failure(
        fut(words, with_variables({{"FUT_DEVICE", std::nullopt}, {"FUT_PRECISION", std::nullopt}})),
        c.exit_code, c.facts);
  }
}

TEST(Plan, AMissingGpuIsExitCode5AndAutoPlansForTheCpu) {
  const auto hidden = with_variables({{"CUDA_VISIBLE_DEVICES", ""},
                                      {"FUT_DEVICE", std::nullopt},
                                      {"FUT_PRECISION", std::nullopt}});
  expect_failure(fut({"plan", "--device", "cuda"}, hidden), 5, {"--device cpu"});
  const ProcessResult automatic = fut({"plan"}, hidden);
  EXPECT_EQ(automatic.exit_code, 0) << automatic.err;
  expect_mentions(automatic.out, {"CPU"});
  EXPECT_LE(lines_of(automatic.err).size(), 1U) << automatic.err;
}

// More terabytes of cache than any machine that runs tests has.
TEST(Plan, LoadingSaysTheSameWhereItDoesNotFit) {
  const TempFolder folder;
  ToyModelOptions wide;
  wide.num_q_heads = wide.num_kv_heads = 16;
  wide.head_dim = 1024;
  wide.files.max_position_embeddings = 16777216;
  const std::string model = write_toy_model(folder.path() / "wide", wide).string();
  const ProcessResult run = fut({"run", "-m", model, "--raw", "-p", "x", "-c", "16777216"});
  expect_failure(run, 4, {"needs", "KV cache", "workspace", "does not fit", "-c "});
  const ProcessResult plan = fut({"plan", "-m", model, "-c", "16777216"});
  EXPECT_EQ(plan.exit_code, 4);
  expect_mentions(plan.out, {"does not fit", "-c "});
  const ProcessResult json =
      fut({"run", "-m", model, "--raw", "-p", "x", "-c", "16777216", "-o", "json"});
  EXPECT_EQ(json.exit_code, 4);
  EXPECT_EQ(json_of(json).at("error").at("code"), 4);
}

}  // namespace
}  // namespace fut::test
