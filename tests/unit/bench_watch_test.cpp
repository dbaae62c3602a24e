// What fut bench sees of the machine while it measures: a GPU through a stand-in for the management
// library, a CPU through files that a test writes.
#include <cstdlib>
#include <gtest/gtest.h>
#include <thread>
#include <unistd.h>

#include "apps/bench/cpu_counters.h"
#include "apps/bench/machine_watch.h"
#include "kernels/nvml_meter.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace fut::app {
namespace {

using namespace std::chrono_literals;
using test::TempFolder;
using test::write_file;

constexpr const char* kGpu = "GPU-11111111-2222-3333-4444-555555555555";

// What goes wrong with the stand-in, for as long as this lives.
struct FakeNvml {
  explicit FakeNvml(const char* what) { ::setenv("FAKE_NVML", what, 1); }
  ~FakeNvml() { ::unsetenv("FAKE_NVML"); }
};

MachineState watched(const char* what, std::chrono::milliseconds duration = 1ms) {
  const FakeNvml fake(what);
  MachineWatch watch(kGpu, {});
  watch.begin();
  std::this_thread::sleep_for(duration);
  return watch.end();
}

TEST(GpuWatch, ReadsClocksPowerAndHeat) {
  const MachineState state = watched("alone", 130ms);
  EXPECT_EQ(state.median_mhz(), 1755);
  EXPECT_GE(state.clocks.size(), 3U);  // before, after, and at least once between
  EXPECT_EQ(state.most_mhz, 1980);
  EXPECT_DOUBLE_EQ(state.watts.value(), 400);
  EXPECT_EQ(state.most_watts, 700);
  EXPECT_EQ(state.celsius, 51);
  EXPECT_FALSE(state.throttled());
  EXPECT_FALSE(state.shared());
  EXPECT_EQ(marks_text(state), "");
  EXPECT_EQ(machine_text(state), "1755 MHz (1755 to 1755 of 1980), 400 W of 700, 51 C");
}

TEST(GpuWatch, MarksWhatHeatAndPowerHeldBack) {
  const MachineState hot = watched("hot");
  EXPECT_EQ(hot.slowed_by, (std::vector<std::string>{"heat", "heat, by the hardware"}));
  EXPECT_NE(marks_text(hot).find("THROTTLED by heat"), std::string::npos);
  const MachineState limited = watched("limited");
  EXPECT_EQ(limited.slowed_by, std::vector<std::string>{"power limit"});
  EXPECT_EQ(machine_json(limited).at("throttled"), true);
  EXPECT_EQ(machine_json(limited).at("slowed_by").at(0), "power limit");
  EXPECT_EQ(machine_json(limited).at("mhz").at("least"), 1755);
  EXPECT_EQ(machine_json(limited).at("watts_limit"), 700);
  EXPECT_EQ(nvml::slowdowns(0x08), std::vector<std::string>{"the hardware"});
  EXPECT_TRUE(nvml::slowdowns(0x01 | 0x02 | 0x10 | 0x100).empty());
}

TEST(GpuWatch, MarksWhatOthersUsed) {
  const MachineState state = watched("");
  // The other one is unknown here and was not there before: this process as a container's host sees it.
  ASSERT_EQ(state.others.size(), 1U);
  EXPECT_TRUE(state.others[0].starts_with("process 1 ("));
  EXPECT_TRUE(state.others[0].ends_with(", 40.0 GiB"));
  EXPECT_NE(marks_text(state).find("; SHARED with process 1 ("), std::string::npos);
  EXPECT_EQ(machine_json(state).at("shared"), true);
  const FakeNvml fake("");
  MachineWatch watch(kGpu, nvml::look());
  watch.begin();
  const MachineState both = watch.end();
  ASSERT_EQ(both.others.size(), 2U);
  EXPECT_EQ(both.others[1], "process 4000000 (in another container)");
}

TEST(GpuWatch, TellsTheEnergyThatIsCounted) {
  const MachineState state = watched("alone");
  EXPECT_TRUE(state.joules_counted);
  EXPECT_DOUBLE_EQ(state.joules.value(), 10);
  EXPECT_DOUBLE_EQ(energy_json(state, 40).at("joules_per_token"), 0.25);
  EXPECT_TRUE(energy_text(state, 40).starts_with("0.25 J a token (10 J, 40 tokens, "));
}

TEST(GpuWatch, TellsTheEnergyOfItsPowerWhereNoneIsCounted) {
  const MachineState state = watched("uncounted", 60ms);
  EXPECT_FALSE(state.joules_counted);
  EXPECT_DOUBLE_EQ(state.joules.value(), 400 * state.seconds);
  EXPECT_GE(state.seconds, 0.06);
  EXPECT_NE(energy_text(state, 1).find("from its power"), std::string::npos);
}

TEST(GpuWatch, NothingIsToldWhereNothingIs) {
  for (const char* fault : {"not loaded", "mismatch"}) {
    const MachineState state = watched(fault);
    EXPECT_FALSE(state.throttled() || state.shared() || state.joules || state.watts);
    EXPECT_TRUE(state.clocks.empty());
    EXPECT_EQ(machine_text(state), "");
    EXPECT_EQ(energy_text(state, 1), "not told by this machine");
    EXPECT_TRUE(energy_json(state, 1).is_null());
    EXPECT_FALSE(machine_json(state).contains("mhz"));
  }
  EXPECT_FALSE(nvml::Meter("GPU-of-nobody").works());
}

TEST(GpuWatch, CanBeginAnewAndBeLeft) {
  MachineWatch watch(kGpu, {});
  watch.begin();
  watch.begin();
  EXPECT_DOUBLE_EQ(watch.end().joules.value(), 10);
  watch.begin();  // and never ended
}

TEST(GpuWatch, TheGpuIsTheBackendsOwn) {
  GpuSurvey survey;
  survey.devices.resize(3);
  survey.devices[0].index = -1;
  survey.devices[0].uuid = "hidden";
  survey.devices[1].index = 0;
  survey.devices[1].uuid = "first";
  survey.devices[2].index = 10;
  survey.devices[2].uuid = "eleventh";
  EXPECT_EQ(gpu_of("cuda:0 NVIDIA H200, compute capability 9.0", survey), "first");
  EXPECT_EQ(gpu_of("cuda:10 NVIDIA H200", survey), "eleventh");
  EXPECT_EQ(gpu_of("cuda:1 NVIDIA H200", survey), "");
  EXPECT_EQ(gpu_of("CPU, 2 threads", survey), "");
}

// A machine of files: two cores, and a package that counts its energy.
class CpuWatch : public ::testing::Test {
 protected:
  void SetUp() override { write(1000, 9000, 3, 5'000'000); }
  // Times in ticks of all cores.
  void write(std::int64_t busy, std::int64_t idle, int slowdowns, std::int64_t microjoules) const {
    const auto put = [&](const std::string& name, const std::string& text) {
      const auto path = root() / name;
      std::filesystem::create_directories(path.parent_path());
      write_file(path, text + "\n");
    };
    put("proc/stat", "cpu  " + std::to_string(busy) + " 0 0 " + std::to_string(idle) +
                         " 0 0 0 0 0 0\ncpu0 1 1 1 1");
    for (const char* core : {"cpu0", "cpu1"}) {
      const std::string folder = std::string("sys/devices/system/cpu/") + core;
      put(folder + "/cpufreq/scaling_cur_freq", core[3] == '0' ? "3000000" : "2000000");
      put(folder + "/thermal_throttle/core_throttle_count",
          core[3] == '0' ? std::to_string(slowdowns) : "7");
    }
    put("sys/devices/system/cpu/cpufreq/other", "1");
    put("sys/class/powercap/intel-rapl:0/energy_uj", std::to_string(microjoules));
    put("sys/class/powercap/intel-rapl:0/max_energy_range_uj", "20000000");
    put("sys/class/powercap/intel-rapl:0:0/energy_uj", "1");  // a part of the package
  }
  [[nodiscard]] std::filesystem::path root() const { return folder_.path(); }

