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

// Where a shell is; empty: it is not.
std::string shell_at(const std::string& name) {
  const std::string path = bash("command -v " + name + " || true");
  return path.substr(0, path.find('\n'));
}

// A terminal with zsh, in which fut prints its words. The file is found by name, so that the first Tab reads it.
TEST(Completions, ZshCompletesCommandsFlagsAndChoices) {
  const std::string zsh = shell_at("zsh");
  if (zsh.empty()) GTEST_SKIP() << "zsh is not here";
  const TempFolder folder;
  write_file(folder / "_fut", out_of({"completions", "zsh"}));
  write_file(folder / ".zshrc", "fpath=(" + folder.path().string() +
                                    " $fpath)\nautoload -Uz compinit\ncompinit -u -D\n"
                                    "fut() { print -r -- \"GOT $*.\" }\nPS1='ready> '\n");
  write_file(folder / "only.json", "{}");
  ProcessOptions options;
  options.arguments = {"-i"};
  options.input_kind = ProcessOptions::Input::Terminal;
  options.output_kind = ProcessOptions::Output::Terminal;
  options.error_to_terminal = true;
  options.environment = {{"ZDOTDIR", folder.path().string()}, {"TERM", "dumb"}};
  Process process(zsh, options);
  ASSERT_TRUE(process.wait_for_terminal("ready> "));
  const std::string file = (folder / "only.json").string();
  const struct {
    std::string typed, got;
  } cases[] = {
      {"fut run --precis\ti\t", "GOT run --precision int4."},
      {"fut cha\t", "GOT chat."},
      {"fut completions z\t", "GOT completions zsh."},
      {"fut bench --n-pr\t", "GOT bench --n-prompt."},
      {"fut run --resu\t--device cp\t", "GOT run --resume --device cpu."},
      {"fut run -i " + file.substr(0, file.size() - 7) + "\t", "GOT run -i " + file + "."}};
  for (const auto& c : cases) {
    process.write(c.typed + "\r");
    EXPECT_TRUE(process.wait_for_terminal(c.got)) << c.typed;
  }
  process.write("exit\r");
  EXPECT_EQ(process.finish().exit_code, 0);
}

TEST(Completions, ZshTakesTheScriptAsTextToo) {
  const std::string zsh = shell_at("zsh");
  if (zsh.empty()) GTEST_SKIP() << "zsh is not here";
  const TempFolder folder;
  write_file(folder / "_fut", out_of({"completions", "zsh"}));
  ProcessOptions options;
  options.arguments = {"-f", "-c",
                       "autoload -Uz compinit; compinit -u -D; . " + (folder / "_fut").string() +
                           "; print -r -- $_comps[fut]"};
  const ProcessResult result = run_process(zsh, options);
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.out, "_fut\n");
}

TEST(Completions, FishCompletesCommandsFlagsAndChoices) {
  const std::string fish = shell_at("fish");
  if (fish.empty()) GTEST_SKIP() << "fish is not here";
  const TempFolder folder;
  write_file(folder / "fut.fish", out_of({"completions", "fish"}));
  // The words alone, without their descriptions.
  const auto offered_by_fish = [&](const std::string& typed) {
    ProcessOptions options;
    options.arguments = {"--no-config", "-c",
                         "source " + (folder / "fut.fish").string() + "; complete -C'" + typed +
                             "' | string split -f1 \\t"};
    options.environment = {{"HOME", folder.path().string()},
                           {"XDG_CONFIG_HOME", (folder / "config").string()},
                           {"XDG_DATA_HOME", (folder / "data").string()}};
    const ProcessResult result = run_process(fish, options);
    EXPECT_EQ(result.err, "") << typed;
    return result.out;
  };
  EXPECT_EQ(offered_by_fish("fut cha"), "chat\n");
  EXPECT_EQ(offered_by_fish("fut run --temp"), "--temp\n--temperature\n");
  EXPECT_EQ(offered_by_fish("fut run --precision i"), "int4\n");
  EXPECT_EQ(offered_by_fish("fut run -o j"), "json\njsonl\n");
  EXPECT_EQ(offered_by_fish("fut completions z"), "zsh\n");
  EXPECT_EQ(offered_by_fish("fut run -n "), "");
  write_file(folder / "only.json", "{}");
  EXPECT_EQ(offered_by_fish("fut run -i " + (folder / "on").string()),
            (folder / "only.json").string() + "\n");
}

TEST(Completions, OtherShellsAreRefused) {
  expect_failure(fut({"completions", "tcsh"}), 2, {"tcsh", "bash", "zsh", "fish"});
  expect_failure(fut({"completions"}), 2,
                 {"--shell is missing", "fut completions bash", "zsh", "fish"});
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
