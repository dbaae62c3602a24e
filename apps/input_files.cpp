// See the header.
#include "apps/input_files.h"

#include <filesystem>

#include "kernels/error.h"
#include "loader/source_identity.h"

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
    throw usage_error("{} {}: is the input ({}), which would be written over; give another file",
                      flag, output, input == kStandardInput ? "standard input" : input);
  }
  if (is_model_file(output) || is_model_file(fs::weakly_canonical(output, ignored))) {
    throw usage_error("{} {}: is a file of a model, which would be written over; give another file",
                      flag, output);
  }
}

void refuse_same_output(const std::string& output, std::string_view flag, const std::string& other,
                        std::string_view other_flag) {
  if (output.empty() || other.empty()) return;
  std::error_code ignored;
  if (fs::exists(output, ignored) && !fs::is_regular_file(output, ignored)) return;
  if (fs::weakly_canonical(output, ignored) != fs::weakly_canonical(other, ignored)) return;
  throw usage_error("{} {} and {} {} are the same file; give two", flag, output, other_flag, other);
}

}  // namespace fut::app
