// See the header.
#include "apps/input_files.h"

#include <filesystem>

#include "kernels/error.h"

namespace fut::app {
namespace fs = std::filesystem;
namespace {

constexpr const char* kStandardInput = "/dev/stdin";

std::string file_of(const std::string& name) {
  return name == "-" ? kStandardInput : name;
}

// Where nothing else is said, a text comes from standard input.
std::string file_of(const TextSource& source) {
  if (source.file) return file_of(*source.file);
  return !source.text || *source.text == "-" ? kStandardInput : "";
}

}  // namespace

std::vector<std::string> input_files(const GenerateOptions& options) {
  std::vector<std::string> files = {options.batch.given() ? file_of(options.batch.input_file)
                                                          : file_of(options.prompt.prompt)};
  if (options.prompt.system.given()) files.push_back(file_of(options.prompt.system));
  return files;
}

std::vector<std::string> input_files(const TokenizeOptions& options) {
  if (!options.input_file.empty()) return {options.input_file};
  if (!options.messages_file.empty()) return {options.messages_file};
  return {file_of(options.text)};
}

std::vector<std::string> input_files(const PerplexityOptions& options) {
  return {file_of(options.file)};
}

std::vector<std::string> input_files(const InspectOptions&) {
  return {};
}

std::vector<std::string> input_files(const BenchOptions& options) {
  return {options.dummy, options.latency.compare_old, options.latency.compare_new};
}

std::vector<std::string> input_files(const CheckOptions& options) {
  if (!options.prompt.prompt.given()) return {};
  return {file_of(options.prompt.prompt)};
}

std::vector<std::string> input_files(const CompareOptions& options) {
  std::vector<std::string> files = {file_of(options.prompt.prompt)};
  if (options.prompt.system.given()) files.push_back(file_of(options.prompt.system));
  return files;
}

std::vector<std::string> input_files(const DoctorOptions&) {
  return {};
}

std::vector<std::string> input_files(const PlanOptions& options) {
  return {options.model.model};
}

void refuse_input_as_output(const std::string& output, const std::vector<std::string>& inputs,
                            std::string_view flag) {
  std::error_code ignored;
  if (!fs::is_regular_file(output, ignored)) return;  // what is not there yet, terminals, pipes
  for (const std::string& input : inputs) {
    if (input.empty() || !fs::equivalent(output, input, ignored)) continue;
    throw usage_error("{} {}: is the input ({}), which the result would replace; give another file",
                      flag, output, input == kStandardInput ? "standard input" : input);
  }
}

void refuse_one_file_for_both(const std::string& plot, const std::string& output) {
  std::error_code ignored;
  if (!fs::is_regular_file(output, ignored) || !fs::equivalent(plot, output, ignored)) return;
  throw usage_error(
      "--plot {} and --output-file {} are one file, and each would replace the other; give two",
      plot, output);
}

}  // namespace fut::app
