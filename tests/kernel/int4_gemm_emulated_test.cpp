// The INT4 main loop of the GPU, its own source, on the CPU (tests/emulator): every instance, whole plans
// for small machines, and numbers of tokens around every edge give the bits that layout/k_segments.h
// promises; every output is written once and nothing beside; no order of turns or arrivals changes that.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <random>

#include "kernels/cuda/int4_gemm.cuh"
#include "kernels/cuda/int4_gemm_instances.h"
#include "kernels/cuda/int4_normed_operand.cuh"
#include "kernels/numeric/formats.h"
#include "tests/support/backends.h"
#include "tests/support/compare.h"

namespace fut::test {
namespace {

using cuda::Int4GemmPlan;
using cuda::Int4Output;

constexpr int kCounts[] = {1, 2, 3, 7, 8, 9, 16, 17, 24, 25, 31, 32};
constexpr int kMargin = 64;  // floats before and after outputs
constexpr int kGap = 4;      // floats between rows
constexpr float kUntouched = 12345.0F;
constexpr int kThreads = cuda::kInt4GemmThreads;
constexpr float kLarge = 400;  // what the finishing epilogue takes notice of

struct SmallShape {
  int rows, cols, group;
};
// One strip, strips that fill no round or no block, segments without groups, and of one group and two.
constexpr SmallShape kShapes[] = {{16, 128, 128},   {40, 384, 128},  {200, 1152, 128},
                                  {328, 2048, 128}, {88, 256, 128},  {24, 256, 64},
                                  {100, 384, 64},   {328, 1152, 64}, {40, 2048, 64}};

// ---- operands and epilogues ------------------------------------------------------------------------

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

// Rows of outputs, their number of writes, and what the epilogue was given of `addend`.
struct Target {
  float* values;
  float* fetched;
  int* writes;
  const float* addend;
  std::int64_t stride;
  int rows;

  void put(int token, int row, float value, float given) const {
    if (!emulator::has_turn()) emulator::fail("writes before its turn");
    if (row >= rows) return;
    const std::int64_t i = token * stride + row;
    values[i] = value;
    fetched[i] = given;
    ++writes[i];
  }
};

struct FetchingEpilogue {
  static constexpr bool kFetches = true;
  static constexpr bool kFinishes = false;
  Target to;

  int look_ahead(const Int4Output& out) const { return 1000 * out.strip + 10 * out.token + out.g; }
  void fetch(const Int4Output& out, int ahead, std::uint32_t place) const {
    if (ahead != look_ahead(out)) emulator::fail("fetches with what was looked up for another");
    if (!emulator::has_turn()) emulator::fail("fetches before its turn");
    const int row = 16 * out.strip + out.g;
    const float* from = to.addend + out.token * to.stride + row;
    if (row < to.rows) cuda::ptx::copy_4_bytes(place, from);
    if (row + 8 < to.rows) cuda::ptx::copy_4_bytes(place + 4, from + 8);
  }
  bool store(const Int4Output& out, float lower, float upper, float r, const float* inputs) const {
    to.put(out.token, 16 * out.strip + out.g, lower * r, inputs[0]);
    to.put(out.token, 16 * out.strip + out.g + 8, upper * r, inputs[1]);
    return false;
  }
};

// Of each thread of the launch.
struct Notes {
  int begun = 0, finished = 0;
  bool large = false, told = false, told_block = false;
};

struct FinishingEpilogue {
  static constexpr bool kFetches = false;
  static constexpr bool kFinishes = true;
  Target to;
  Notes* notes;

