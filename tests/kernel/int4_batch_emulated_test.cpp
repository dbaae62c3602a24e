// The INT4 main loop of batches, its own source, on the CPU (tests/emulator): every instance with every
// size of cluster and number of warpgroups, row groups one after the other, shares of K without groups and
// numbers of tokens around every edge give the bits that layout/k_segments.h promises; every output is
// written once and nothing beside; no order of turns or arrivals changes that.
#include <gtest/gtest.h>
#include <stdexcept>

#include "kernels/cuda/int4_batch_gemm.cuh"
#include "kernels/cuda/int4_batch_maps.h"
#include "kernels/cuda/int4_prepare.cuh"
#include "tests/kernel/int4_emulated_problem.h"

namespace fut::test {
namespace {

using cuda::Int4BatchConfig;
using cuda::Int4BatchPlan;
using cuda::Int4BatchTokens;
using cuda::Int4GemmMachine;

constexpr int kMostTokens = cuda::kMaxInt4Tokens;
constexpr int kFew = cuda::kFewBatchWarpgroups;
constexpr int kMany = cuda::kManyBatchWarpgroups;
constexpr int kColumnGap = 24;  // between rows of tokens, where they are not prepared

// ---- tokens ----------------------------------------------------------------------------------------

// As they come from another kernel, or from the one that prepares them. What is not there is NaN.
class Tokens {
 public:
  Tokens(const Problem& problem, int count, bool normalised, std::uint32_t seed)
      : stride_(problem.tile.cols + (normalised ? 0 : kColumnGap)),
        halves_(static_cast<std::size_t>(kMostTokens * stride_), 0xFFFF),
        factors_(normalised ? static_cast<std::size_t>(count) : 0, NAN),
        seen_factors_(factors_) {
    if (normalised) {
      prepare(problem, count, seed);
      return;
    }
    for (int token = 0; token < count; ++token) {
      std::copy_n(problem.halves.begin() + std::ptrdiff_t{token} * problem.tile.cols,
                  problem.tile.cols, halves_.begin() + token * stride_);
    }
  }

  [[nodiscard]] Int4BatchTokens view() const {
    return {halves_.data(), stride_, seen_factors_.empty() ? nullptr : seen_factors_.data()};
  }
  // The kernel before has ended: factors are there.
  void show() { seen_factors_ = factors_; }
  [[nodiscard]] const std::string& error() const { return error_; }

 private:
  void prepare(const Problem& problem, int count, std::uint32_t seed) {
    const cuda::NormedOperand operand{problem.x.data(), problem.tile.cols, Problem::kEps};
    emulator::Launch launch;
    launch.num_blocks = count;
    launch.threads = 32 * layout::kNumKSegments;
    launch.shared_bytes = 4 * layout::kNumKSegments;
    launch.seed = seed;
    error_ = emulator::run(launch, [&](std::uint8_t* shared) {
      cuda::ptx::take_turn();
      cuda::prepare_int4_token(operand, halves_.data(), factors_.data(), problem.tile.num_groups(),
                               problem.tile.group, reinterpret_cast<float*>(shared));
    });
  }

