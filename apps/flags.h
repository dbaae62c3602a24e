// What a command's flags are, as data: the table that parsing, help, environment variables, the
// configuration file and suggestions all read. Knows neither CLI11 nor what a flag means.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace fut::app {

// One value as the user wrote it, byte for byte, and where it came from, for messages: "--temp",
// "FUT_TEMP", "fut.conf:3 (temp)". A switch has no text.
struct Argument {
  std::string text;
  std::string source;
  bool typed = true;  // on the command line, not in the environment or a file
};

struct Flag {
  // Every spelling with its dashes; the first one that starts with two dashes is the flag's name.
  // Single-dash words of several letters ("-sys") are allowed here though CLI11 knows none.
  std::vector<std::string> names;
  std::string value;    // what help calls the value; empty: a switch
  std::string section;  // heading in help
  std::string help;
  std::function<void(const Argument&)> set;  // throws Usage naming argument.source
  bool repeatable = false;
  std::vector<std::string> conflicts = {};  // names of flags that cannot be given beside this one
};

struct Command {
  std::string name;  // empty for the program itself
  std::string summary;
  std::string notes;  // what help says after the flags
  std::vector<Flag> flags;
  std::string word =
      {};  // the flag that a word without one stands for; empty: such words are refused
};

// "--n-predict" of {"-n", "--n-predict", "--predict"}.
[[nodiscard]] const std::string& flag_name(const Flag& flag);

}  // namespace fut::app