  [[nodiscard]] Notes& mine() const {
    return notes[cuda::blockIdx.x * cuda::blockDim.x + cuda::threadIdx.x];
  }
  void begin() const {
    if (!emulator::has_turn()) emulator::fail("begins before its turn");
    ++mine().begun;
  }
  bool store(const Int4Output& out, float lower, float upper, float r, const float*) const {
    const int row = 16 * out.strip + out.g;
    to.put(out.token, row, lower * r,
           to.addend[out.token * to.stride + std::min(row, to.rows - 1)]);
    to.put(out.token, row + 8, upper * r,
           to.addend[out.token * to.stride + std::min(row + 8, to.rows - 1)]);
    if (mine().begun != 1) emulator::fail("stores without having begun");
    const bool large = std::fabs(lower * r) > kLarge;
    mine().large |= large;
    return large;
  }
  void finish(bool told) const {
    ++mine().finished;
    mine().told = told;
    mine().told_block = cuda::__syncthreads_or(told) != 0;
  }
};

// ---- a matrix, tokens, and what comes out ----------------------------------------------------------

enum class Numbers { Any, Integers };

class Problem {
 public:
  Problem(const SmallShape& shape, Numbers numbers)
      : tile{shape.rows, shape.cols, shape.group},
        stride(shape.rows + kGap),
        packed(static_cast<std::size_t>(tile.bytes())) {
    std::mt19937 engine(7);
    for (std::uint8_t& byte : packed) byte = static_cast<std::uint8_t>(engine() >> 24);
    for (int row = 0; row < 16 * tile.num_strips(); ++row) {
      for (int g = 0; g < tile.num_groups(); ++g) {
        float scale = std::ldexp(engine() % 2 == 0 ? 1.0F : -1.0F, (row + 3 * g) % 4);
        if (numbers == Numbers::Any) scale *= 0.1F + static_cast<float>(engine() % 256) / 256;
        const std::uint16_t bits = f32_to_bf16(scale);
        std::memcpy(packed.data() + tile.scale_offset(row, g), &bits, 2);
      }
    }
    x = normal_values(std::int64_t{32} * tile.cols, 11);
    if (numbers == Numbers::Integers) {
      for (float& v : x) v = v < 0 ? -1.0F : 1.0F;
    }
    for (const float v : x) halves.push_back(f32_to_f16_saturating(v));
    addend = normal_values(32 * stride, 12);
    sums = reference_sums(numbers);
    for (int token = 0; token < 32; ++token) scales.push_back(reference_scale(token));
  }

  static constexpr float kEps = 1e-5F;
  layout::Int4Tile tile;
  std::int64_t stride;  // of outputs
  std::vector<std::uint8_t> packed;
  std::vector<float> x;
  std::vector<std::uint16_t> halves;
  std::vector<float> addend;
  std::vector<float> sums;    // [token][row]
  std::vector<float> scales;  // 1 / rms of each token

