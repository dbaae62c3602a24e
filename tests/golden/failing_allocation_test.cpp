// Every allocation from the start of a backend to the last token of a reply, made to fail one after the
// other: each is reported as what it is, nothing stays allocated, nothing waits for ever.
#include <algorithm>
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "tests/support/backends.h"
#include "tests/support/quantized_folder.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace fut::test {
namespace {

class FailingAllocation : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder = std::make_unique<TempFolder>();
    (void)quantize_for_test(source_path("configs/demo-6m"), *folder / "packed", {});
  }
  static void TearDownTestSuite() { folder.reset(); }

  // A reply from nothing, on the device that the request names; how many tokens it had.
  static int reply(const DeviceRequest& request, std::size_t& left) {
    std::string notice;
    const std::unique_ptr<Backend> backend = make_backend(request, notice);
    const std::size_t before = backend->memory().free_bytes;
    int tokens = 0;
    try {
      tokens = reply_on(*backend);
    } catch (...) {
      left = before - std::min(before, backend->memory().free_bytes);
      throw;
    }
    left = before - std::min(before, backend->memory().free_bytes);
    return tokens;
  }

  // The number of allocations of a whole run; each of them has failed once by then.
  static int fail_each(DeviceRequest request, std::size_t most_left) {
    constexpr int kMany = 1000;
    for (int n = 1; n < kMany; ++n) {
      request.failing_allocation = n;
      std::size_t left = 0;
      try {
        EXPECT_EQ(reply(request, left), kTokens);
        return n - 1;
      } catch (const Error& e) {
        EXPECT_EQ(e.kind(), ErrorKind::Capacity) << n << ": " << e.what();
        EXPECT_NE(std::string(e.what()).find("memory"), std::string::npos) << e.what();
      }
      EXPECT_LE(left, most_left) << "after allocation " << n << " failed";
    }
    ADD_FAILURE() << "no run of " << kMany << " came to its end";
    return 0;
  }

  static std::unique_ptr<TempFolder> folder;

 private:
  static constexpr int kTokens = 12;

  static int reply_on(Backend& backend) {
    ModelConfig config = load_model_config(*folder / "packed");
    const PackedModel packed = PackedModel::open(*folder / "packed", config);
    EngineOptions options;
    options.context_tokens = 256;
    options.max_sequences = 2;
    options.kv_cache = resolve_kv_cache(config, Precision::Int4, {});
    Engine engine(backend, Model::load_packed(backend, packed, config, Precision::Int4), options);
    for (int s = 0; s < 2; ++s) {
      Request request;
      request.prompt.assign(static_cast<std::size_t>(20 + 100 * s), 5 + s);
      request.max_new_tokens = kTokens / 2 + 2 * s - 1;
      engine.submit(std::move(request));
    }
    int tokens = 0;
    while (!engine.idle()) tokens += static_cast<int>(engine.step().size());
    return tokens;
  }
};
std::unique_ptr<TempFolder> FailingAllocation::folder;

TEST_F(FailingAllocation, OfTheCpuIsReportedAndNothingIsLost) {
  EXPECT_GE(fail_each({.kind = DeviceRequest::Kind::Cpu, .cpu_threads = 2}, 0), 30);
}

TEST_F(FailingAllocation, OfTheGpuIsReportedAndNothingIsLost) {
  FUT_REQUIRE_GPU_DEVICE();
  // What kernels reserved in passing stays with the backend, and the driver keeps their code.
  constexpr std::size_t kKept = std::size_t{256} << 20;
  const int count = fail_each({.kind = DeviceRequest::Kind::Cuda}, kKept);
  EXPECT_GE(count, 35);
  // Backends by the hundred: what they would lose would be missed here.
  const auto free_bytes = [&] {
    std::string notice;
    return make_backend({.kind = DeviceRequest::Kind::Cuda}, notice)->memory().free_bytes;
  };
  const std::size_t before = free_bytes();
  (void)fail_each({.kind = DeviceRequest::Kind::Cuda}, kKept);
  EXPECT_LE(before - std::min(before, free_bytes()), std::size_t{8} << 20);
  std::printf("%d allocations\n", count);
}

}  // namespace
}  // namespace fut::test
