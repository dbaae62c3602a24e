// Groups of flags that more than one command has, each filling one struct of options.h. The structs
// must outlive the flags.
#pragma once

#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/options.h"
#include "apps/values.h"

namespace fut::app {

using Flags = std::vector<Flag>;

// Headings in help.
inline constexpr const char* kModelSection = "Model and device";
inline constexpr const char* kPromptSection = "Prompt";
inline constexpr const char* kFormSection = "Chat form and raw text";
inline constexpr const char* kSamplingSection = "Sampling";
inline constexpr const char* kReplySection = "Reply";
inline constexpr const char* kOutputSection = "Output";
inline constexpr const char* kTextSection = "Text";

[[nodiscard]] Flag model_flag(std::string& model);
[[nodiscard]] Flags device_flags(ModelOptions& options);
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

// ---- setters for rows of a table ---------------------------------------------------------------

void append(Flags& flags, Flags more);
[[nodiscard]] std::function<void(const Argument&)> turn_on(bool& target);
[[nodiscard]] std::function<void(const Argument&)> turn_off(bool& target);
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