 private:
  // Integers: what they are, order or not. Other numbers: in the order of the main loop.
  [[nodiscard]] std::vector<float> reference_sums(Numbers numbers) const {
    std::vector<float> result;
    std::vector<float> numbers_of_x;
    for (const std::uint16_t bits : halves) numbers_of_x.push_back(f16_to_f32(bits));
    std::vector<float> codes(static_cast<std::size_t>(tile.rows) * tile.cols);
    for (int row = 0; row < tile.rows; ++row) {
      for (int k = 0; k < tile.cols; ++k) {
        codes[static_cast<std::size_t>(row) * tile.cols + k] = static_cast<float>(
            layout::read_nibble(packed.data(), tile.slot(row, k)) - layout::kInt4CodeBias);
      }
    }
    for (int token = 0; token < 32; ++token) {
      for (int row = 0; row < tile.rows; ++row) {
        const float* c = codes.data() + static_cast<std::ptrdiff_t>(row) * tile.cols;
        const float* v = numbers_of_x.data() + static_cast<std::ptrdiff_t>(token) * tile.cols;
        result.push_back(numbers == Numbers::Integers ? static_cast<float>(integer_sum(row, c, v))
                                                      : ordered_sum(row, c, v));
      }
    }
    return result;
  }
  [[nodiscard]] float scale_of(int row, int group) const {
    std::uint16_t bits = 0;
    std::memcpy(&bits, packed.data() + tile.scale_offset(row, group), 2);
    return bf16_to_f32(bits);
  }
  [[nodiscard]] std::int64_t integer_sum(int row, const float* c, const float* v) const {
    std::int64_t sum = 0;
    for (int k = 0; k < tile.cols; ++k) {
      sum += static_cast<std::int64_t>(scale_of(row, k / tile.group)) *
             static_cast<std::int64_t>(c[k]) * static_cast<std::int64_t>(v[k]);
    }
    return sum;
  }
  [[nodiscard]] float ordered_sum(int row, const float* c, const float* v) const {
    std::array<float, layout::kNumKSegments> segments{};
    for (int s = 0; s < layout::kNumKSegments; ++s) {
      for (int g = layout::k_segment_begin(s, tile.num_groups());
           g < layout::k_segment_begin(s + 1, tile.num_groups()); ++g) {
        float chain = 0;
        const int end = (g + 1) * tile.group;
        for (int k = g * tile.group; k < end; ++k) chain -= layout::kInt4CodeBias * v[k];
        for (int k = g * tile.group; k < end; ++k) chain += (c[k] + layout::kInt4CodeBias) * v[k];
        segments[static_cast<std::size_t>(s)] += scale_of(row, g) * chain;
      }
    }
    return layout::merge_k_segments(segments);
  }
  // Lane by lane of the warp that holds a segment; lanes and segments as trees.
  [[nodiscard]] float reference_scale(int token) const {
    std::array<float, layout::kNumKSegments> segments{};
    for (int s = 0; s < layout::kNumKSegments; ++s) {
      std::array<float, 32> lanes{};
      const int begin = layout::k_segment_begin(s, tile.num_groups()) * tile.group;
      const int end = layout::k_segment_begin(s + 1, tile.num_groups()) * tile.group;
      for (int k = begin; k < end; k += 4) {
        const float* v = x.data() + static_cast<std::ptrdiff_t>(token) * tile.cols + k;
        lanes[static_cast<std::size_t>((k - begin) / 4 % 32)] +=
            v[0] * v[0] + v[1] * v[1] + v[2] * v[2] + v[3] * v[3];
      }
      for (std::size_t count = 16; count >= 1; count /= 2) {
        for (std::size_t i = 0; i < count; ++i) lanes[i] += lanes[i + count];
      }
      segments[static_cast<std::size_t>(s)] = lanes[0];
    }
    const float mean = layout::merge_k_segments(segments) / static_cast<float>(tile.cols);
    return 1.0F / std::sqrt(mean + kEps);
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

class Outputs {
 public:
  explicit Outputs(const Problem& problem)
      : problem_(problem),
        values_(static_cast<std::size_t>(32 * problem.stride + 2 * kMargin), kUntouched),
        fetched_(values_),
        writes_(values_.size()) {}

  [[nodiscard]] Target target() {
    return {values_.data() + kMargin, fetched_.data() + kMargin, writes_.data() + kMargin,
            problem_.addend.data(),   problem_.stride,           problem_.tile.rows};
  }

  // Empty, or the first thing that is wrong.
  [[nodiscard]] std::string compare(int tokens, bool normalised) const {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const auto place = static_cast<std::int64_t>(i) - kMargin;
      const std::int64_t token = place >= 0 ? place / problem_.stride : -1;
      const std::int64_t row = place - token * problem_.stride;
      const auto where = " at token " + std::to_string(token) + ", row " + std::to_string(row);
      if (token < 0 || token >= tokens || row >= problem_.tile.rows) {
        if (writes_[i] != 0 || values_[i] != kUntouched) return "written beside, " + where;
        continue;
      }
      if (writes_[i] != 1) return "written " + std::to_string(writes_[i]) + " times," + where;
      const auto t = static_cast<std::size_t>(token);
      float expected = problem_.sums[t * problem_.tile.rows + static_cast<std::size_t>(row)];
      if (normalised) expected *= problem_.scales[t];
      if (std::memcmp(&expected, &values_[i], 4) != 0) {
        return std::to_string(values_[i]) + " in place of " + std::to_string(expected) + where;
      }
      const float given = problem_.addend[static_cast<std::size_t>(place)];
      if (std::memcmp(&given, &fetched_[i], 4) != 0) return "another's input" + where;
    }
    return {};
  }

 private:
  const Problem& problem_;
  std::vector<float> values_, fetched_;
  std::vector<int> writes_;
};

std::string compare_notes(const std::vector<Notes>& notes) {
  for (std::size_t block = 0; block < notes.size(); block += kThreads) {
    const auto begin = notes.begin() + static_cast<std::ptrdiff_t>(block);
    const bool any = std::any_of(begin, begin + kThreads, [](const Notes& n) { return n.large; });
    for (auto n = begin; n != begin + kThreads; ++n) {
      if (n->begun != 1 || n->finished != 1) return "a thread begins or finishes not once";
      if (n->told != n->large) return "a thread is told another's news";
      if (n->told_block != any) return "a block is told another's news";
    }
  }
  return {};
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
  if (error.empty() && finishes) error = compare_notes(notes);
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
