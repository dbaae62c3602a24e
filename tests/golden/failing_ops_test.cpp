// Every op, copy and wait between a model's first byte and the last token of a reply, made to fail one after the
// other as a device would: the error comes out as it was thrown, nothing waits for ever, and the backend serves
// the next engine as if nothing had been. And a kernel that faults on a real device.
#include <cstdlib>
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "tests/support/backends.h"
#include "tests/support/forwarding_backend.h"
#include "tests/support/temp_folder.h"
#include "tests/support/toy_models.h"

namespace fut::test {
namespace {

// A backend whose n-th call fails; 0: none does.
class FailingOps : public ForwardingBackend {
 public:
  FailingOps(Backend& inner, int failing) : ForwardingBackend(inner), failing_(failing) {}

  void upload(void* destination, std::span<const std::byte> source) override {
    next("upload");
    ForwardingBackend::upload(destination, source);
  }
  void download(std::span<std::byte> destination, const void* source) override {
    next("download");
    ForwardingBackend::download(destination, source);
  }
  void synchronize() override {
    next("synchronize");
    ForwardingBackend::synchronize();
  }
  void expand(const ExpandArgs& a) override {
    next("expand");
    ForwardingBackend::expand(a);
  }
  void embed(const EmbedArgs& a) override {
    next("embed");
    ForwardingBackend::embed(a);
  }
  void qkv_rope_append(const QkvRopeAppendArgs& a) override {
    next("qkv_rope_append");
    ForwardingBackend::qkv_rope_append(a);
  }
  void attention(const AttentionArgs& a) override {
    next("attention");
    ForwardingBackend::attention(a);
  }
  void linear_residual(const LinearResidualArgs& a) override {
    next("linear_residual");
    ForwardingBackend::linear_residual(a);
  }
  void gate_up_swiglu(const GateUpSwigluArgs& a) override {
    next("gate_up_swiglu");
    ForwardingBackend::gate_up_swiglu(a);
  }
  void lm_head(const LmHeadArgs& a) override {
    next("lm_head");
    ForwardingBackend::lm_head(a);
  }
  void sample(const SampleArgs& a) override {
    next("sample");
    ForwardingBackend::sample(a);
  }
  void advance(const StepState& state) override {
    next("advance");
    ForwardingBackend::advance(state);
  }

 private:
  void next(const char* op) {
    if (++count_ == failing_) throw runtime_failure("{}: call {} was made to fail", op, count_);
  }

  int failing_;
  int count_ = 0;
};

// The tokens of a short prompt and of a longer one.
std::vector<std::int32_t> reply(Backend& backend, const std::filesystem::path& path,
                                Precision precision) {
  ModelConfig config = load_model_config(path);
  const Checkpoint checkpoint = Checkpoint::open(path, config);
  EngineOptions options;
  options.context_tokens = 128;
  options.max_sequences = 2;
  options.kv_cache = resolve_kv_cache(config, precision, {});
  Engine engine(backend, Model::load(backend, checkpoint, config, precision), options);
  for (const int length : {5, 40}) {
    Request request;
    request.prompt.assign(static_cast<std::size_t>(length), 7 + length);
    request.max_new_tokens = 3 + length / 20;
    engine.submit(std::move(request));
  }
  std::vector<std::int32_t> tokens;
  while (!engine.idle()) {
    for (const TokenEvent& event : engine.step()) tokens.push_back(event.token);
  }
  return tokens;
}

// How many calls a reply takes; each has failed once by then.
int fail_each(Backend& backend, const ToyModelOptions& options, Precision precision) {
  const TempFolder folder;
  const std::filesystem::path path = write_toy_model(folder / "m", options);
  const std::vector<std::int32_t> expected = reply(backend, path, precision);
  constexpr int kMany = 2000;
  for (int n = 1; n < kMany; ++n) {
    FailingOps failing(backend, n);
    try {
      EXPECT_EQ(reply(failing, path, precision), expected) << n;
      return n - 1;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::Runtime) << e.what();
      EXPECT_NE(std::string(e.what()).find("call " + std::to_string(n) + " was made to fail"),
                std::string::npos)
          << e.what();
    }
    if (n % 16 == 1) {
      EXPECT_EQ(reply(backend, path, precision), expected) << "after " << n;
    }
  }
  ADD_FAILURE() << "no run came to its end";
  return 0;
}

TEST(FailingOps, OfTheCpuAreReportedAndTheBackendGoesOn) {
  const std::vector<CpuSetup> setups = cpu_setups();
  EXPECT_GT(fail_each(*setups.back().backend, {}, Precision::F32), 80);
  EXPECT_GT(fail_each(*setups.back().backend, small_quantizable_model(), Precision::Bf16), 80);
}

TEST(FailingOps, OfTheGpuAreReportedAndTheBackendGoesOn) {
  FUT_REQUIRE_GPU_DEVICE();
  const std::unique_ptr<Backend> backend = gpu_backend();
  EXPECT_GT(fail_each(*backend, small_quantizable_model(), Precision::Bf16), 80);
}

// In a process of its own, for no call to the device works after that. Everything is still destroyed.
TEST(FaultingKernelDeathTest, EndsTheProcessWithTheDriversWords) {
  FUT_REQUIRE_GPU_DEVICE();
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fault = [] {
    int code = 0;
    {
      const std::unique_ptr<Backend> backend = gpu_backend();
      const DeviceBuffer ids = backend->allocate(256);
      const DeviceBuffer out = backend->allocate(4096);
      backend->upload(ids.as<void>(), std::vector<std::byte>(256));
      try {
        // Nothing lies at that address.
        backend->embed({ids.as<std::int32_t>(),
                        1,
                        {DType::F32, reinterpret_cast<void*>(std::uintptr_t{1} << 20), 1, 64},
                        MatrixView<float>{out.as<float>(), 1, 64, 64}});
        backend->synchronize();
      } catch (const Error& e) {
        std::fprintf(stderr, "%s\n", e.what());
        code = static_cast<int>(e.kind());
      }
    }
    std::exit(code);
  };
  EXPECT_EXIT(fault(), ::testing::ExitedWithCode(1), "cudaErrorIllegalAddress");
}

}  // namespace
}  // namespace fut::test
