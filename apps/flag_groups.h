// Groups of flags that more than one command has, each filling one struct of options.h. The structs
// must outlive the flags.
#pragma once

#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/options.h"
#include "apps/values.h"

namespace fut::app {

using Flags = std::vector<Flag>;

// More than any model's context: what a flag that counts tokens takes at most.
inline constexpr std::int64_t kMostTokens = std::numeric_limits<std::int32_t>::max();

// Headings in help.
inline constexpr const char* kModelSection = "Model and device";
inline constexpr const char* kPromptSection = "Prompt";
inline constexpr const char* kFormSection = "Chat form and raw text";
inline constexpr const char* kSamplingSection = "Sampling";
inline constexpr const char* kReplySection = "Reply";
inline constexpr const char* kOutputSection = "Output";
inline constexpr const char* kTextSection = "Text";
inline constexpr const char* kArithmeticSection = "Arithmetic";

// The end of every command's help.
inline constexpr const char* kExitCodes =
    "Exit codes: 0 done, 1 failed while running, 2 wrong usage, 3 bad model, tokenizer, template "
    "or "
    "input,\n4 does not fit in memory or context, 5 no usable device, 129 hung up, 130 "
    "interrupted, 143 terminated.\n"
    "Every long flag can be set by an environment variable: --top-k by FUT_TOP_K. The command line "
    "wins over\nthe environment, which wins over the file of --config. A switch has a value "
    "there: FUT_KV_ROTATION=0 is\n--no-kv-rotation. A value that starts with a dash: --prompt=-x.";

[[nodiscard]] Flag model_flag(std::string& model);
// The value of --device, alone.
[[nodiscard]] DeviceRequest parse_device(const Argument& argument);
[[nodiscard]] Flags device_flags(DeviceRequest& device);
[[nodiscard]] Flag context_flag(std::optional<int>& tokens);
// `what` opens the help text: "The prompt".
[[nodiscard]] Flags prompt_flags(PromptOptions& options, const std::string& what);
[[nodiscard]] Flag chat_template_flag(std::optional<ChatTemplate>& target);
[[nodiscard]] Flag date_flag(std::optional<std::string>& target);
[[nodiscard]] Flags form_flags(FormOptions& options);
[[nodiscard]] Flags raw_flags(FormOptions& options);
[[nodiscard]] Flags sampling_flags(SamplingOptions& options);
[[nodiscard]] Flags reply_flags(ReplyOptions& options);
[[nodiscard]] Flags output_flags(OutputOptions& options, std::string help);
[[nodiscard]] Flags log_flags(LogOptions& options);

// The precisions as the command line spells them.
[[nodiscard]] Precision parse_precision(const Argument& argument);
// Precision, KV cache and head; arithmetic_flags.cpp has these two.
[[nodiscard]] Flags arithmetic_flags(ArithmeticOptions& options);
// What happens to a checkpoint that is quantised on the way.
[[nodiscard]] Flags copy_flags(ModelOptions& options);

// ---- setters for rows of a table ---------------------------------------------------------------

void append(Flags& flags, Flags more);
[[nodiscard]] std::function<void(const Argument&)> turn_on(bool& target);
[[nodiscard]] std::function<void(const Argument&)> turn_off(bool& target);
// --name and --no-name, which exclude each other. The helps say what each does.
[[nodiscard]] Flags on_off_flags(const std::string& name, const char* section, std::string on_help,
                                 std::string off_help, std::function<void(bool)> set);
// `set`, and a note that the flag was typed: one that would do nothing is refused then, while one of
// the environment or a file, which is there for many commands, is passed over.
[[nodiscard]] std::function<void(const Argument&)> noting_typed(
    bool& typed, std::function<void(const Argument&)> set);
// The empty text has a meaning, as in prompts.
[[nodiscard]] std::function<void(const Argument&)> set_any_text(std::optional<std::string>& target);

// `what` names the thing in "the empty text is no ...".
template <class Target>
[[nodiscard]] std::function<void(const Argument&)> set_text(Target& target, std::string_view what) {
  return [&target, what](const Argument& a) { target = parse_text(a, what); };
}
template <class Target>
[[nodiscard]] std::function<void(const Argument&)> set_integer(Target& target, std::int64_t least,
                                                               std::int64_t most,
                                                               std::string_view allowed) {
  return [&target, least, most, allowed](const Argument& a) {
    target = static_cast<int>(parse_integer(a, least, most, allowed));
  };
}
template <class Target>
[[nodiscard]] std::function<void(const Argument&)> set_real(Target& target, RealRange range) {
  return [&target, range](const Argument& a) { target = parse_real(a, range); };
}

}  // namespace fut::app
