// The INT4 main loop of the GPU for few tokens, its own source, on the CPU (tests/emulator): every instance, whole plans
// for small machines, and numbers of tokens around every edge give the bits that layout/k_segments.h
// promises; every output is written once and nothing beside; no order of turns or arrivals changes that.
#include <cstring>
#include <gtest/gtest.h>

#include "kernels/cuda/int4_gemm.cuh"
#include "kernels/cuda/int4_normed_operand.cuh"
#include "tests/kernel/int4_emulated_problem.h"

namespace fut::test {
namespace {

using cuda::Int4GemmPlan;

constexpr int kCounts[] = {1, 2, 3, 4, 5, 7, 8};
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
  const emulator::Launch launch{.num_blocks = plan.num_blocks,
                                .threads = kThreads,
                                .shared_bytes = plan.args.layout.bytes,
                                .readable = problem.packed.data(),
                                .readable_bytes = problem.tile.bytes(),
                                .seed = seed};
  return emulator::run(launch, [&](std::uint8_t* shared) {
    cuda::Int4Gemm<Config, Operand, Epilogue>(plan.args, operand, epilogue, shared).run();
  });
}

std::string describe(const Problem& p, const Int4GemmPlan& plan, std::uint32_t seed) {
  const auto& a = plan.args;
  return describe_shape(p) + named(", tokens ", a.num_tokens) +
         named(", piece ", plan.piece_groups) + named(", blocks ", plan.num_blocks) +
         named(", round ", a.round_strips) + named(", seed ", seed);
}

// Calls fn with the Int4GemmConfig of these values.
template <class Fn>
void with_instance(int piece_groups, int group, const Fn& fn) {
  const auto with_group = [&]<int kGroup>() {
    if (piece_groups == 2) fn(cuda::Int4GemmConfig<2, kGroup>{});
    if (piece_groups == 4) fn(cuda::Int4GemmConfig<4, kGroup>{});
  };
  if (group == 128) {
    with_group.template operator()<128>();
  } else {
    with_group.template operator()<64>();
  }
}

// Runs the plan's instance on the problem's first tokens.
void expect_contract(const Problem& problem, Int4GemmPlan plan, bool normalised, bool finishes,
                     std::uint32_t seed) {
  plan.args.packed = problem.packed.data();
  std::string error = "no such instance";
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
  with_instance(plan.piece_groups, problem.tile.group, [&](auto config) {
    if (normalised) {
      run(config, NormedOperand{{problem.x.data(), problem.tile.cols, Problem::kEps}});
    } else {
      run(config, HalfOperand{problem.halves.data(), problem.tile.cols});
    }
  });
  if (error.empty()) error = outputs.compare(plan.args.num_tokens, normalised);
  if (error.empty() && finishes) error = compare_notes(notes, kThreads, Told::Itself);
  EXPECT_EQ(error, "") << describe(problem, plan, seed);
}

// ---- tests -----------------------------------------------------------------------------------------

// Turns what does not change sums, launch after launch: operand and epilogue, strips between two
// additions of segments, the order in which threads take their turns.
class Variants {
 public:
  void expect(const Problem& problem, Int4GemmPlan plan) {
    const std::uint32_t i = next_;
    if (i / 4 % 3 == 1) plan.args.round_strips = 1;
    if (i / 4 % 3 == 2) plan.args.round_strips = (plan.args.round_strips + 1) / 2;
    expect_unchanged(problem, plan);
  }
  // As it is planned.
  void expect_unchanged(const Problem& problem, const Int4GemmPlan& plan) {
    const std::uint32_t i = next_++;
    expect_contract(problem, plan, i % 2 == 0, i % 5 < 3, i * 7 + i / 4);
  }

