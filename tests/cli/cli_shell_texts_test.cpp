// Completion scripts and the manual page: whole, and in step with --help.
#include <cstdlib>

#include "tests/cli/fut_process.h"

namespace fut::test {
namespace {

// Every command and long flag that --help lists.
std::vector<std::string> listed(const std::string& help, const std::string& start) {
  std::vector<std::string> found;
  for (std::size_t at = help.find(start); at != help.npos; at = help.find(start, at + 1)) {
    const std::size_t end = help.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-", at);
    found.push_back(help.substr(at, end - at));
  }
  return found;
}

std::string out_of(std::vector<std::string> words) {
  const ProcessResult result = fut(std::move(words));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return result.out;
}

std::string bash(const std::string& script) {
  ProcessOptions options;
  options.arguments = {"--norc", "-c", script};
  const ProcessResult result = run_process("/bin/bash", options);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return result.out;
}

// What Tab offers where the last of the words stands.
std::string offered(const std::string& file, const std::string& words) {
  return bash(". " + file + "; COMP_WORDS=(" + words +
              "); COMP_CWORD=$((${#COMP_WORDS[@]}-1)); compopt() { :; }; _fut; "
              "echo \"${COMPREPLY[*]}\"");
}

TEST(Completions, EveryShellsScriptKnowsEveryFlag) {
  for (const char* command : {"run", "chat", "bench", "plan"}) {
    const std::vector<std::string> flags = listed(out_of({command, "--help"}), "--");
    ASSERT_GT(flags.size(), 10U);
    for (const char* shell : {"bash", "zsh", "fish"}) {
      const std::string script = out_of({"completions", shell});
      for (const std::string& flag : flags) {
        const std::string wanted = std::string(shell) == "fish" ? "-l " + flag.substr(2) : flag;
        if (flag != "--help" && flag.size() > 3) {
          EXPECT_NE(script.find(wanted), script.npos) << shell << " " << command << " " << flag;
        }
      }
    }
  }
}

TEST(Completions, BashCompletesCommandsFlagsAndChoices) {
  const TempFolder folder;
  const std::string file = (folder.path() / "fut.bash").string();
  write_file(file, out_of({"completions", "bash"}));
  EXPECT_EQ(offered(file, "fut cha"), "chat\n");
  EXPECT_EQ(offered(file, "fut run --temp"), "--temp --temperature\n");
  EXPECT_EQ(offered(file, "fut run --precision i"), "int4\n");
  EXPECT_EQ(offered(file, "fut run -o j"), "json jsonl\n");
  EXPECT_EQ(offered(file, "fut run --device c"), "cpu cuda\n");
  EXPECT_EQ(offered(file, "fut completions z"), "zsh\n");
  EXPECT_EQ(offered(file, "fut run -n ''"), "\n");
}

TEST(Completions, WhatStandsForSomethingIsNoWord) {
  const TempFolder folder;
  const std::string file = (folder.path() / "fut.bash").string();
  write_file(file, out_of({"completions", "bash"}));
  write_file(folder.path() / "old.json", "{}");
  write_file(folder.path() / "new.json", "{}");
  const std::string start = (folder.path() / "").string();
  EXPECT_EQ(offered(file, "fut bench --compare " + start + "old.json " + start + "n"),
            start + "new.json\n");
  EXPECT_EQ(offered(file, "fut bench --compare a NEW"), "\n");
  EXPECT_EQ(offered(file, "fut compare --against PREC"), "\n");
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const std::string script = out_of({"completions", shell});
    for (const char* word : {"(NEW.json)", "'NEW.json'", "(PRECISION", "'PRECISION", " DIR'"}) {
      EXPECT_EQ(script.find(word), script.npos) << shell << " " << word;
    }
  }
}

TEST(Completions, OtherShellsAreRefused) {
  expect_failure(fut({"completions", "tcsh"}), 2, {"tcsh", "bash", "zsh", "fish"});
  expect_failure(fut({"completions"}), 2, {"bash", "zsh", "fish"});
}

TEST(ManualPage, HoldsAllCommandsAndFlags) {
  const std::string page = out_of({"man"});
  EXPECT_TRUE(page.starts_with(".TH FUT 1"));
  for (const char* command : {"run", "chat", "quantize", "perplexity", "bench", "doctor"}) {
    EXPECT_NE(page.find(std::string("fut ") + command), page.npos) << command;
  }
  for (const std::string& flag : listed(out_of({"chat", "--help"}), "--")) {
    std::string escaped;
    for (const char c : flag) escaped += c == '-' ? std::string("\\-") : std::string(1, c);
    if (flag != "--help") {
      EXPECT_NE(page.find(escaped), page.npos) << flag;
    }
  }
  EXPECT_NE(page.find("EXIT STATUS"), page.npos);
}

TEST(ManualPage, IsUnderstoodByRoff) {
  if (std::system("command -v groff > /dev/null 2>&1") != 0) GTEST_SKIP() << "groff is not here";
  const TempFolder folder;
  const std::string file = (folder.path() / "fut.1").string();
  write_file(file, out_of({"man"}));
  const std::string complaints = bash("groff -man -Tascii -ww -z " + file + " 2>&1 | head");
  EXPECT_EQ(complaints, "");
}

}  // namespace
}  // namespace fut::test
