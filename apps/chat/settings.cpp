// See the header.
#include "apps/chat/settings.h"

#include <algorithm>

#include "apps/flag_groups.h"
#include "apps/suggest.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

Flags settings_of(GenerateOptions& options) {
  Flags flags = sampling_flags(options.sampling);
  append(flags, reply_flags(options.reply));
  append(flags, form_flags(options.form));
  // What the conversation was begun with.
  std::erase_if(flags, [](const Flag& flag) {
    const std::string& name = flag_name(flag);
    return name == "--chat-template" || name == "--date" || name == "--parse-special" ||
           name == "--logprobs";
  });
  return flags;
}

void change_switch(GenerateOptions& options, const Flag& flag, const std::string& name,
                   const std::string& value) {
  const Argument argument{{}, name};
  if (value.empty() || value == "on") return flag.set(argument);
  if (value != "off") {
    throw usage_error("{}: '{}' is neither on nor off", name, value);
  }
  const std::string& flag_is = flag_name(flag);
  if (flag_is == "--ignore-eos") options.reply.ignore_eos = false;
  if (flag_is == "--special") options.reply.show_special = false;
  if (flag_is == "--verbose-prompt") options.form.verbose_prompt = false;
  if (flag_is == "--greedy") options.sampling.temperature.reset();
}

}  // namespace

std::vector<std::string> setting_names() {
  GenerateOptions options;
  std::vector<std::string> names = {kHistorySetting};
  for (const Flag& flag : settings_of(options)) names.push_back(flag_name(flag).substr(2));
  std::ranges::sort(names);
  return names;
}

void change_setting(GenerateOptions& options, const std::string& name, const std::string& value) {
  std::string wanted = name.substr(std::min(name.find_first_not_of('-'), name.size()));
  std::ranges::replace(wanted, '_', '-');
  std::vector<std::string> known = {kHistorySetting};
  for (const Flag& flag : settings_of(options)) {
    for (const std::string& spelling : flag.names) {
      if (spelling.starts_with("--")) known.push_back(spelling.substr(2));
      if (spelling.substr(spelling.find_first_not_of('-')) != wanted) continue;
      if (flag.value.empty()) return change_switch(options, flag, wanted, value);
      if (flag_name(flag) == "--stop" && value.empty()) return options.reply.stop.clear();
      if (value.empty()) throw usage_error("/set {} wants a value: {}", wanted, flag.value);
      return flag.set(Argument{value, wanted});
    }
  }
  const auto near = nearest_name(wanted, known);
  throw usage_error("no setting '{}'{}", name,
                    near ? fmt::format("; did you mean {}?", *near)
                         : fmt::format("; there are {}", fmt::join(setting_names(), ", ")));
}

}  // namespace fut::app
