// check() of what quantising asks: each line of the contracts in ops_offline.h that the host can verify.
#include "kernels/ops_offline.h"

#include "kernels/check.h"
#include "kernels/op_checks.h"

namespace fut {

using namespace op_checks;

namespace {

template <class T>
void check_dense(const char* op, const MatrixView<T>& w) {
  check_view(op, "w", w);
  FUT_CHECK(w.row_stride == w.cols, "{}: rows of {} lie {} apart", op, w.cols, w.row_stride);
}

}  // namespace

void check(const RoundToBf16Args& a) {
  constexpr const char* kOp = "round_to_bf16";
  check_array(kOp, "values", a.values);
  check_array(kOp, "out", a.out);
  FUT_CHECK(a.count >= 1, "{}: count is {}", kOp, a.count);
}

void check(const NormaliseArgs& a) {
  constexpr const char* kOp = "normalise";
  check_view(kOp, "x", a.x);
  check_view(kOp, "out", a.out, a.x.rows, a.x.cols);
  check_dtype(kOp, "x", a.x.dtype, {DType::BF16});
  check_dtype(kOp, "out", a.out.dtype, {DType::BF16});
  check_eps(kOp, a.eps);
  check_apart(kOp, range_of("out", a.out), {range_of("x", a.x)});
}

void check(const ColumnSumsArgs& a) {
  constexpr const char* kOp = "column_sums";
  check_view(kOp, "x", a.x);
  check_dtype(kOp, "x", a.x.dtype, {DType::BF16});
  check_array(kOp, "squares", a.squares);
  check_array(kOp, "largest", a.largest);
}

void check(const ShiftArgs& a) {
  check_dense("shift", a.w);
}

void check(const RoundToInt4Args& a) {
  constexpr const char* kOp = "round_to_int4";
  check_dense(kOp, a.w);
  check_groups(kOp, a.w.cols, a.group_size);
  check_array(kOp, "codes", a.codes);
  check_array(kOp, "scales", a.scales);
  check_array(kOp, "first_bad", a.first_bad);
}

void check(const WeightedErrorsArgs& a) {
  constexpr const char* kOp = "weighted_errors";
  check_dense(kOp, a.w);
  check_groups(kOp, a.w.cols, a.group_size);
  check_array(kOp, "importance", a.importance);
  check_array(kOp, "codes", a.codes);
  check_array(kOp, "scales", a.scales);
  check_array(kOp, "errors", a.errors);
  check_array(kOp, "energies", a.energies);
}

void check(const PackInt4Args& a) {
  constexpr const char* kOp = "pack_int4";
  check_array(kOp, "codes", a.codes);
  check_array(kOp, "scales", a.scales);
  check_array(kOp, "packed", a.packed);
  check_equal(kOp, "tile.rows", a.tile.rows, "order.packed_rows()", a.order.packed_rows());
  FUT_CHECK(layout::Int4Tile::packable(a.tile.rows, a.tile.cols, a.tile.group),
            "{}: a matrix of {} x {} in groups of {} has no packed form", kOp, a.tile.rows,
            a.tile.cols, a.tile.group);
}

void check(const PackE4m3Args& a) {
  constexpr const char* kOp = "pack_e4m3";
  constexpr std::int64_t kColumns = 4;  // of one thread at a time
  check_dense(kOp, a.w);
  FUT_CHECK(a.w.cols % kColumns == 0, "{}: {} columns, not a multiple of {}", kOp, a.w.cols,
            kColumns);
  check_array(kOp, "codes", a.codes);
  check_array(kOp, "scales", a.scales);
  if (a.divisors == nullptr) return;
  FUT_CHECK(a.columns_per_divisor > 0 && a.columns_per_divisor % kColumns == 0 &&
                a.w.cols % a.columns_per_divisor == 0,
            "{}: {} columns, a divisor for each {}", kOp, a.w.cols, a.columns_per_divisor);
}

}  // namespace fut
