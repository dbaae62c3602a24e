// The INT4 main loop of the GPU, its own source, on the CPU (tests/emulator): every instance, whole plans
// for small machines, and numbers of tokens around every edge give the bits that layout/k_segments.h
// promises; every output is written once and nothing beside; no order of turns or arrivals changes that.
#include <cstring>
#include <gtest/gtest.h>

#include "kernels/cuda/int4_gemm.cuh"
#include "kernels/cuda/int4_gemm_instances.h"
#include "kernels/cuda/int4_normed_operand.cuh"
#include "tests/kernel/int4_emulated_problem.h"

namespace fut::test {
namespace {

using cuda::Int4GemmPlan;

constexpr int kCounts[] = {1, 2, 3, 7, 8, 9, 16, 17, 24, 25, 31, 32};
constexpr int kThreads = cuda::kInt4GemmThreads;
// One strip, strips that fill no round or no block, segments without groups, and of one group and two.
constexpr SmallShape kShapes[] = {{16, 128, 128},   {40, 384, 128},  {200, 1152, 128},
                                  {328, 2048, 128}, {88, 256, 128},  {24, 256, 64},
                                  {100, 384, 64},   {328, 1152, 64}, {40, 2048, 64}};

// ---- operands --------------------------------------------------------------------------------------

struct HalfOperand {
  static constexpr bool kNormalised = false;
  const std::uint16_t* x;
  std::int64_t stride;

  cuda::uint2 load(int token, int k, float&) const {
    if (!emulator::has_turn()) emulator::fail("reads tokens before its turn");
    cuda::uint2 v{};
    std::memcpy(&v, x + token * stride + k, sizeof v);
    return v;
  }
};

struct NormedOperand : cuda::NormedOperand {
  cuda::uint2 load(int token, int k, float& squares) const {
    if (!emulator::has_turn()) emulator::fail("reads tokens before its turn");
    return cuda::NormedOperand::load(token, k, squares);
  }
};

// ---- a launch --------------------------------------------------------------------------------------

template <class Config, class Operand, class Epilogue>
std::string emulate(const Problem& problem, const Int4GemmPlan& plan, const Operand& operand,
                    const Epilogue& epilogue, std::uint32_t seed) {
  const emulator::Launch launch{
      plan.num_blocks,       plan.args.cluster,    kThreads, plan.args.layout.bytes,
      problem.packed.data(), problem.tile.bytes(), seed};
  return emulator::run(launch, [&](std::uint8_t* shared) {
    cuda::Int4Gemm<Config, Operand, Epilogue>(plan.args, operand, epilogue, shared).run();
  });
}

std::string describe(const Problem& p, const Int4GemmPlan& plan, std::uint32_t seed) {
  const auto& a = plan.args;
  const auto text = [](const char* name, std::int64_t value) {
    return std::string(name) + std::to_string(value);
  };
  return text("", p.tile.rows) + text(" x ", p.tile.cols) + text(", groups of ", p.tile.group) +
         text(", tokens ", a.num_tokens) + text(", tiles ", plan.config.tiles) +
         text(", segments ", plan.config.segments) + text(", piece ", plan.config.piece_groups) +
         text(", cluster ", a.cluster) + text(", blocks ", plan.num_blocks) +
         text(", lanes ", a.lanes) + text(", round ", a.round_strips) +
         text(", stages ", a.stages) + text(", seed ", seed);
}

// Runs the plan's instance on the problem's first tokens.
void expect_contract(const Problem& problem, Int4GemmPlan plan, bool normalised, bool finishes,
                     std::uint32_t seed) {
  plan.args.packed = problem.packed.data();
  std::string error;
  Outputs outputs(problem);
  std::vector<Notes> notes(static_cast<std::size_t>(plan.num_blocks * kThreads));
  const auto run = [&]<class Config>(Config, const auto& operand) {
    if (finishes) {
      error = emulate<Config>(problem, plan, operand,
                              FinishingEpilogue{outputs.target(), notes.data()}, seed);
    } else {
      error = emulate<Config>(problem, plan, operand, FetchingEpilogue{outputs.target()}, seed);
    }
  };
  const bool exists = cuda::with_int4_instance(problem.tile.group, plan.config, [&](auto config) {
    if (normalised) {
      run(config, NormedOperand{{problem.x.data(), problem.tile.cols, Problem::kEps}});
    } else {
      run(config, HalfOperand{problem.halves.data(), problem.tile.cols});
    }
  });
  ASSERT_TRUE(exists) << describe(problem, plan, seed);
  if (error.empty()) error = outputs.compare(plan.args.num_tokens, normalised);
  if (error.empty() && finishes) error = compare_notes(notes, kThreads);
  EXPECT_EQ(error, "") << describe(problem, plan, seed);
}

// ---- tests -----------------------------------------------------------------------------------------

// Turns what does not change sums, launch after launch: operand and epilogue, strips between two
// additions of segments, pieces of a ring, the order in which threads take their turns.
class Variants {
 public:
  void expect(const Problem& problem, Int4GemmPlan plan) {
    const std::uint32_t i = next_++;
    if (i / 4 % 3 == 1) plan.args.round_strips = 1;
    if (i / 4 % 3 == 2) plan.args.round_strips = (plan.args.round_strips + 1) / 2;
    if (i / 2 % 4 == 1) plan.args.stages = cuda::kFewTokenStages;
    expect_contract(problem, plan, i % 2 == 0, i % 5 < 3, i * 7 + i / 4);
  }
  // As it is planned.
  void expect_unchanged(const Problem& problem, const Int4GemmPlan& plan) {
    const std::uint32_t i = next_++;
    expect_contract(problem, plan, i % 2 == 0, i % 5 < 3, i * 7 + i / 4);
  }

