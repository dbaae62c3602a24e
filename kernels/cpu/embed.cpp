// embed on the CPU: rows of the table, widened.
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
  const std::int64_t row_bytes = a.weight.cols * dtype_bytes(a.weight.dtype);
  workers.pool.parallel_for(
      a.num_tokens, a.weight.cols, [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t m = begin; m < end; ++m) {
          const auto* row =
              static_cast<const std::byte*>(a.weight.data) + a.token_ids[m] * row_bytes;
          workers.loops.widen(a.weight.dtype, row, a.weight.cols, a.out.row(m));
        }
      });
}

}  // namespace fut::cpu
