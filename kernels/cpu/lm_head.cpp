// lm_head on the CPU: a projection of the rows that are asked for, and the best logits once more
// from a BF16 matrix where there is one.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/check.h"
#include "kernels/cpu/linear.h"

namespace fut::cpu {
namespace {

// The ids of the `count` largest logits in no order; of equal ones the lower ids.
std::vector<std::int32_t> largest_logits(const float* logits, std::int64_t vocab,
                                         std::int64_t count) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(vocab));
  std::iota(ids.begin(), ids.end(), 0);
  if (count >= vocab) return ids;
  const auto rank = [&](std::int32_t id) {
    return std::isnan(logits[id]) ? -std::numeric_limits<float>::infinity() : logits[id];
  };
  std::nth_element(ids.begin(), ids.begin() + count, ids.end(),
                   [&](std::int32_t a, std::int32_t b) {
                     return rank(a) != rank(b) ? rank(a) > rank(b) : a < b;
                   });
  ids.resize(static_cast<std::size_t>(count));
  return ids;
}

void rescore(Workers& workers, const LmHeadArgs& a, const Operand& operand) {
  const std::int64_t cols = a.x.cols;
  const auto* weight = static_cast<const std::uint16_t*>(a.rescoring.data);
  workers.pool.parallel_for(
      a.num_rows, 4 * a.out.cols, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t i = begin; i < end; ++i) {
          float* logits = a.out.row(i);
          for (const std::int32_t id : largest_logits(logits, a.out.cols, kRescoredLogits)) {
            workers.loops.dots({operand.x.row(i), cols, 1, DType::BF16, weight + id * cols, cols, 1,
                                cols, logits + id, 1});
          }
        }
      });
}

}  // namespace

void lm_head(Workers& workers, const LmHeadArgs& a) {
  check(a);
  for (std::int64_t i = 0; i < a.num_rows; ++i) {
    FUT_CHECK(a.rows[i] >= 0 && a.rows[i] < a.x.rows, "lm_head: rows[{}] is {}, x has {} rows", i,
              a.rows[i], a.x.rows);
  }
  const NormedInput input = {a.x, a.rows, a.num_rows, a.gain, a.eps};
  workers.scratch.reserve(
      2 * operand_elements(a.num_rows, a.x.cols) + project_elements(workers, a.weight, a.num_rows),
      2 * kOperandPieces + 1);
  const std::array projections = {Projection{a.weight, a.out}};
  project(workers, make_operand(workers, input, a.weight), projections);
  if (a.rescoring.data != nullptr) {
    rescore(workers, a, make_operand(workers, input, a.rescoring));
  }
}

}  // namespace fut::cpu
