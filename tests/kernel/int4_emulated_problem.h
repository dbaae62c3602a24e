// What the INT4 main loops of the GPU are given when they run on the CPU (tests/emulator), and what has to
// come out: small matrices with the sums that layout/k_segments.h promises, epilogues that take notice of
// whatever happens out of turn, twice or beside the outputs.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/int4_output.h"
#include "kernels/cuda/ptx/async_copy_4.cuh"
#include "kernels/layout/int4_tile.h"
#include "kernels/layout/k_segments.h"
#include "kernels/numeric/formats.h"
#include "tests/support/backends.h"

namespace fut::test {

using cuda::Int4Output;

inline constexpr int kMargin = 64;  // floats before and after outputs
inline constexpr int kGap = 4;      // floats between rows
inline constexpr float kUntouched = 12345.0F;
inline constexpr float kLarge = 400;  // what the finishing epilogue takes notice of

struct SmallShape {
  int rows, cols, group;
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

// "tokens 3" and the like, for descriptions.
inline std::string named(const char* name, std::int64_t value) {
  return name + std::to_string(value);
}

inline std::string describe_shape(const Problem& p) {
  return named("", p.tile.rows) + named(" x ", p.tile.cols) + named(", groups of ", p.tile.group);
}

// Who is told by finish() what a thread noticed.
enum class Told { Itself, ItsBlock };

inline std::string compare_notes(const std::vector<Notes>& notes, int threads, Told told) {
  for (std::size_t block = 0; block < notes.size(); block += static_cast<std::size_t>(threads)) {
    const auto begin = notes.begin() + static_cast<std::ptrdiff_t>(block);
    const bool any = std::any_of(begin, begin + threads, [](const Notes& n) { return n.large; });
    for (auto n = begin; n != begin + threads; ++n) {
      if (n->begun != 1 || n->finished != 1) return "a thread begins or finishes not once";
      if (n->told != (told == Told::Itself ? n->large : any))
        return "a thread is told another's news";
      if (n->told_block != any) return "a block is told another's news";
    }
  }
  return {};
}

}  // namespace fut::test
