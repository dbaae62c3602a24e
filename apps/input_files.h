// Which files a command reads its texts from, so that its result goes into none of them. Knows names
// alone, reads nothing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "apps/check/check.h"
#include "apps/compare/compare.h"
#include "apps/options.h"

namespace fut::app {

// As the options have them; standard input is /dev/stdin.
[[nodiscard]] std::vector<std::string> input_files(const GenerateOptions& options);
[[nodiscard]] std::vector<std::string> input_files(const TokenizeOptions& options);
[[nodiscard]] std::vector<std::string> input_files(const PerplexityOptions& options);
[[nodiscard]] std::vector<std::string> input_files(const InspectOptions& options);
[[nodiscard]] std::vector<std::string> input_files(const BenchOptions& options);
[[nodiscard]] std::vector<std::string> input_files(const PlanOptions& options);
[[nodiscard]] std::vector<std::string> input_files(const CheckOptions& options);
[[nodiscard]] std::vector<std::string> input_files(const CompareOptions& options);
[[nodiscard]] std::vector<std::string> input_files(const DoctorOptions& options);

// Throws Usage, naming the flag, where `output` is one of the inputs, by whatever name, or a file of any
// model. An empty name is no file.
void refuse_input_as_output(const std::string& output, const std::vector<std::string>& inputs,
                            std::string_view flag = "--output-file");

// Throws Usage where both name the same file, which may not be there yet. Empty names are no files; devices
// and pipes take both.
void refuse_same_output(const std::string& output, std::string_view flag, const std::string& other,
                        std::string_view other_flag);

}  // namespace fut::app
