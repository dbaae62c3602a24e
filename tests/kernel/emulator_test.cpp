// The emulator of GPU threads against small programs: what is right runs in every order of turns, and
// each mistake that it is there to find is found in some order.
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <vector>

#include "kernels/cuda/ptx/async_copy_4.cuh"
#include "kernels/cuda/ptx/bulk_copy.cuh"
#include "kernels/cuda/ptx/cluster.cuh"
#include "kernels/cuda/ptx/dependent_launch.cuh"
#include "kernels/cuda/ptx/int4_wgmma.cuh"
#include "kernels/cuda/ptx/tensor_copy.cuh"
#include "kernels/cuda/ptx/warpgroup.cuh"
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

TEST(Emulator, BarriersOfSomeThreadsLetGoWhenAllHaveCome) {
  const Launch launch{.threads = 128, .shared_bytes = 512};
  const auto with = [](int threads) {
    return [threads](std::uint8_t* shared) {
      auto* numbers = reinterpret_cast<float*>(shared);
      if (threadIdx.x >= 96) return;
      for (int i = 0; i < 3; ++i) {
        if (threadIdx.x < 64) {
          numbers[threadIdx.x] = static_cast<float>(i);
          ptx::arrive_at(1, threads);
        } else {
          ptx::meet_at(1, threads);
          require(numbers[threadIdx.x - 64] == static_cast<float>(i));
          require(numbers[threadIdx.x - 32] == static_cast<float>(i));
        }
        ptx::meet_at(2, 96);
      }
    };
  };
  expect_right(launch, with(96));
  expect_found(launch, "nobody can go on", with(128));
  expect_found(launch, "of other threads before",
               [&](std::uint8_t*) { ptx::meet_at(3, threadIdx.x < 64 ? 64 : 128); });
}

TEST(Emulator, FindsAWarpgroupOfWhichAWarpDoesNotMultiply) {
  const auto with = [](std::uint32_t threads) {
    return [threads](std::uint8_t* shared) {
      float c[1][4] = {};
      std::uint32_t a[4][4] = {};
      if (threadIdx.x >= threads) return;
      ptx::multiply_warpgroup<1, 1>(c, a, ptx::wgmma_descriptor(ptx::shared_address(shared)));
    };
  };
  const Launch launch{.threads = 256, .shared_bytes = 1024};
  expect_right(launch, with(256));
  expect_right(launch, with(128));
  expect_found(launch, "its warpgroup", with(96));
}

TEST(Emulator, FindsAnOperandThatIsWrittenToBeforeItsProductsAreDone) {
  const auto with = [](bool waits) {
    return [waits](std::uint8_t* shared) {
      constexpr int kNumbers = 64 * 64;  // of an operand
      auto* numbers = reinterpret_cast<std::uint16_t*>(shared);
      const auto fill = [&](float v) {
        for (int i = static_cast<int>(threadIdx.x); i < 2 * kNumbers; i += 128) {
          numbers[i] = f32_to_bf16(v);
        }
        __syncthreads();
      };
      fill(1.0F);
      float sums[32];
      const std::uint32_t a = ptx::shared_address(shared);
      ptx::wgmma_fence();
      ptx::wgmma(ptx::Bf16Operands{}, sums, ptx::wgmma_descriptor(a),
                 ptx::wgmma_descriptor(a + 2 * kNumbers), 0);
      ptx::wgmma_commit();
      if (waits) {
        ptx::wgmma_wait<0>();
        __syncthreads();
      }
      fill(2.0F);
      ptx::wgmma_wait<0>();
      for (const float sum : sums) require(sum == 16.0F);
    };
  };
  const Launch launch{.threads = 128, .shared_bytes = 2 * 8192};
  expect_right(launch, with(true));
  expect_found(launch, "a wrong number", with(false));
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

// Warp 0 arrives for phase after phase once warp 1 has seen the last one; a third warp waits for some.
TEST(Emulator, FindsAWaitForAPhaseThatParityCannotTell) {
  const Launch launch{.threads = 96, .shared_bytes = 32};
  const auto with = [](int first, int step) {
    return [first, step](std::uint8_t* shared) {
      constexpr int kPhases = 7;
      const std::uint32_t full = ptx::shared_address(shared);
      const std::uint32_t empty = full + 8;
      const auto warp = static_cast<int>(threadIdx.x / 32);
      if (threadIdx.x == 0) {
        ptx::barrier_init(full, 1);
        ptx::barrier_init(empty, step == 1 ? 2 : 1);
      }
      __syncthreads();
      const bool leads = threadIdx.x % 32 == 0;
      for (int i = warp == 2 ? first : 0; i < kPhases; i += warp == 2 ? step : 1) {
        if (warp == 0) {
          ptx::barrier_wait(empty, i % 2 ^ 1);
          __syncwarp();
          if (leads) ptx::barrier_arrive(full);
          __syncwarp();
        } else {
          ptx::barrier_wait(full, i % 2);
          __syncwarp();
          if (leads && (warp == 1 || step == 1)) ptx::barrier_arrive(empty);
        }
      }
    };
  };
  expect_right(launch, with(0, 1));
  expect_found(launch, "waits for a phase", with(0, 3));
  expect_found(launch, "waits for a phase", with(1, 3));
  expect_found(launch, "waits for a phase", with(0, 2));
}

// Rows of 64 numbers, eight of them in all, 9 times as many bytes apart as they have to be.
TEST(Emulator, CopiesBoxesWithZerosOutsideOfTheTensor) {
  std::vector<std::uint16_t> numbers(64 * 72, 0xFFFF);
  for (int row = 0; row < 8; ++row) {
    for (int k = 0; k < 60; ++k) {
      numbers[static_cast<std::size_t>(row * 576 + k)] = static_cast<std::uint16_t>(100 * row + k);
    }
  }
  const CUtensorMap map{
      .data = numbers.data(), .sizes = {60, 8, 1}, .strides = {1152, 0}, .box = {64, 4, 1}};
  const auto with = [&map](int first, bool takes_turn, std::uint32_t bytes) {
    return [=, &map](std::uint8_t* shared) {
      const std::uint32_t barrier = ptx::shared_address(shared + 1024);
      if (takes_turn) ptx::take_turn();
      if (threadIdx.x == 0) {
        ptx::barrier_init(barrier, 1);
        ptx::barrier_expect(barrier, bytes);
        ptx::copy_box(0, map, barrier, 0, first);
      }
      __syncwarp();
      ptx::barrier_wait(barrier, 0);
      for (int row = 0; row < 4; ++row) {
        for (int k = static_cast<int>(threadIdx.x); k < 64; k += 32) {
          std::uint16_t number = 0;
          std::memcpy(&number, shared + ptx::swizzled_offset(row, k), 2);
          const bool inside = first + row >= 0 && first + row < 8 && k < 60;
          require(number == (inside ? 100 * (first + row) + k : 0));
        }
      }
    };
  };
  const Launch launch{.threads = 32, .shared_bytes = 1040};
  for (const int first : {0, 3, 6, -2, 9}) expect_right(launch, with(first, true, 512));
  expect_found(launch, "before its turn", with(0, false, 512));
  expect_found(launch, "does not expect", with(0, true, 496));
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