 private:
  std::uint32_t next_ = 0;
};

cuda::Int4GemmMachine machine_of(int blocks) {
  return {.num_multiprocessors = blocks};
}

TEST(Int4GemmEmulated, EveryInstanceGivesTheSameBits) {
  Variants variants;
  for (const SmallShape& shape : kShapes) {
    const Problem problem(shape, Numbers::Any);
    for (const int piece : {2, 4}) {
      for (const int tokens : kCounts) {
        const auto plan =
            cuda::make_int4_plan(piece, problem.tile, tokens, true, machine_of(2 + tokens % 2));
        ASSERT_TRUE(plan.has_value());
        variants.expect(problem, *plan);
      }
    }
  }
}

TEST(Int4GemmEmulated, PlansOfSmallMachinesGiveTheSameBits) {
  Variants variants;
  for (const SmallShape& shape : kShapes) {
    const Problem problem(shape, Numbers::Any);
    for (const int blocks : {6, 2}) {
      for (int tokens = 1; tokens <= cuda::kFewTokens; ++tokens) {
        const auto plan = cuda::plan_int4_gemm(problem.tile, tokens, true, machine_of(blocks));
        ASSERT_TRUE(plan.has_value());
        variants.expect_unchanged(problem, *plan);
      }
    }
  }
}

// The reference above adds in the main loop's order; this one does not care.
TEST(Int4GemmEmulated, GivesTheSumsOfIntegers) {
  Variants variants;
  for (const SmallShape& shape : kShapes) {
    const Problem problem(shape, Numbers::Integers);
    for (const int tokens : {1, 3, 4}) {
      const auto plan = cuda::plan_int4_gemm(problem.tile, tokens, true, machine_of(4));
      ASSERT_TRUE(plan.has_value());
      variants.expect_unchanged(problem, *plan);
    }
  }
}

// More strips than a block has room for the sums of.
TEST(Int4GemmEmulated, AddsSegmentsUpInSeveralRounds) {
  const Problem problem({1040, 128, 128}, Numbers::Any);
  Variants variants;
  int several = 0;
  for (const int tokens : {1, 2, 3, 4, 8}) {
    for (const int piece : {2, 4}) {
      const auto plan = cuda::make_int4_plan(piece, problem.tile, tokens, true, machine_of(1));
      ASSERT_TRUE(plan.has_value());
      if (plan->args.round_strips < problem.tile.num_strips()) ++several;
      variants.expect_unchanged(problem, *plan);
    }
  }
  EXPECT_GT(several, 2);
}

// More outputs of one token than a block has threads for, by one lane each and by four.
TEST(Int4GemmEmulated, LanesThatShareOutputsGiveTheSameBits) {
  const Problem problem({1040, 128, 128}, Numbers::Any);
  Variants variants;
  auto plan = cuda::make_int4_plan(2, problem.tile, 1, true, machine_of(1));
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->args.log2_lanes, 0);
  for (const int round_strips : {3, 33, plan->args.round_strips}) {
    for (const int log2_lanes : {0, 2}) {
      plan->args.round_strips = round_strips;
      plan->args.log2_lanes = log2_lanes;
      variants.expect_unchanged(problem, *plan);
    }
  }
  const auto few = cuda::make_int4_plan(2, problem.tile, 1, true, machine_of(32));
  ASSERT_TRUE(few.has_value());
  EXPECT_EQ(few->args.log2_lanes, 2);
}

// What an H200 is given for projections of Llama-3.1-8B, one block of it, with as many strips.
TEST(Int4GemmEmulated, ABlockOfARealPlanGivesTheSameBits) {
  constexpr int kBlocks = 132;
  Variants variants;
  for (const auto& [rows, cols] : {std::pair{6144, 4096}, std::pair{4096, 14336}}) {
    for (const int tokens : {1, 4}) {
      const auto real = cuda::plan_int4_gemm({rows, cols, 128}, tokens, true, machine_of(kBlocks));
      ASSERT_TRUE(real.has_value());
      const int strips = (rows / 16 + kBlocks - 1) / kBlocks;
      const Problem problem({16 * strips, cols, 128}, Numbers::Integers);
      const auto plan =
          cuda::make_int4_plan(real->piece_groups, problem.tile, tokens, true, machine_of(1));
      ASSERT_TRUE(plan.has_value());
      EXPECT_EQ(plan->args.layout.bytes, real->args.layout.bytes);
      EXPECT_EQ(plan->args.round_strips, real->args.round_strips);
      variants.expect_unchanged(problem, *plan);
    }
  }
}

}  // namespace
}  // namespace fut::test
