// RMS norm and blocked dot products; linear_residual, gate_up_swiglu and lm_head are loops over
// blocks with a line of their own after each.
#include "kernels/cpu/linear.h"

#include <array>
#include <cmath>

#include "kernels/check.h"

namespace fut::cpu {
namespace {

// From this many tokens on it pays to widen 16-bit weights once for all of them.
constexpr std::int64_t kWidenTokens = 8;

[[nodiscard]] MatrixView<float> dense(float* data, std::int64_t rows, std::int64_t cols) {
  return {data, rows, cols, cols};
}

[[nodiscard]] MatrixView<const float> read_only(const MatrixView<float>& view) {
  return {view.data, view.rows, view.cols, view.row_stride};
}

}  // namespace

void block_dots(const VectorLoops& loops, MatrixView<const float> x, const WeightMatrix& weight,
                const Block& block, float* widened, float* out, std::int64_t out_stride) {
  const auto* first_row = static_cast<const std::byte*>(weight.data) +
                          block.first_row * weight.cols * dtype_bytes(weight.dtype);
  DotBlock dots = {x.row(block.first_token),
                   x.row_stride,
                   block.num_tokens,
                   weight.dtype,
                   first_row,
                   weight.cols,
                   block.num_rows,
                   weight.cols,
                   out,
                   out_stride};
  if (weight.dtype != DType::F32 && block.num_tokens >= kWidenTokens) {
    loops.widen(weight.dtype, first_row, block.num_rows * weight.cols, widened);
    dots.dtype = DType::F32;
    dots.weight = widened;
  }
  loops.dots(dots);
}

void project(Workers& workers, MatrixView<const float> x, std::span<const Projection> projections,
             float* widened) {
  std::int64_t count = 0;
  for (const Projection& p : projections) count += num_blocks(x.rows, p.weight.rows);
  workers.pool.parallel_for(
      count, block_work(x.rows, x.cols), [&](std::int64_t begin, std::int64_t end, int thread) {
        float* own = widened + thread * kBlockRows * x.cols;
        for (std::int64_t i = begin; i < end; ++i) {
          std::int64_t local = i;
          const Projection* p = projections.data();
          for (; local >= num_blocks(x.rows, p->weight.rows); ++p) {
            local -= num_blocks(x.rows, p->weight.rows);
          }
          const Block block = block_at(local, x.rows, p->weight.rows);
          block_dots(workers.loops, x, p->weight, block, own,
                     p->y.row(block.first_token) + block.first_row, p->y.row_stride);
        }
      });
}

void rms_norm(Workers& workers, MatrixView<const float> x, const std::int32_t* rows,
              const float* gain, float eps, MatrixView<float> out) {
  workers.pool.parallel_for(out.rows, 4 * x.cols, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      const float* in = x.row(rows == nullptr ? i : rows[i]);
      float sum_of_squares = 0;
      workers.loops.dots(
          {in, x.row_stride, 1, DType::F32, in, x.row_stride, 1, x.cols, &sum_of_squares, 1});
      const float inverse = 1.0F / std::sqrt(sum_of_squares / static_cast<float>(x.cols) + eps);
      float* normed = out.row(i);
      for (std::int64_t k = 0; k < x.cols; ++k) normed[k] = (in[k] * inverse) * gain[k];
    }
  });
}

void linear_residual(Workers& workers, const LinearResidualArgs& a) {
  check(a);
  const int threads = workers.pool.num_threads();
  const std::int64_t own_elements = kBlockRows * a.x.cols + kBlockTokens * kBlockRows;
  workers.scratch.reserve(threads * own_elements, 1);
  float* scratch = workers.scratch.take(threads * own_elements);
  workers.pool.parallel_for(
      num_blocks(a.x.rows, a.weight.rows), block_work(a.x.rows, a.x.cols),
      [&](std::int64_t begin, std::int64_t end, int thread) {
        float* sums = scratch + thread * own_elements;
        float* widened = sums + kBlockTokens * kBlockRows;
        for (std::int64_t i = begin; i < end; ++i) {
          const Block block = block_at(i, a.x.rows, a.weight.rows);
          block_dots(workers.loops, a.x, a.weight, block, widened, sums, kBlockRows);
          for (std::int64_t m = 0; m < block.num_tokens; ++m) {
            float* residual = a.residual.row(block.first_token + m) + block.first_row;
            for (std::int64_t n = 0; n < block.num_rows; ++n) {
              residual[n] += sums[m * kBlockRows + n];
            }
          }
        }
      });
}

void gate_up_swiglu(Workers& workers, const GateUpSwigluArgs& a) {
  check(a);
  const int threads = workers.pool.num_threads();
  const std::int64_t own_elements = kBlockRows * a.x.cols + 2 * kBlockTokens * kBlockRows;
  workers.scratch.reserve(a.x.rows * a.x.cols + threads * own_elements, 2);
  const MatrixView<float> normed =
      dense(workers.scratch.take(a.x.rows * a.x.cols), a.x.rows, a.x.cols);
  float* scratch = workers.scratch.take(threads * own_elements);
  rms_norm(workers, a.x, nullptr, a.gain, a.eps, normed);
  workers.pool.parallel_for(
      num_blocks(a.x.rows, a.gate_proj.rows), 2 * block_work(a.x.rows, a.x.cols),
      [&](std::int64_t begin, std::int64_t end, int thread) {
        float* gate = scratch + thread * own_elements;
        float* up = gate + kBlockTokens * kBlockRows;
        float* widened = up + kBlockTokens * kBlockRows;
        for (std::int64_t i = begin; i < end; ++i) {
          const Block block = block_at(i, a.x.rows, a.gate_proj.rows);
          const MatrixView<const float> h = read_only(normed);
          block_dots(workers.loops, h, a.gate_proj, block, widened, gate, kBlockRows);
          block_dots(workers.loops, h, a.up_proj, block, widened, up, kBlockRows);
          for (std::int64_t m = 0; m < block.num_tokens; ++m) {
            workers.loops.swiglu(gate + m * kBlockRows, up + m * kBlockRows, block.num_rows,
                                 a.out.row(block.first_token + m) + block.first_row);
          }
        }
      });
}

void lm_head(Workers& workers, const LmHeadArgs& a) {
  check(a);
  for (std::int64_t i = 0; i < a.num_rows; ++i) {
    FUT_CHECK(a.rows[i] >= 0 && a.rows[i] < a.x.rows, "lm_head: rows[{}] is {}, x has {} rows", i,
              a.rows[i], a.x.rows);
  }
  const std::int64_t widened_elements = workers.pool.num_threads() * kBlockRows * a.x.cols;
  workers.scratch.reserve(a.num_rows * a.x.cols + widened_elements, 2);
  const MatrixView<float> normed =
      dense(workers.scratch.take(a.num_rows * a.x.cols), a.num_rows, a.x.cols);
  float* widened = workers.scratch.take(widened_elements);
  rms_norm(workers, a.x, a.rows, a.gain, a.eps, normed);
  const std::array projections = {Projection{a.weight, a.out}};
  project(workers, read_only(normed), projections, widened);
}

}  // namespace fut::cpu
