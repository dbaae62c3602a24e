// The program: reads the command line, runs one command, and is the one place where errors are
// caught and become a message, an exit code and, with -o json, a document.
#include <array>
#include <cstdlib>
#include <new>

#include "apps/check/check.h"
#include "apps/check/selftest.h"
#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/compare/compare.h"
#include "apps/completions.h"
#include "apps/input_files.h"
#include "apps/logging.h"
#include "apps/signals.h"
#include "apps/version.h"
#include "kernels/backend.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

// Every command's options and flags. The flags refer to the options.
struct CommandSet {
  ProgramOptions program;
  GenerateOptions run_options, chat_options;
  TokenizeOptions tokenize_options;
  QuantizeOptions quantize_options;
  PerplexityOptions perplexity_options;
  InspectOptions inspect_options;
  BenchOptions bench_options;
  PlanOptions plan_options;
  DoctorOptions doctor_options;
  CompareOptions compare_options;
  CheckOptions check_options;
  SelftestOptions selftest_options;
  CompletionsOptions completions_options;
  std::array<Command, 15> commands = {program_command(program),
                                      run_command(run_options),
                                      chat_command(chat_options),
                                      quantize_command(quantize_options),
                                      perplexity_command(perplexity_options),
                                      bench_command(bench_options),
                                      inspect_command(inspect_options),
                                      plan_command(plan_options),
                                      doctor_command(doctor_options),
                                      tokenize_command(tokenize_options),
                                      compare_command(compare_options),
                                      check_command(check_options),
                                      selftest_command(selftest_options),
                                      completions_command(completions_options),
                                      man_command()};
};

std::string device_lines() {
  std::string text;
  for (const DeviceReport& device : list_devices()) {
    text += device.name;
    if (!device.usable) text += ": not usable: " + device.reason;
    text += '\n';
  }
  return text;
}

template <class Options>
int run_with(int (*command)(const Options&, Reporter&), const Options& options,
             Reporter& reporter) {
  const std::string& log_file = options.log.log_file;
  refuse_input_as_output(log_file, {}, "--log-file");
  if constexpr (requires { options.output; }) {
    refuse_input_as_output(options.output.file, input_files(options));
    refuse_input_as_output(log_file, input_files(options), "--log-file");
    refuse_same_output(options.output.file, "--output-file", log_file, "--log-file");
  }
  set_up_logging(options.log);
  if constexpr (requires { options.output; }) {
    if constexpr (requires { options.batch.given(); }) {
      // The replies to a file go into a file that may hold some already: not the reporter's.
      if (options.batch.given()) {
        const bool to_file = !options.output.file.empty();
        reporter.configure({to_file ? OutputFormat::Text : OutputFormat::JsonLines, {}});
        return command(options, reporter);
      }
    }
    reporter.configure(options.output);
  } else {
    reporter.configure({options.json ? OutputFormat::Json : OutputFormat::Text, {}});
  }
  return command(options, reporter);
}

int run_program(std::span<const std::string> words, const Environment& environment,
                Reporter& reporter) {
  CommandSet set;
  const Resolved resolved = resolve_arguments(words, set.commands, environment);
  if (resolved.help) return print(help_text(set.commands, *resolved.command), reporter);
  apply_arguments(set.commands, resolved);
  const std::string& name = resolved.command->name;
  if (name == "run") return run_with(run, set.run_options, reporter);
  if (name == "chat") return run_with(chat, set.chat_options, reporter);
  if (name == "tokenize") return run_with(tokenize, set.tokenize_options, reporter);
  if (name == "quantize") return run_with(quantize, set.quantize_options, reporter);
  if (name == "perplexity") return run_with(perplexity, set.perplexity_options, reporter);
  if (name == "bench") return run_with(bench, set.bench_options, reporter);
  if (name == "doctor") return run_with(doctor, set.doctor_options, reporter);
  if (name == "plan") return run_with(plan, set.plan_options, reporter);
  if (name == "selftest") return run_with(selftest, set.selftest_options, reporter);
  if (name == "check") return run_with(check, set.check_options, reporter);
  if (name == "compare") return run_with(compare, set.compare_options, reporter);
  if (name == "completions") return completions(set.completions_options, set.commands, reporter);
  if (name == "man") return man(set.commands, reporter);
  if (name == "inspect") return run_with(inspect, set.inspect_options, reporter);
  if (set.program.version) return print(version_text(), reporter);
  return print(device_lines(), reporter);
}

// What an interrupted command leaves, where who was interrupted does not say it.
std::string_view interrupted_text(std::span<const std::string> words, const Interrupted& e) {
  if (!e.message().empty()) return e.message();
  const std::string_view command = words.empty() ? std::string_view() : words.front();
  if (command == "quantize") return "interrupted; nothing was written under the target folder";
  for (const std::string_view measures : {"perplexity", "bench", "compare", "check"}) {
    if (command == measures) return "interrupted; there is no result";
  }
  if (command == "run" || command == "chat") return "interrupted before the reply was complete";
  return "interrupted";
}

int fail(Reporter& reporter, int code, std::string_view kind, std::string_view message) {
  log_error("{}", message);
  try {
    reporter.fail(code, kind, message);
  } catch (const std::exception& e) {
    log_error("{}", e.what());
  }
  return code;
}

}  // namespace
}  // namespace fut::app

int main(int argc, char** argv) {
  using namespace fut::app;
  using fut::ErrorKind;
  guard_standard_streams();
  install_signal_handlers();
  set_up_logging({});
  const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  const Environment environment = [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  };
  const bool json = json_was_requested(words, environment);
  Reporter reporter(json ? OutputFormat::Json : OutputFormat::Text);
  try {
    return run_program(words, environment, reporter);
  } catch (const fut::Error& e) {
    return fail(reporter, static_cast<int>(e.kind()), error_kind_name(e.kind()), e.what());
  } catch (const Interrupted& e) {
    const int code = exit_code_of_signal(e.signal());
    reporter.document()["finish_reason"] = "interrupt";
    return fail(reporter, code, "interrupt", interrupted_text(words, e));
  } catch (const std::bad_alloc&) {
    const int code = static_cast<int>(ErrorKind::Capacity);
    return fail(reporter, code, "capacity", "out of memory");
  } catch (const std::exception& e) {
    return fail(reporter, static_cast<int>(ErrorKind::Runtime), "runtime", e.what());
  }
}