  TempFolder folder_;
};

TEST_F(CpuWatch, ReadsWhatTheSystemCounts) {
  MachineWatch watch("", {}, root());
  watch.begin();
  write(1002, 9400, 3, 9'000'000);
  const MachineState state = watch.end();
  EXPECT_EQ(state.median_mhz(), 2500);
  EXPECT_DOUBLE_EQ(state.joules.value(), 4);
  EXPECT_TRUE(state.joules_counted);
  EXPECT_FALSE(state.throttled() || state.shared());
}

TEST_F(CpuWatch, MarksHeatAndOthers) {
  MachineWatch watch("", {}, root());
  watch.begin();
  const auto ticks = static_cast<int>(::sysconf(_SC_CLK_TCK));
  write(1000 + 2 * ticks, 9000 + 2 * ticks, 4, 5'000'000);
  const MachineState state = watch.end();
  EXPECT_EQ(state.slowed_by, std::vector<std::string>{"heat"});
  ASSERT_EQ(state.others.size(), 1U);
  // Half of the time but for what this process took itself.
  EXPECT_TRUE(state.others[0].starts_with("other processes, 4")) << state.others[0];
}

TEST_F(CpuWatch, CountersOfEnergyBeginAnew) {
  const CpuCounters before = read_cpu_counters(root());
  write(1000, 9000, 3, 1'000'000);
  EXPECT_DOUBLE_EQ(joules_between(before, read_cpu_counters(root())).value(), 16);
  EXPECT_FALSE(joules_between({}, before).has_value());
}

TEST(EmptyMachine, NothingIsToldOfAMachineWithoutFiles) {
  const TempFolder folder;
  MachineWatch watch("", {}, folder.path());
  watch.begin();
  const MachineState state = watch.end();
  EXPECT_FALSE(state.throttled() || state.shared() || state.joules);
  EXPECT_EQ(machine_text(state), "");
}

TEST(ClockDrops, AreSeenInTheStepsThatTheySurround) {
  MachineState state;
  const auto start = std::chrono::steady_clock::now();
  for (const int mhz : {1980, 1980, 1200, 1980, 1980}) {
    state.clocks.push_back({start + 50ms * static_cast<int>(state.clocks.size()), mhz});
  }
  EXPECT_EQ(clock_drop(state, start + 110ms, start + 120ms), 1200);
  EXPECT_EQ(clock_drop(state, start + 10ms, start + 300ms), 1200);
  EXPECT_EQ(clock_drop(state, start + 10ms, start + 90ms), std::nullopt);
  EXPECT_EQ(clock_drop(state, start + 160ms, start + 170ms), std::nullopt);
  EXPECT_EQ(clock_drop({}, start, start), std::nullopt);
}

}  // namespace
}  // namespace fut::app