  std::int64_t stride_;
  std::vector<std::uint16_t> halves_;
  std::vector<float> factors_, seen_factors_;
  std::string error_;
};

// ---- a launch --------------------------------------------------------------------------------------

template <class Config, class Epilogue>
std::string emulate(const emulator::Launch& launch, const cuda::Int4BatchArgs& args,
                    const cuda::Int4BatchMaps& maps, const Epilogue& epilogue) {
  return emulator::run(launch, [&](std::uint8_t* shared) {
    cuda::Int4BatchGemm<Config, Epilogue>(args, maps, epilogue, shared).run();
  });
}

// With the instance for so many tokens, groups of this size and so many warpgroups at most.
template <class Epilogue>
std::string emulate(int tiles, int group, int most_warpgroups, const emulator::Launch& launch,
                    const cuda::Int4BatchArgs& args, const cuda::Int4BatchMaps& maps,
                    const Epilogue& epilogue) {
  const auto run = [&]<int kTiles, int kGroup>() {
    return most_warpgroups == kMany
               ? emulate<Int4BatchConfig<kTiles, kGroup, kMany>>(launch, args, maps, epilogue)
               : emulate<Int4BatchConfig<kTiles, kGroup, kFew>>(launch, args, maps, epilogue);
  };
  const auto run_tiles = [&]<int kTiles>() {
    return group == 128 ? run.template operator()<kTiles, 128>()
                        : run.template operator()<kTiles, 64>();
  };
  return tiles == 1   ? run_tiles.template operator()<1>()
         : tiles == 2 ? run_tiles.template operator()<2>()
                      : run_tiles.template operator()<4>();
}

// How the same numbers are come by.
struct Setting {
  int most_warpgroups = kFew;
  bool normalised = false;
  bool finishes = false;
  std::uint32_t seed = 0;
};

std::string describe(const Problem& p, const Int4BatchPlan& plan, const Setting& setting) {
  const auto& a = plan.args;
  return describe_shape(p) + named(", tokens ", a.num_tokens) + named(", cluster ", a.cluster) +
         named(", blocks ", plan.num_blocks) + named(", warpgroups ", a.warpgroups) +
         named(" of ", setting.most_warpgroups) + named(", stages ", a.stages) +
         named(", seed ", setting.seed);
}

// Empty, or what is wrong.
std::string run(const Problem& problem, Int4BatchPlan plan, const Setting& setting) {
  Tokens tokens(problem, plan.args.num_tokens, setting.normalised, setting.seed);
  if (!tokens.error().empty()) return tokens.error();
  plan.args.factors = tokens.view().factors;
  cuda::Int4BatchMaps maps{cuda::batch_token_map(plan, problem.tile, tokens.view()),
                           cuda::batch_weight_map(plan, problem.tile, problem.packed.data())};
  maps.weights.is_constant = true;
  Outputs outputs(problem);
  std::vector<Notes> notes(static_cast<std::size_t>(plan.num_blocks * plan.threads()));
  emulator::Launch launch;
  launch.num_blocks = plan.num_blocks;
  launch.cluster = plan.args.cluster;
  launch.threads = plan.threads();
  launch.shared_bytes = plan.args.layout.bytes;
  launch.seed = setting.seed;
  launch.first_turn = [&] { tokens.show(); };
  const auto run_with = [&](const auto& epilogue) {
    return emulate(plan.tiles, problem.tile.group, setting.most_warpgroups, launch, plan.args, maps,
                   epilogue);
  };
  std::string error = setting.finishes ? run_with(FinishingEpilogue{outputs.target(), notes.data()})
                                       : run_with(FetchingEpilogue{outputs.target()});
  if (error.empty()) error = outputs.compare(plan.args.num_tokens, setting.normalised);
  if (error.empty() && setting.finishes) {
    error = compare_notes(notes, plan.threads(), Told::ItsBlock);
  }
  return error;
}

// ---- tests -----------------------------------------------------------------------------------------

// A way to take a problem, and whether there is room for inputs of the epilogue.
struct Way {
  Int4BatchPlan plan;
  bool fetches = true;
  int most_warpgroups = kFew;
};

// Clusters for all rows at a time, or `blocks` that take them in turn.
Way way_of(const Problem& problem, int warpgroups, int most_warpgroups, int cluster, int tokens,
           int blocks) {
  constexpr int kEnough = 16;
  const Int4GemmMachine machine = cluster == 1 ? Int4GemmMachine{blocks, 0, 0, 0}
                                               : Int4GemmMachine{0, kEnough, kEnough, kEnough};
  for (const bool fetches : {true, false}) {
    const auto plan =
        cuda::make_int4_batch_plan(warpgroups, cluster, problem.tile, tokens, fetches, machine);
    if (plan) return {*plan, fetches, most_warpgroups};
  }
  throw std::logic_error("no room for the sums of " + std::to_string(warpgroups) + " warpgroups");
}

// Turns what does not change sums, launch after launch: epilogue, where tokens and their factors come from,
// stages of the ring, the order in which threads take their turns.
class Variants {
 public:
  void expect(const Problem& problem, Way way) {
    constexpr int kStages[] = {2, 3, 4, 5, cuda::kMaxBatchStages};
    way.plan.args.stages = std::min(way.plan.args.stages, kStages[next_ % std::size(kStages)]);
    expect_unchanged(problem, way);
  }
  // As it is planned.
  void expect_unchanged(const Problem& problem, const Way& way) {
    const std::uint32_t i = next_++;
    const Setting setting{way.most_warpgroups, i % 2 == 0, i % 3 == 0 || !way.fetches,
                          i * 7 + i / 4};
    EXPECT_EQ(run(problem, way.plan, setting), "") << describe(problem, way.plan, setting);
  }

