// What fut doctor has seen: lines for people, a document for programs, and what is wrong with the next
// thing to type.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/options.h"
#include "apps/reporter.h"

namespace fut::app {

struct DoctorProblem {
  std::string what;
  std::string next;
  int code = 0;  // the exit code that it is worth; 0: it stops nothing
};

struct DoctorFindings {
  std::string text;
  Json document = Json::object();
  std::vector<DoctorProblem> problems;

  // "cache     /root/.cache/fut: ...": a line under `title`, or one more with an empty one.
  void line(std::string_view title, std::string_view what) {
    text += fmt::format("{:<10}{}\n", title, what);
  }
};

// Driver, runtime, devices, who uses them, and what a run would take.
void look_at_gpus(const DoctorOptions& options, DoctorFindings& findings);
// Cache, temporary folder, models of Hugging Face; with options.check the checksums of the cache.
void look_at_folders(const DoctorOptions& options, DoctorFindings& findings);

}  // namespace fut::app
