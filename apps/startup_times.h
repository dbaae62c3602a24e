// Where the time went between the start of the program and the first token.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "apps/reporter.h"
#include "engine/model.h"

namespace fut::app {

class StartupTimes {
 public:
  StartupTimes();

  // What ends now began when the lap before it ended; the first one with the process.
  void lap(std::string name, std::string note = {});
  // Something that followed the last lap.
  void add(std::string name, double seconds);
  // A part of what was added last; parts may go on at the same time.
  void add_part(std::string name, double seconds, std::string note = {});

  // Lines of a table, and its sum.
  [[nodiscard]] std::string table() const;
  // Seconds by name.
  [[nodiscard]] Json json() const;

 private:
  struct Row {
    std::string name;
    double seconds = 0;
    std::string note;
    bool is_part = false;
  };
  [[nodiscard]] double total() const;

  double start_;  // of the process, in seconds of the machine's life
  std::vector<Row> rows_;
  double last_ = 0;  // seconds of the process's life when the last lap ended
};

// "12.16 GB at 29.7 GB/s; its threads: 52 % reading, 30 % checksums, 18 % waiting for copies"
[[nodiscard]] std::string load_text(const LoadTimes& times);

}  // namespace fut::app
