// The CPU backend's memory, and which backend a request gets.
#include "kernels/cpu/cpu_backend.h"

#include <cstdint>
#include <gtest/gtest.h>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/error.h"
#include "tests/support/backends.h"

namespace fut::test {
namespace {

// The error that `action` throws; fails the test where it throws none.
template <class Action>
Error error_of(const Action& action) {
  try {
    action();
  } catch (const Error& e) {
    return e;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {ErrorKind::Runtime, ""};
}

bool contains(const Error& error, const std::string& words) {
  return std::string(error.what()).find(words) != std::string::npos;
}

TEST(CpuBackend, AllocatesAtMultiplesOf256) {
  cpu::CpuBackend backend(1);
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{255}, std::size_t{4097}}) {
    const DeviceBuffer buffer = backend.allocate(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.as<std::byte>()) % 256, 0U);
    EXPECT_EQ(buffer.bytes(), bytes);
  }
  EXPECT_EQ(backend.allocate(0).bytes(), 0U);
}

TEST(CpuBackend, RefusesMoreThanItsLimitWithBothNumbers) {
  cpu::CpuBackend backend(1, 1000);
  const DeviceBuffer first = backend.allocate(600);
  const Error error = error_of([&] { (void)backend.allocate(401); });
  EXPECT_EQ(error.kind(), ErrorKind::Capacity);
  EXPECT_TRUE(contains(error, "401 bytes")) << error.what();
  EXPECT_TRUE(contains(error, "400 bytes")) << error.what();
  EXPECT_EQ(backend.allocate(400).bytes(), 400U);
}

TEST(CpuBackend, RefusesWhatNoMachineHas) {
  cpu::CpuBackend backend(1);
  const Error error = error_of([&] { (void)backend.allocate(std::size_t{1} << 60); });
  EXPECT_EQ(error.kind(), ErrorKind::Capacity);
  EXPECT_TRUE(contains(error, "1152921504606846976 bytes")) << error.what();
}

TEST(CpuBackend, FreedMemoryCanBeHadAgain) {
  cpu::CpuBackend backend(1, 1000);
  for (int round = 0; round < 5; ++round) EXPECT_EQ(backend.allocate(900).bytes(), 900U);
  DeviceBuffer buffer = backend.allocate(900);
  buffer = DeviceBuffer();
  DeviceBuffer other = backend.allocate(800);
  DeviceBuffer moved = std::move(other);
  EXPECT_EQ(moved.bytes(), 800U);
  EXPECT_EQ(other.bytes(), 0U);  // NOLINT: moved from, and empty
  EXPECT_THROW((void)backend.allocate(900), Error);
}

TEST(CpuBackend, UploadAndDownloadCopy) {
  cpu::CpuBackend backend(1);
  const std::vector<float> values = normal_values(100, 1);
  const DeviceBuffer buffer = backend.allocate(400);
  backend.upload(buffer.as<float>(), std::as_bytes(std::span(values)));
  std::vector<float> back(100);
  backend.download(std::as_writable_bytes(std::span(back)), buffer.as<float>());
  EXPECT_EQ(values, back);
  backend.upload(nullptr, {});
  backend.download({}, nullptr);
}

TEST(CpuBackend, ACapturedProcedureRunsEachTimeItIsCalled) {
  cpu::CpuBackend backend(1);
  int calls = 0;
  const Backend::Procedure procedure = backend.capture([&] { ++calls; });
  EXPECT_EQ(calls, 0);
  procedure();
  procedure();
  EXPECT_EQ(calls, 2);
}

TEST(CpuBackend, HasClippedNothingWhenItIsNew) {
  const SaturationCounts counts = cpu::CpuBackend(1).saturations();
  EXPECT_EQ(counts.operands, 0U);
  EXPECT_EQ(counts.attention_outputs, 0U);
  EXPECT_EQ(counts.swiglu_outputs, 0U);
}

TEST(CpuBackend, SaysHowManyThreadsItUses) {
  EXPECT_EQ(cpu::CpuBackend(1).description().find("CPU, 1 thread,"), 0U);
  EXPECT_EQ(cpu::CpuBackend(3).description().find("CPU, 3 threads,"), 0U);
}

TEST(MakeBackend, GivesTheCpuWhenAskedForIt) {
  std::string notice;
  const auto backend = make_backend({DeviceRequest::Kind::Cpu, 0, 2}, notice);
  EXPECT_EQ(backend->description().find("CPU, 2 threads"), 0U);
  EXPECT_EQ(notice, "");
}

TEST(MakeBackend, AutoFallsToTheCpuAndSaysWhyInOneLine) {
  if (gpu_missing().empty()) GTEST_SKIP() << "there is a GPU that can be used";
  std::string notice;
  const auto backend = make_backend({DeviceRequest::Kind::Auto, 0, 1}, notice);
  EXPECT_EQ(backend->description().find("CPU"), 0U);
  EXPECT_NE(notice, "");
  EXPECT_EQ(notice.find('\n'), std::string::npos);
}

TEST(MakeBackend, RefusesCudaWithTheReasonAndTheWayOut) {
  std::string notice;
  for (const int index : {0, 9}) {
    if (index == 0 && gpu_missing().empty()) continue;
    const Error error = error_of([&] {
      (void)make_backend({DeviceRequest::Kind::Cuda, index, 1}, notice);
    });
    EXPECT_EQ(error.kind(), ErrorKind::Device);
    EXPECT_TRUE(contains(error, "cuda:" + std::to_string(index))) << error.what();
    EXPECT_TRUE(contains(error, "--device")) << error.what();
    EXPECT_FALSE(contains(error, "\n"));
  }
}

TEST(MakeBackend, AutoTakesTheGpuThatCanBeUsed) {
  FUT_REQUIRE_GPU_DEVICE();
  std::string notice;
  const auto backend = make_backend({DeviceRequest::Kind::Auto, 0, 1}, notice);
  EXPECT_EQ(backend->description().find("cuda:0"), 0U);
  EXPECT_EQ(notice, "");
  // What its kernels are not made for is said with the numbers.
  EXPECT_EQ(backend->fault({4096, 14336, 32, 8, 128, false}), "");
  EXPECT_NE(backend->fault({4096, 14336, 32, 8, 128, true}), "");
  EXPECT_NE(backend->fault({64, 128, 4, 2, 16, false}).find("16"), std::string::npos);
  EXPECT_NE(backend->fault({2048, 4096, 32, 2, 64, false}).find("16"), std::string::npos);
  EXPECT_NE(backend->fault({100, 256, 2, 1, 64, false}).find("100"), std::string::npos);
}

TEST(ListDevices, NamesTheCpuFirstAndAReasonForEachThatCannotBeUsed) {
  const std::vector<DeviceReport> reports = list_devices();
  ASSERT_GE(reports.size(), 2U);
  EXPECT_TRUE(reports[0].usable);
  EXPECT_EQ(reports[0].name.find("cpu"), 0U);
  for (const DeviceReport& report : reports) EXPECT_EQ(report.usable, report.reason.empty());
}

}  // namespace
}  // namespace fut::test