 private:
  std::uint32_t next_ = 0;
};

// Every instance that is built, with every size of cluster that it can have.
template <class Fn>
void for_each_instance(int group, const Fn& fn) {
  for (const int piece : {2, 4}) fn(cuda::Int4GemmConfigValues{1, 1, piece, false}, 1);
  for (const int tiles : cuda::kInt4ExchangeTiles) {
    for (const int segments : cuda::kInt4ExchangeSegments) {
      for (const int cluster : {2, 4, 8}) {
        const cuda::Int4GemmConfigValues values{tiles, segments, 1, true};
        if (cuda::make_int4_plan(values, cluster, {16, 128, group}, 1, {}, {8, 4, 2, 1})) {
          fn(values, cluster);
        }
      }
    }
  }
}

// Of 8 to a tile; and one token alone, for tokens that are missing are read as the last one.
std::vector<int> counts_of(int tiles) {
  std::vector<int> counts = {1};
  for (const int count : kCounts) {
    if (count > 4 * tiles - (tiles == 1 ? 4 : 0) && count <= 8 * tiles) counts.push_back(count);
  }
  return counts;
}

TEST(Int4GemmEmulated, EveryInstanceGivesTheSameBits) {
  Variants variants;
  std::size_t next = 0;
  for (const SmallShape& shape : kShapes) {
    const Problem problem(shape, Numbers::Any);
    for_each_instance(shape.group, [&](const cuda::Int4GemmConfigValues& values, int cluster) {
      const std::vector<int> counts = counts_of(values.tiles);
      for (int some = 0; some < 2; ++some) {
        const int tokens = counts[next++ % counts.size()];
        const int clusters = 1 + tokens % 2;
        const auto plan = cuda::make_int4_plan(values, cluster, problem.tile, tokens, {2, true},
                                               {2 * clusters, clusters, clusters, clusters});
        if (plan) variants.expect(problem, *plan);
      }
    });
  }
}

TEST(Int4GemmEmulated, PlansOfSmallMachinesGiveTheSameBits) {
  Variants variants;
  for (const SmallShape& shape : kShapes) {
    const Problem problem(shape, Numbers::Any);
    for (const cuda::Int4GemmMachine& machine :
         {cuda::Int4GemmMachine{6, 3, 2, 1}, cuda::Int4GemmMachine{2, 1, 0, 0}}) {
      for (const int tokens : kCounts) {
        const auto plan =
            cuda::plan_int4_gemm(problem.tile, tokens, {tokens % 2 == 0 ? 2 : 4, true}, machine);
        if (plan) variants.expect_unchanged(problem, *plan);
      }
    }
  }
}

// The reference above adds in the main loop's order; this one does not care.
TEST(Int4GemmEmulated, GivesTheSumsOfIntegers) {
  Variants variants;
  for (const SmallShape& shape : kShapes) {
    const Problem problem(shape, Numbers::Integers);
    for (const int tokens : {1, 7, 16, 32}) {
      const auto plan = cuda::plan_int4_gemm(problem.tile, tokens, {4, true}, {4, 2, 1, 0});
      if (plan) variants.expect_unchanged(problem, *plan);
    }
  }
}

// More strips than a block has room for the sums of.
TEST(Int4GemmEmulated, AddsSegmentsUpInSeveralRounds) {
  const Problem problem({1040, 128, 128}, Numbers::Any);
  Variants variants;
  int several = 0;
  for (const int tokens : {3, 8, 16, 32}) {
    for_each_instance(128, [&](const cuda::Int4GemmConfigValues& values, int cluster) {
      if (8 * values.tiles < tokens || 4 * values.tiles > tokens + 4) return;
      const auto plan =
          cuda::make_int4_plan(values, cluster, problem.tile, tokens, {2, true}, {1, 1, 1, 1});
      ASSERT_TRUE(plan.has_value());
      if (plan->args.round_strips * plan->args.lanes < problem.tile.num_strips()) ++several;
      variants.expect_unchanged(problem, *plan);
    });
  }
  EXPECT_GT(several, 4);
}

// What an H200 is given for projections of Llama-3.1-8B, one cluster of it, with as many strips.
TEST(Int4GemmEmulated, AClusterOfARealPlanGivesTheSameBits) {
  constexpr cuda::Int4GemmMachine kMachine{132, 66, 30, 15};
  constexpr cuda::Int4GemmMachine kOne{1, 1, 1, 1};
  Variants variants;
  for (const auto& [rows, cols] : {std::pair{6144, 4096}, std::pair{4096, 14336}}) {
    for (const int tokens : {4, 8, 16, 32}) {
      const auto real = cuda::plan_int4_gemm({rows, cols, 128}, tokens, {4, true}, kMachine);
      if (!real) continue;
      const int clusters = real->num_blocks / real->args.cluster;
      const int strips = (rows / 16 + clusters - 1) / clusters;
      const Problem problem({16 * strips, cols, 128}, Numbers::Integers);
      const auto plan = cuda::make_int4_plan(real->config, real->args.cluster, problem.tile, tokens,
                                             {4, true}, kOne);
      ASSERT_TRUE(plan.has_value());
      EXPECT_EQ(plan->args.layout.bytes, real->args.layout.bytes);
      EXPECT_EQ(plan->args.round_strips, real->args.round_strips);
      variants.expect_unchanged(problem, *plan);
    }
  }
}

}  // namespace
}  // namespace fut::test
