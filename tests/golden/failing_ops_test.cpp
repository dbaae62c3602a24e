// Every op, copy and wait between a model's first byte and the last token of a reply, made to fail one after the
// other as a device would: the error comes out as it was thrown, nothing waits for ever, and the backend serves
// the next engine as if nothing had been. And a kernel that faults on a real device.
#include <cstdlib>
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "tests/support/backends.h"
#include "tests/support/temp_folder.h"
#include "tests/support/toy_models.h"

namespace fut::test {
namespace {

// A backend whose n-th call fails; 0: none does.
class FailingOps : public Backend {
 public:
  FailingOps(Backend& inner, int failing) : inner_(inner), failing_(failing) {}

  [[nodiscard]] std::string description() const override { return inner_.description(); }
  [[nodiscard]] std::string fault(const ModelSizes& sizes) const override {
    return inner_.fault(sizes);
  }
  [[nodiscard]] MemoryState memory() const override { return inner_.memory(); }
  [[nodiscard]] DeviceBuffer allocate(std::size_t bytes) override { return inner_.allocate(bytes); }
  [[nodiscard]] DeviceBuffer allocate_shared(std::size_t bytes) override {
    return inner_.allocate_shared(bytes);
  }
  void upload(void* destination, std::span<const std::byte> source) override {
    next("upload");
    inner_.upload(destination, source);
  }
  [[nodiscard]] std::unique_ptr<Staging> make_staging(int pieces, std::size_t bytes) override {
    return inner_.make_staging(pieces, bytes);
  }
  void download(std::span<std::byte> destination, const void* source) override {
    next("download");
    inner_.download(destination, source);
  }
  void synchronize() override {
    next("synchronize");
    inner_.synchronize();
  }
  [[nodiscard]] bool runs_ahead() const override { return inner_.runs_ahead(); }
  [[nodiscard]] bool idle() override { return inner_.idle(); }
  [[nodiscard]] Procedure capture(Procedure body) override {
    return inner_.capture(std::move(body));
  }
  [[nodiscard]] int context_kind(int longest_context) const override {
    return inner_.context_kind(longest_context);
  }
  [[nodiscard]] SaturationCounts saturations() const override { return inner_.saturations(); }
  [[nodiscard]] std::vector<double> time_runs(const Procedure& body, int runs) override {
    return inner_.time_runs(body, runs);
  }
  [[nodiscard]] double measure_read_roof() override { return inner_.measure_read_roof(); }
  [[nodiscard]] double measure_product_roof() override { return inner_.measure_product_roof(); }
  void expand(const ExpandArgs& a) override {
    next("expand");
    inner_.expand(a);
  }
  void embed(const EmbedArgs& a) override {
    next("embed");
    inner_.embed(a);
  }
  void qkv_rope_append(const QkvRopeAppendArgs& a) override {
    next("qkv_rope_append");
    inner_.qkv_rope_append(a);
  }
  void attention(const AttentionArgs& a) override {
    next("attention");
    inner_.attention(a);
  }
  void linear_residual(const LinearResidualArgs& a) override {
    next("linear_residual");
    inner_.linear_residual(a);
  }
  void gate_up_swiglu(const GateUpSwigluArgs& a) override {
    next("gate_up_swiglu");
    inner_.gate_up_swiglu(a);
  }
  void lm_head(const LmHeadArgs& a) override {
    next("lm_head");
    inner_.lm_head(a);
  }
  void sample(const SampleArgs& a) override {
    next("sample");
    inner_.sample(a);
  }
  void advance(const StepState& state) override {
    next("advance");
    inner_.advance(state);
  }
  [[nodiscard]] OfflineOps* offline_ops() override { return inner_.offline_ops(); }

 private:
  void deallocate(void*) noexcept override {}  // what it hands out is the inner one's
  void next(const char* op) {
    if (++count_ == failing_) throw runtime_failure("{}: call {} was made to fail", op, count_);
  }

  Backend& inner_;
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
