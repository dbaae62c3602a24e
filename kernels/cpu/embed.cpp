// embed on the CPU: rows of the table, widened and rounded to the type of out.
#include "kernels/check.h"
#include "kernels/cpu/cpu_ops.h"

namespace fut::cpu {

void embed(Workers& workers, const EmbedArgs& a) {
  check(a);
  for (std::int64_t m = 0; m < a.num_tokens; ++m) {
    FUT_CHECK(a.token_ids[m] >= 0 && a.token_ids[m] < a.weight.rows,
              "embed: token_ids[{}] is {}, the table has {} rows", m, a.token_ids[m],
              a.weight.rows);
  }
  const std::int64_t cols = a.weight.cols;
  const std::int64_t row_bytes = cols * dtype_bytes(a.weight.dtype);
  workers.scratch.reserve(workers.pool.num_threads() * cols, 1);
  float* scratch = workers.scratch.take(workers.pool.num_threads() * cols);
  workers.pool.parallel_for(
      a.num_tokens, cols, [&](std::int64_t begin, std::int64_t end, int thread) {
        float* widened = scratch + thread * cols;
        for (std::int64_t m = begin; m < end; ++m) {
          const auto* row =
              static_cast<const std::byte*>(a.weight.data) + a.token_ids[m] * row_bytes;
          workers.loops.widen(a.weight.dtype, row, cols, widened);
          workers.loops.narrow(a.out.dtype, widened, cols, row_address(a.out, m));
        }
      });
}

}  // namespace fut::cpu