 private:
  std::uint32_t next_ = 0;
};

// Around the edges of 8 to a tile.
constexpr int kCountsOfTiles[3][4] = {{8, 5, 1, 7}, {16, 9, 13, 15}, {32, 17, 25, 31}};

template <class Fn>
void for_each_way(const Fn& fn) {
  for (const int most : {kFew, kMany}) {
    for (int warpgroups = 1; warpgroups <= most; ++warpgroups) {
      for (const int cluster : {1, 2, 4, 8}) fn(warpgroups, most, cluster);
    }
  }
}

// Odd numbers of groups, shares of K without groups; strips that fill no row group.
constexpr SmallShape kShapes[] = {{72, 640, 128}, {200, 1152, 128}, {328, 2176, 128},
                                  {40, 1344, 64}, {152, 320, 64},   {8, 64, 64}};

// Sanitizers slow all this down by ten: a part of the cases, of no fixed instance.
#ifdef FUT_SANITIZED
constexpr std::uint32_t kEvery = 5;
#else
constexpr std::uint32_t kEvery = 1;
#endif

TEST(Int4BatchEmulated, EveryInstanceGivesTheSameBits) {
  Variants variants;
  std::size_t next = 0;
  for (const SmallShape& shape : kShapes) {
    const Problem problem(shape, Numbers::Any);
    for_each_way([&](int warpgroups, int most, int cluster) {
      for (const auto& counts : kCountsOfTiles) {
        const int tokens = counts[next++ % std::size(counts)];
        if (next % kEvery != 0) continue;
        variants.expect(problem,
                        way_of(problem, warpgroups, most, cluster, tokens, 1 + tokens % 2));
      }
    });
  }
}

TEST(Int4BatchEmulated, EveryNumberOfTokensGivesTheSameBits) {
  Variants variants;
  for (const SmallShape& shape : {SmallShape{88, 384, 128}, {24, 448, 64}}) {
    const Problem problem(shape, Numbers::Any);
    for (int tokens = 1; tokens <= kMostTokens; ++tokens) {
      for (const int cluster : {1, 2, 4, 8}) {
        variants.expect(problem, way_of(problem, 1 + tokens % 2, kFew, cluster, tokens, 1));
      }
    }
  }
}

// From one group to more than the ring holds twice.
TEST(Int4BatchEmulated, EveryNumberOfGroupsGivesTheSameBits) {
  Variants variants;
  for (int groups = 1; groups <= 37; ++groups) {
    const Problem problem({16 + groups, 64 * groups, 64}, Numbers::Any);
    for (const int cluster : {1, 2, 4, 8}) {
      const int tokens = kCountsOfTiles[(groups + cluster) % 3 / 2 * 2][groups % 4];
      variants.expect(problem, way_of(problem, 1, kMany, cluster, tokens, 1));
    }
  }
}

// A block goes from row group to row group while its ring is filled ahead.
TEST(Int4BatchEmulated, TakesRowGroupAfterRowGroup) {
  Variants variants;
  for (const SmallShape& shape : {SmallShape{720, 384, 128}, {600, 320, 64}}) {
    const Problem problem(shape, Numbers::Any);
    for (const int tokens : {1, 8, 11, 16, 30, 32}) {
      for (int warpgroups = 1; warpgroups <= kMany; ++warpgroups) {
        const Way way = way_of(problem, warpgroups, kMany, 1, tokens, warpgroups < kFew ? 2 : 1);
        EXPECT_GT(way.plan.args.row_groups(), way.plan.num_blocks);
        variants.expect(problem, way);
      }
    }
  }
}

TEST(Int4BatchEmulated, NoOrderOfTurnsChangesABit) {
  const Problem longer({136, 704, 64}, Numbers::Any);
  const Problem shorter({264, 256, 128}, Numbers::Any);  // than the ring
  for (std::uint32_t seed = 0; seed < 160; seed += kEvery) {
    const Problem& problem = seed < 80 ? longer : shorter;
    for (const int cluster : {1, 4}) {
      Int4BatchPlan plan = way_of(problem, 2, kFew, cluster, seed % 2 == 0 ? 6 : 20, 1).plan;
      plan.args.stages = std::min(plan.args.stages, 2 + static_cast<int>(seed) / 8 % 4);
      const Setting setting{.normalised = true, .finishes = seed % 3 == 0, .seed = seed};
      EXPECT_EQ(run(problem, plan, setting), "") << describe(problem, plan, setting);
    }
  }
}

TEST(Int4BatchEmulated, PlansOfSmallMachinesGiveTheSameBits) {
  Variants variants;
  for (const SmallShape& shape : kShapes) {
    const Problem problem(shape, Numbers::Any);
    for (const Int4GemmMachine& machine :
         {Int4GemmMachine{6, 3, 2, 1}, Int4GemmMachine{2, 1, 0, 0}}) {
      for (const int tokens : {1, 8, 9, 16, 17, 32}) {
        const int most = tokens % 2 == 0 ? kMany : kFew;
        const auto plan = cuda::plan_int4_batch(problem.tile, tokens, true, most, machine);
        variants.expect_unchanged(problem, {plan, true, most});
      }
    }
  }
}

// The reference above adds in the main loop's order; this one does not care.
TEST(Int4BatchEmulated, GivesTheSumsOfIntegers) {
  Variants variants;
  for (const SmallShape& shape : kShapes) {
    const Problem problem(shape, Numbers::Integers);
    for (const int tokens : {7, 16, 32}) {
      for (const int cluster : {1, 8}) {
        variants.expect(problem, way_of(problem, 2, kFew, cluster, tokens, 2));
      }
    }
  }
}

// What an H200 is given for projections of Llama-3.1-8B, one cluster of it, with as many strips.
TEST(Int4BatchEmulated, AClusterOfARealPlanGivesTheSameBits) {
  constexpr Int4GemmMachine kMachine{132, 66, 30, 15};
  constexpr Int4GemmMachine kOne{1, 1, 1, 1};
  Variants variants;
  for (const auto& [rows, cols] : {std::pair{6144, 4096}, std::pair{4096, 14336}}) {
    for (const int tokens : {8, 16, 32}) {
      const Int4BatchPlan real =
          cuda::plan_int4_batch({rows, cols, 128}, tokens, true, kMany, kMachine);
      const Problem problem({16 * real.args.strips() - 4, cols, 128}, Numbers::Integers);
      const auto plan = cuda::make_int4_batch_plan(real.args.warpgroups, real.args.cluster,
                                                   problem.tile, tokens, true, kOne);
      ASSERT_TRUE(plan.has_value());
      EXPECT_EQ(plan->args.layout.bytes, real.args.layout.bytes);
      variants.expect_unchanged(problem, {*plan, true, kMany});
    }
  }
}

}  // namespace
}  // namespace fut::test
