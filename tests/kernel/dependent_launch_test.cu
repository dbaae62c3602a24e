// What the kernels take for granted of dependent launches: a kernel that has taken its turn sees all that
// every kernel before it wrote, however early it started, in a stream and in a recorded graph; and recorded
// edges are programmatic, or nothing would ever start early.
#include <cstdlib>
#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "kernels/cuda/ptx/dependent_launch.cuh"

namespace fut::test {
namespace {

constexpr int kKernels = 64;
constexpr int kBlocks = 132;
constexpr int kThreads = 128;
constexpr int kNumbers = kBlocks * kThreads;

// Why no test can run here; empty where they can.
std::string missing() {
  cudaDeviceProp device{};
  if (cudaGetDeviceProperties(&device, 0) != cudaSuccess) return "no CUDA device";
  return device.major == 9 ? "" : "no Hopper card";
}

void require(cudaError_t result) {
  ASSERT_EQ(result, cudaSuccess) << cudaGetErrorString(result);
}

// Kernel k: out = the sum of what the two kernels before it wrote, elsewhere in their arrays, modulo a
// prime; blocks dawdle first, each another time, so that early readers would see old numbers.
__global__ void __launch_bounds__(kThreads)
    step_kernel(const unsigned* before, const unsigned* before_that, unsigned* out, int k) {
  cuda::ptx::take_turn();
  const int i = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const long long end = clock64() + (blockIdx.x * 37 + k * 11) % 64 * 200;
  while (clock64() < end) {
  }
  const int from = (i + 4099) % kNumbers;
  out[i] = (before[from] + 3 * before_that[(i + 8111) % kNumbers] + 1) % 1000003U;
}

std::vector<unsigned> expected() {
  std::vector<std::vector<unsigned>> arrays(3, std::vector<unsigned>(kNumbers, 1));
  for (int k = 0; k < kKernels; ++k) {
    const auto& before = arrays[static_cast<std::size_t>((k + 2) % 3)];
    const auto& before_that = arrays[static_cast<std::size_t>((k + 1) % 3)];
    std::vector<unsigned> out(kNumbers);
    for (int i = 0; i < kNumbers; ++i) {
      out[static_cast<std::size_t>(i)] =
          (before[static_cast<std::size_t>((i + 4099) % kNumbers)] +
           3 * before_that[static_cast<std::size_t>((i + 8111) % kNumbers)] + 1) %
          1000003U;
    }
    arrays[static_cast<std::size_t>(k % 3)] = out;
  }
  return arrays[(kKernels - 1) % 3];
}

class DependentLaunch : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = missing(); !reason.empty()) {
      const char* wanted = std::getenv("FUT_REQUIRE_GPU");
      if (wanted != nullptr && std::string(wanted) == "1") {
        FAIL() << "a GPU is required but missing: " << reason;
      }
      GTEST_SKIP() << "no GPU: " << reason;
    }
    require(cudaStreamCreate(&stream_));
    for (unsigned*& array : arrays_) require(cudaMalloc(&array, kNumbers * sizeof(unsigned)));
  }
  void TearDown() override {
    for (unsigned* array : arrays_) static_cast<void>(cudaFree(array));
    if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
  }

  void reset() {
    const std::vector<unsigned> ones(kNumbers, 1);
    for (unsigned* array : arrays_) {
      require(cudaMemcpy(array, ones.data(), kNumbers * sizeof(unsigned), cudaMemcpyHostToDevice));
    }
  }
  // All kernels, each free to start as early as its predecessor lets it.
  void launch_chain() {
    for (int k = 0; k < kKernels; ++k) {
      cudaLaunchConfig_t launch = {};
      launch.gridDim = kBlocks;
      launch.blockDim = kThreads;
      launch.stream = stream_;
      cudaLaunchAttribute attribute = {};
      attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attribute.val.programmaticStreamSerializationAllowed = 1;
      launch.attrs = &attribute;
      launch.numAttrs = 1;
      require(cudaLaunchKernelEx(
          &launch, step_kernel, static_cast<const unsigned*>(arrays_[(k + 2) % 3]),
          static_cast<const unsigned*>(arrays_[(k + 1) % 3]), arrays_[k % 3], k));
    }
  }
  std::vector<unsigned> result() {
    require(cudaStreamSynchronize(stream_));
    std::vector<unsigned> values(kNumbers);
    require(cudaMemcpy(values.data(), arrays_[(kKernels - 1) % 3], kNumbers * sizeof(unsigned),
                       cudaMemcpyDeviceToHost));
    return values;
  }

  cudaStream_t stream_ = nullptr;
  unsigned* arrays_[3] = {};
};

TEST_F(DependentLaunch, SeesAllThatKernelsBeforeWrote) {
  const std::vector<unsigned> wanted = expected();
  for (int repeat = 0; repeat < 20; ++repeat) {
    reset();
    launch_chain();
    ASSERT_EQ(result(), wanted) << "repeat " << repeat;
  }
}

TEST_F(DependentLaunch, IsTheSameRecordedAndItsEdgesAreProgrammatic) {
  const std::vector<unsigned> wanted = expected();
  cudaGraph_t graph = nullptr;
  require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
  launch_chain();
  require(cudaStreamEndCapture(stream_, &graph));
  std::size_t count = 0;
  require(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
  ASSERT_EQ(count, static_cast<std::size_t>(kKernels - 1));
  std::vector<cudaGraphNode_t> from(count), to(count);
  std::vector<cudaGraphEdgeData> edges(count);
  require(cudaGraphGetEdges(graph, from.data(), to.data(), edges.data(), &count));
  for (const cudaGraphEdgeData& edge : edges) {
    EXPECT_EQ(edge.type, cudaGraphDependencyTypeProgrammatic);
  }
  cudaGraphExec_t executable = nullptr;
  require(cudaGraphInstantiate(&executable, graph, 0));
  for (int repeat = 0; repeat < 20; ++repeat) {
    reset();
    require(cudaGraphLaunch(executable, stream_));
    ASSERT_EQ(result(), wanted) << "repeat " << repeat;
  }
  static_cast<void>(cudaGraphExecDestroy(executable));
  static_cast<void>(cudaGraphDestroy(graph));
}

}  // namespace
}  // namespace fut::test
