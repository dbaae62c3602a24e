// The emulator of GPU threads against small programs: what is right runs in every order of turns, and
// each mistake that it is there to find is found in some order.
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <vector>

#include "kernels/cuda/ptx/async_copy_4.cuh"
#include "kernels/cuda/ptx/bulk_copy.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/numeric/formats.h"
#include "tests/emulator/cluster.h"

namespace fut::test {
namespace {

using namespace cuda;
using emulator::Launch;

constexpr std::uint32_t kSeeds = 16;

// The errors of a program in all orders of turns.
template <class Kernel>
std::vector<std::string> errors_of(Launch launch, const Kernel& kernel) {
  std::vector<std::string> errors;
  for (launch.seed = 0; launch.seed < kSeeds; ++launch.seed) {
    std::string error = emulator::run(launch, kernel);
    if (!error.empty()) errors.push_back(std::move(error));
  }
  return errors;
}

template <class Kernel>
void expect_right(const Launch& launch, const Kernel& kernel) {
  const std::vector<std::string> errors = errors_of(launch, kernel);
  EXPECT_TRUE(errors.empty()) << errors[0];
}

template <class Kernel>
void expect_found(const Launch& launch, const std::string& what, const Kernel& kernel) {
  const std::vector<std::string> errors = errors_of(launch, kernel);
  ASSERT_FALSE(errors.empty()) << "not found: " << what;
  EXPECT_NE(errors[0].find(what), std::string::npos) << errors[0];
}

void require(bool good) {
  if (!good) emulator::fail("a wrong number");
}

// Each thread leaves a number for the next one.
void pass_on(float* numbers, void (*barrier)()) {
  numbers[threadIdx.x] = static_cast<float>(threadIdx.x);
  barrier();
  const std::uint32_t from = (threadIdx.x + 1) % blockDim.x;
  require(numbers[from] == static_cast<float>(from));
}

TEST(Emulator, FindsAMissingBarrierOfABlock) {
  const Launch launch{.num_blocks = 2, .threads = 128, .shared_bytes = 512};
  const auto with = [](void (*barrier)()) {
    return [barrier](std::uint8_t* shared) { pass_on(reinterpret_cast<float*>(shared), barrier); };
  };
  expect_right(launch, with([] { __syncthreads(); }));
  expect_found(launch, "a wrong number", with([] { __syncwarp(); }));
  expect_found(launch, "a wrong number", with([] {}));
  const Launch warp{.threads = 32, .shared_bytes = 128};
  expect_right(warp, with([] { __syncwarp(); }));
  expect_found(warp, "a wrong number", with([] {}));
}

TEST(Emulator, FindsAMissingBarrierOfACluster) {
  const Launch launch{.num_blocks = 4, .cluster = 4, .threads = 64, .shared_bytes = 16};
  const auto send = [](bool before, bool after) {
    return [before, after](std::uint8_t* shared) {
      if (before) {
        ptx::cluster_arrive();
        ptx::cluster_wait();
      }
      const std::uint32_t to = (blockIdx.x + 1) % 4;
      if (threadIdx.x == 40) {
        ptx::store_in_cluster(ptx::address_in_block(ptx::shared_address(shared + 4), to), 7.0F);
      }
      if (after) {
        ptx::cluster_arrive();
        ptx::cluster_wait();
        require(*reinterpret_cast<float*>(shared + 4) == 7.0F);
      }
    };
  };
  expect_right(launch, send(true, true));
  expect_found(launch, "does not run", send(false, true));
  expect_found(launch, "does not run", send(true, false));
}

TEST(Emulator, FindsThreadsThatWaitForNobody) {
  const Launch launch{.threads = 64, .shared_bytes = 16};
  expect_found(launch, "nobody can go on", [](std::uint8_t*) {
    if (threadIdx.x != 5) __syncthreads();
  });
  expect_found(launch, "nobody can go on", [](std::uint8_t*) {
    if (threadIdx.x != 5) __syncwarp();
  });
  expect_found(launch, "different instructions", [](std::uint8_t*) {
    if (threadIdx.x == 5) {
      __syncwarp();
    } else {
      (void)__shfl_xor_sync(0xFFFFFFFFU, 1.0F, 1);
    }
  });
  expect_found(launch, "without arriving", [](std::uint8_t*) { ptx::cluster_wait(); });
  expect_found(launch, "between arriving", [](std::uint8_t*) { ptx::cluster_arrive(); });
}

// Two places, filled again and again: 0 .. 9 in turn.
struct RingMistakes {
  bool waits = true, releases = true, turns_parity = true;
};

void run_ring(std::uint8_t* shared, const std::vector<float>& numbers, const RingMistakes& how) {
  constexpr int kPieces = 10;
  const std::uint32_t barriers = ptx::shared_address(shared);
  const std::uint32_t places = barriers + 128;
  const auto request = [&](int i) {
    if (i >= kPieces) return;
    ptx::barrier_expect(barriers + 8 * (i % 2), 16);
    ptx::bulk_copy(places + 16 * (i % 2), numbers.data() + 4 * i, 16, barriers + 8 * (i % 2), 0);
  };
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) ptx::barrier_init(barriers + 8 * i, 1);
    for (int i = 0; i < 2; ++i) request(i);
  }
  __syncwarp();
  for (int i = 0; i < kPieces; ++i) {
    if (how.waits) ptx::barrier_wait(barriers + 8 * (i % 2), how.turns_parity ? i / 2 % 2 : 0);
    const uint4 v = ptx::load_shared_16(places + 16 * (i % 2));
    require(__uint_as_float(v.x) == static_cast<float>(4 * i));
    if (how.releases) __syncwarp();
    if (threadIdx.x == 0) request(i + 2);
  }
}

