// README.md as a newcomer follows it: its commands have the flags that they are given, and what it shows of
// their output is what they print.
#include <cctype>
#include <map>
#include <set>

#include "tests/cli/fut_process.h"

namespace fut::test {
namespace {

std::string readme() {
  return read_file(source_path("README.md"));
}

// The lines between ```sh and ```, those that end in a backslash joined with the next.
std::vector<std::string> shell_lines(const std::string& text) {
  std::vector<std::string> lines;
  bool inside = false, goes_on = false;
  for (std::string line : lines_of(text)) {
    if (line.starts_with("```")) {
      inside = line == "```sh";
      continue;
    }
    if (!inside) continue;
    const bool more = line.ends_with('\\');
    if (more) line.pop_back();
    if (goes_on)
      lines.back() += line;
    else
      lines.push_back(line);
    goes_on = more;
  }
  return lines;
}

// The words of one command, without a comment, what it is piped into, or quoted texts.
std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') quoted = !quoted;
    if (quoted) continue;
    if (c == '#' || c == '|' || c == '>') break;
    if (c == ' ')
      words.emplace_back();
    else
      words.back() += c;
  }
  std::erase(words, "");
  return words;
}

// "-m,--model MODEL" as -m and --model.
std::set<std::string> flags_of(const std::string& help) {
  std::set<std::string> flags;
  std::string word;
  for (const char c : help + " ") {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-') {
      word += c;
      continue;
    }
    if (word.starts_with('-')) flags.insert(word);
    word.clear();
  }
  return flags;
}

TEST(Readme, ItsCommandsHaveTheFlagsThatTheyAreGiven) {
  std::map<std::string, std::set<std::string>> flags;
  int commands = 0;
  for (const std::string& line : shell_lines(readme())) {
    const std::vector<std::string> words = words_of(line);
    if (words.size() < 2 || !words[0].ends_with("fut")) continue;
    const std::string& command = words[1];
    if (!flags.contains(command)) {
      const ProcessResult help = fut({command, "--help"});
      EXPECT_EQ(help.exit_code, 0) << line;
      flags[command] = flags_of(help.out);
    }
    ++commands;
    for (const std::string& word : words) {
      if (word.starts_with('-') && word.size() > 1) {
        EXPECT_TRUE(flags[command].contains(word)) << word << " in: " << line;
      }
    }
  }
  EXPECT_GE(commands, 20);
}

TEST(Readme, ThePlanThatItShowsIsTheOneThatIsMade) {
  const ProcessResult plan =
      fut({"plan", "-m", "llama-3.1-8b", "--gpu", "h200"},
          with_variables({{"FUT_DEVICE", std::nullopt}, {"FUT_PRECISION", std::nullopt}}));
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  const std::string text = readme();
  const std::size_t begin = text.find("```\nllama-3.1-8b on NVIDIA H200, empty");
  ASSERT_NE(begin, text.npos);
  const std::size_t table = begin + 4;
  const std::string shown = text.substr(table, text.find("```", table) - table);
  EXPECT_TRUE(plan.out.starts_with(shown)) << shown << plan.out;
}

TEST(Readme, ShapesByNameNeedNoFileInTheWorkingFolder) {
  const TempFolder folder;
  ProcessOptions options;
  options.arguments = {"-c", "cd " + folder.path().string() + " && exec " + FUT_BINARY +
                                 " bench --dummy llama-3.1-8b --precision int4 -d 200000"};
  const ProcessResult result = run_process("/bin/sh", on_cpu_in_f32(options));
  // The shape was found, and its context is not that long.
  expect_failure(result, 2, {"131072"});
}

}  // namespace
}  // namespace fut::test
