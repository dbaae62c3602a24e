// fut doctor: what this machine has for fut, what is wrong, and what to type next.
#include <algorithm>

#include "apps/commands.h"
#include "apps/doctor_findings.h"
#include "apps/version.h"
#include "kernels/backend.h"

namespace fut::app {
namespace {

std::string joined_lines(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  for (std::size_t at = text.find('\n'); at != text.npos; at = text.find('\n', at)) {
    text.replace(at, 1, ", ");
  }
  return text;
}

void look_at_program(DoctorFindings& findings) {
  const std::string program = joined_lines(version_text());
  const std::string cpu = list_devices().front().name;
  findings.line("program", program);
  findings.line("cpu", cpu);
  findings.document["program"] = program;
  findings.document["cpu"] = cpu;
}

// The problems last, where they are seen. Returns the exit code.
int tell_problems(DoctorFindings& findings) {
  Json& list = findings.document["problems"];
  list = Json::array();
  int code = 0;
  std::size_t number = 0;
  for (const DoctorProblem& problem : findings.problems) {
    findings.text += fmt::format("{}{}. {}\n   next: {}\n", number == 0 ? "\n" : "", number + 1,
                                 problem.what, problem.next);
    list.push_back({{"what", problem.what}, {"next", problem.next}});
    code = std::max(code, problem.code);
    ++number;
  }
  if (number == 0) findings.text += "\nnothing is wrong\n";
  return code;
}

}  // namespace

int doctor(const DoctorOptions& options, Reporter& reporter) {
  DoctorFindings findings;
  look_at_program(findings);
  look_at_gpus(options, findings);
  look_at_folders(options, findings);
  const int code = tell_problems(findings);
  reporter.document() = std::move(findings.document);
  reporter.text(findings.text);
  reporter.finish();
  return code;
}

}  // namespace fut::app