TEST(Emulator, FindsUseBeforeArrivalAndAPlaceFilledTooSoon) {
  std::vector<float> numbers;
  for (int i = 0; i < 40; ++i) numbers.push_back(static_cast<float>(i));
  const Launch launch{.threads = 32,
                      .shared_bytes = 256,
                      .readable = reinterpret_cast<const std::uint8_t*>(numbers.data()),
                      .readable_bytes = 160};
  const auto with = [&](const RingMistakes& how) {
    return [&numbers, how](std::uint8_t* shared) { run_ring(shared, numbers, how); };
  };
  expect_right(launch, with({}));
  EXPECT_FALSE(errors_of(launch, with({.waits = false})).empty());
  EXPECT_FALSE(errors_of(launch, with({.releases = false})).empty());
  EXPECT_FALSE(errors_of(launch, with({.turns_parity = false})).empty());
  expect_found(launch, "beside the matrix", [&](std::uint8_t* shared) {
    const std::uint32_t barrier = ptx::shared_address(shared);
    if (threadIdx.x != 0) return;
    ptx::barrier_init(barrier, 1);
    ptx::barrier_expect(barrier, 32);
    ptx::bulk_copy(barrier + 128, numbers.data() + 36, 32, barrier, 0);
  });
}

// Block 1 sends a number to block 0, which waits for it.
TEST(Emulator, FindsABlockThatEndsBeforeACopyOutOfItWasRead) {
  const Launch launch{.num_blocks = 2, .cluster = 2, .threads = 32, .shared_bytes = 64};
  const auto with = [](bool waits) {
    return [waits](std::uint8_t* shared) {
      const std::uint32_t barrier = ptx::shared_address(shared);
      const std::uint32_t place = ptx::shared_address(shared + 16);
      const bool leads = threadIdx.x == 0;
      if (leads) ptx::barrier_init(barrier, 1);
      ptx::cluster_arrive();
      ptx::cluster_wait();
      if (blockIdx.x == 0) {
        if (leads) ptx::barrier_expect(barrier, 16);
        ptx::barrier_wait(barrier, 0);
        require(ptx::load_shared_pair(place).x == 7);
      } else if (leads) {
        ptx::store_shared_pair(place + 16, {7, 0});
        ptx::store_shared_pair(place + 24, {0, 0});
        ptx::copy_to_block(ptx::address_in_block(place, 0), place + 16, 16,
                           ptx::address_in_block(barrier, 0));
        if (waits) ptx::wait_until_sent();
      }
    };
  };
  expect_right(launch, with(true));
  expect_found(launch, "before a copy out of it was read", with(false));
}

TEST(Emulator, FindsWritesBesideSharedMemoryAndReadsOfWhatNobodyWrote) {
  const Launch launch{.threads = 32, .shared_bytes = 256};
  expect_found(launch, "beside its shared memory", [](std::uint8_t* shared) { shared[256] = 0; });
  expect_found(launch, "beside its shared memory", [](std::uint8_t* shared) { shared[-1] = 0; });
  expect_found(launch, "offset 252", [](std::uint8_t* shared) {
    (void)ptx::load_shared_16(ptx::shared_address(shared) + 252);
  });
  expect_right(launch, [](std::uint8_t* shared) {
    require(std::isnan(ptx::load_shared_bf16(ptx::shared_address(shared) + 20)));
  });
}

TEST(Emulator, CopiesOfFourBytesAreThereAfterWaitingAlone) {
  const Launch launch{.threads = 32, .shared_bytes = 128};
  const std::vector<float> numbers(32, 3.0F);
  const auto with = [&](bool waits) {
    return [&numbers, waits](std::uint8_t* shared) {
      auto* place = reinterpret_cast<float*>(shared) + threadIdx.x;
      ptx::copy_4_bytes(ptx::shared_address(place), &numbers[threadIdx.x]);
      if (waits) ptx::wait_for_copies();
      require(*place == 3.0F);
      ptx::wait_for_copies();
    };
  };
  expect_right(launch, with(true));
  expect_found(launch, "a wrong number", with(false));
}

TEST(Emulator, ShufflesAndAsks) {
  expect_right({.num_blocks = 3, .threads = 96, .shared_bytes = 16}, [](std::uint8_t*) {
    const auto mine = static_cast<float>(threadIdx.x);
    require(__shfl_xor_sync(0xFFFFFFFFU, mine, 4) == static_cast<float>(threadIdx.x ^ 4U));
    require(__syncthreads_or(threadIdx.x == 70 && blockIdx.x == 1) == (blockIdx.x == 1 ? 1 : 0));
    require(__syncthreads_or(0) == 0);
  });
}

}  // namespace
}  // namespace fut::test
