// See the header.
#include "apps/bench/machine_state.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace fut::app {
namespace {

template <class T>
void add_known(Json& json, const char* key, const std::optional<T>& value) {
  if (value) json[key] = *value;
}

std::vector<int> sorted_clocks(const MachineState& state) {
  std::vector<int> clocks;
  for (const ClockReading& reading : state.clocks) clocks.push_back(reading.mhz);
  std::ranges::sort(clocks);
  return clocks;
}

}  // namespace

int MachineState::median_mhz() const {
  const std::vector<int> sorted = sorted_clocks(*this);
  return sorted.empty() ? 0 : sorted[sorted.size() / 2];
}

std::optional<int> clock_drop(const MachineState& state,
                              std::chrono::steady_clock::time_point begin,
                              std::chrono::steady_clock::time_point end) {
  constexpr double kDropped = 0.95;
  std::optional<int> least;
  for (std::size_t i = 0; i < state.clocks.size(); ++i) {
    // A reading tells of the time up to the next one.
    const bool is_past = i + 1 < state.clocks.size() && state.clocks[i + 1].time < begin;
    if (is_past || state.clocks[i].time > end) continue;
    least = std::min(least.value_or(state.clocks[i].mhz), state.clocks[i].mhz);
  }
  return least && *least < kDropped * state.median_mhz() ? least : std::nullopt;
}

std::string marks_text(const MachineState& state) {
  std::string text;
  if (state.throttled()) text += fmt::format("; THROTTLED by {}", fmt::join(state.slowed_by, ", "));
  if (state.shared()) text += fmt::format("; SHARED with {}", fmt::join(state.others, ", "));
  return text;
}

std::string machine_text(const MachineState& state) {
  std::vector<std::string> parts;
  const std::vector<int> clocks = sorted_clocks(state);
  if (!clocks.empty()) {
    std::string text = fmt::format("{} MHz", state.median_mhz());
    if (clocks.front() != clocks.back() || state.most_mhz) {
      text += fmt::format(" ({} to {}{})", clocks.front(), clocks.back(),
                          state.most_mhz ? fmt::format(" of {}", *state.most_mhz) : "");
    }
    parts.push_back(std::move(text));
  }
  if (state.watts) {
    parts.push_back(
        fmt::format("{:.0f} W{}", *state.watts,
                    state.most_watts ? fmt::format(" of {:.0f}", *state.most_watts) : ""));
  }
  if (state.celsius) parts.push_back(fmt::format("{} C", *state.celsius));
  return fmt::format("{}", fmt::join(parts, ", "));
}

Json machine_json(const MachineState& state) {
  Json json = {{"throttled", state.throttled()},
               {"shared", state.shared()},
               {"slowed_by", state.slowed_by},
               {"others", state.others}};
  const std::vector<int> clocks = sorted_clocks(state);
  if (!clocks.empty()) {
    json["mhz"] = {
        {"median", state.median_mhz()}, {"least", clocks.front()}, {"most", clocks.back()}};
  }
  add_known(json, "mhz_limit", state.most_mhz);
  add_known(json, "watts", state.watts);
  add_known(json, "watts_limit", state.most_watts);
  add_known(json, "celsius", state.celsius);
  return json;
}

std::string energy_text(const MachineState& state, double tokens) {
  if (!state.joules) return "not told by this machine";
  return fmt::format("{:.4g} J a token ({:.4g} J, {:.0f} tokens, {:.2f} s), {}",
                     *state.joules / tokens, *state.joules, tokens, state.seconds,
                     state.joules_counted ? "counted by the device" : "from its power");
}

Json energy_json(const MachineState& state, double tokens) {
  if (!state.joules) return nullptr;
  return {{"joules", *state.joules},
          {"tokens", tokens},
          {"joules_per_token", *state.joules / tokens},
          {"seconds", state.seconds},
          {"counted", state.joules_counted}};
}

}  // namespace fut::app
