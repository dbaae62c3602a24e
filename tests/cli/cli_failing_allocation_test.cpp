// Memory that runs out at any place between the start and the reply: exit code 4, one message with the
// plan's table, nothing on standard output.
#include <fmt/format.h>

#include "tests/cli/quantized_case.h"

namespace fut::test {
namespace {

// Runs with the first, second, ... allocation failing until one succeeds; how many failed.
int fail_each(const std::vector<std::string>& words, const ProcessOptions& surroundings) {
  constexpr int kMany = 200;
  for (int n = 1; n < kMany; ++n) {
    ProcessOptions options = surroundings;
    options.environment["FUT_TEST_FAILING_ALLOCATION"] = std::to_string(n);
    const ProcessResult result = fut(words, options);
    if (result.exit_code == 0) return n - 1;
    SCOPED_TRACE(n);
    expect_failure(result, 4, {"out of memory", "bytes wanted", fmt::format("allocation {} ", n)});
  }
  ADD_FAILURE() << "no run came to its end";
  return 0;
}

TEST(FailingAllocation, OfARunInAnyPrecisionIsReported) {
  const TempFolder folder;
  ToyModelOptions model = small_quantizable_model();
  const std::string path = write_toy_model(folder / "m", model).string();
  const std::vector<std::string> words = {"run", "-m", path, "--raw", "-p", "abc", "-n", "4"};
  EXPECT_GE(fail_each(words, {}), 25);
  // The quantised copy, once it is made, is not made anew because memory ran out.
  const ProcessOptions quantized = in_default_precision(folder.path());
  EXPECT_EQ(fut(words, quantized).exit_code, 0);
  EXPECT_GE(fail_each(words, quantized), 25);
}

TEST(FailingAllocation, OfManyPromptsIsReportedAndLeavesNoReply) {
  const TempFolder folder;
  const std::string path = write_toy_model(folder / "m").string();
  write_file(folder / "p.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n");
  const std::string replies = (folder / "r.jsonl").string();
  EXPECT_GE(fail_each({"run", "-m", path, "--raw", "-i", (folder / "p.jsonl").string(), "-n", "4",
                       "--output-file", replies, "--overwrite"},
                      {}),
            25);
  EXPECT_EQ(lines_of(read_file(replies)).size(), 2U);
}

TEST(FailingAllocation, AVariableThatIsNoNumberIsRefused) {
  const TempFolder folder;
  const std::string path = write_toy_model(folder / "m").string();
  expect_failure(fut({"run", "-m", path, "--raw", "-p", "a"},
                     with_variables({{"FUT_TEST_FAILING_ALLOCATION", "x"}})),
                 2, {"FUT_TEST_FAILING_ALLOCATION"});
}

}  // namespace
}  // namespace fut::test
