// See the header.
#include "apps/startup_times.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <time.h>
#include <unistd.h>

namespace fut::app {
namespace {

double uptime_seconds() {
  timespec now = {};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

// When the process began, in the same seconds; now where the system does not say.
double process_start() {
  constexpr int kStartField = 22;  // of /proc/self/stat, counted from 1
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  // The second field is the program's name in brackets, which may hold blanks.
  const std::size_t after_name = text.rfind(')');
  if (after_name == text.npos) return uptime_seconds();
  std::istringstream fields(text.substr(after_name + 1));
  std::string field;
  for (int i = 3; i <= kStartField; ++i) fields >> field;
  const double ticks = std::atof(field.c_str());
  return ticks > 0 ? ticks / static_cast<double>(::sysconf(_SC_CLK_TCK)) : uptime_seconds();
}

}  // namespace

StartupTimes::StartupTimes() : start_(process_start()) {}

void StartupTimes::lap(std::string name, std::string note) {
  const double now = uptime_seconds() - start_;
  rows_.push_back({std::move(name), now - last_, std::move(note)});
  last_ = now;
}

void StartupTimes::add(std::string name, double seconds) {
  rows_.push_back({std::move(name), seconds, {}});
}

void StartupTimes::add_part(std::string name, double seconds, std::string note) {
  rows_.push_back({std::move(name), seconds, std::move(note), true});
}

double StartupTimes::total() const {
  double sum = 0;
  for (const Row& row : rows_) sum += row.is_part ? 0 : row.seconds;
  return sum;
}

std::string StartupTimes::table() const {
  std::string text;
  const auto line = [&](std::string_view name, double seconds, const std::string& note) {
    text += fmt::format("  {:<18}{:>8.3f} s{}{}\n", name, seconds, note.empty() ? "" : "  ", note);
  };
  for (const Row& row : rows_) line((row.is_part ? "  " : "") + row.name, row.seconds, row.note);
  line("to the first token", total(), {});
  return text;
}

Json StartupTimes::json() const {
  Json seconds = Json::object();
  for (const Row& row : rows_) seconds[row.name] = row.seconds;
  seconds["total"] = total();
  return seconds;
}

std::string load_text(const LoadTimes& times) {
  const double all = times.read_seconds + times.checksum_seconds + times.wait_seconds;
  const auto percent = [&](double part) { return all > 0 ? 100 * part / all : 0; };
  const double gigabytes = static_cast<double>(times.bytes) / 1e9;
  return fmt::format(
      "{:.2f} GB at {:.2f} GB/s; its threads: {:.0f} % reading, {:.0f} % checksums, {:.0f} % "
      "waiting for copies",
      gigabytes, times.seconds > 0 ? gigabytes / times.seconds : 0, percent(times.read_seconds),
      percent(times.checksum_seconds), percent(times.wait_seconds));
}

}  // namespace fut::app
