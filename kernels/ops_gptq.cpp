// check() of what GPTQ asks: each line of the contracts in ops_gptq.h that the host can verify.
#include "kernels/ops_gptq.h"

#include "kernels/check.h"
#include "kernels/op_checks.h"

namespace fut {

using namespace op_checks;

namespace {

constexpr std::int64_t kMostRows = 65535;  // of one launch

void check_size(const char* op, std::int64_t n) {
  FUT_CHECK(n >= 1 && n <= kMostRows && n % kGptqBlockColumns == 0,
            "{}: {} x {}, not a multiple of {} up to {}", op, n, n, kGptqBlockColumns, kMostRows);
}

void check_rows(const char* op, std::int64_t rows, std::int64_t cols) {
  FUT_CHECK(rows >= 1 && rows <= kMostRows && cols >= 1 && cols % kGptqBlockColumns == 0,
            "{}: {} rows of {}, not a multiple of {}", op, rows, cols, kGptqBlockColumns);
}

void check_int4(const char* op, const Int4Rows& q) {
  check_rows(op, q.rows, q.cols);
  check_groups(op, q.cols, q.group_size);
  check_array(op, "codes", q.codes);
  check_array(op, "scales", q.scales);
}

void check_block(const char* op, std::int64_t begin, std::int64_t cols) {
  FUT_CHECK(begin >= 0 && begin % kGptqBlockColumns == 0 && begin < cols,
            "{}: a block at {} of {} columns", op, begin, cols);
}

template <class T>
void check_matrix(const char* op, const char* name, const MatrixView<T>& m, std::int64_t rows,
                  std::int64_t cols) {
  check_array(op, name, m.data);
  FUT_CHECK(m.rows == rows && m.cols == cols && rows >= 1 && cols >= 1 && m.row_stride >= cols,
            "{}: {} is {} x {} with rows {} apart, not {} x {}", op, name, m.rows, m.cols,
            m.row_stride, rows, cols);
}

}  // namespace

void check(const TokenProductsArgs& a) {
  constexpr const char* kOp = "add_token_products";
  check_view(kOp, "left", a.left);
  check_view(kOp, "right", a.right, a.left.rows, a.left.cols);
  check_dtype(kOp, "left", a.left.dtype, {DType::BF16});
  check_dtype(kOp, "right", a.right.dtype, {DType::BF16});
  check_size(kOp, a.left.cols);
  check_array(kOp, "sums", a.sums);
  check_array(kOp, "partial", a.partial);
}

void check(const FinishMomentsArgs& a) {
  constexpr const char* kOp = "finish_moments";
  check_size(kOp, a.n);
  check_array(kOp, "h", a.h);
  check_array(kOp, "diagonal", a.diagonal);
  check_array(kOp, "first_bad", a.first_bad);
}

void check(const InverseFactorArgs& a) {
  constexpr const char* kOp = "inverse_factor";
  check_size(kOp, a.n);
  check_array(kOp, "h", a.h);
  check_array(kOp, "order", a.order);
  check_array(kOp, "upper", a.upper);
  check_array(kOp, "failed", a.failed);
  FUT_CHECK(a.ridge >= 0, "{}: a ridge of {}", kOp, a.ridge);
}

void check(const AddProductArgs& a) {
  constexpr const char* kOp = "add_product";
  check_matrix(kOp, "c", a.c, a.c.rows, a.c.cols);
  check_matrix(kOp, "a", a.a, a.c.rows, a.a.cols);
  if (a.b_transposed) {
    check_matrix(kOp, "b", a.b, a.c.cols, a.a.cols);
  } else {
    check_matrix(kOp, "b", a.b, a.a.cols, a.c.cols);
  }
}

void check(const GatherColumnsArgs& a) {
  constexpr const char* kOp = "gather_columns";
  check_rows(kOp, a.rows, a.cols);
  FUT_CHECK((a.narrow == nullptr) != (a.wide == nullptr), "{}: one source is needed", kOp);
  check_array(kOp, "out", a.out);
}

void check(const CorrectRowsArgs& a) {
  constexpr const char* kOp = "correct_rows";
  check_rows(kOp, a.rows, a.cols);
  check_array(kOp, "w", a.w);
  check_array(kOp, "order", a.order);
  check_array(kOp, "diagonal", a.diagonal);
  check_array(kOp, "target", a.target);
}

void check(const ResidualsArgs& a) {
  constexpr const char* kOp = "residuals";
  check_int4(kOp, a.q);
  check_array(kOp, "w", a.w);
  check_array(kOp, "out", a.out);
}

void check(const RowDotsArgs& a) {
  constexpr const char* kOp = "row_dots";
  check_rows(kOp, a.rows, a.cols);
  check_array(kOp, "a", a.a);
  check_array(kOp, "b", a.b);
  check_array(kOp, "out", a.out);
}

void check(const SweepBlockArgs& a) {
  constexpr const char* kOp = "sweep_block";
  check_int4(kOp, a.q);
  check_block(kOp, a.begin, a.q.cols);
  check_array(kOp, "weights", a.weights);
  check_array(kOp, "upper", a.upper);
  check_array(kOp, "order", a.order);
  check_array(kOp, "negated", a.negated);
}

void check(const DescendBlockArgs& a) {
  constexpr const char* kOp = "descend_block";
  check_int4(kOp, a.q);
  check_block(kOp, a.begin, a.q.cols);
  check_array(kOp, "h", a.h);
  check_array(kOp, "residual", a.residual);
  check_array(kOp, "product", a.product);
  check_array(kOp, "negated", a.negated);
}

void check(const KeepBetterArgs& a) {
  constexpr const char* kOp = "keep_better";
  check_int4(kOp, a.q);
  check_int4(kOp, a.rounded);
  check_equal(kOp, "rows", a.q.rows, "rounded rows", a.rounded.rows);
  check_equal(kOp, "cols", a.q.cols, "rounded cols", a.rounded.cols);
  check_equal(kOp, "group_size", a.q.group_size, "rounded group_size", a.rounded.group_size);
  check_array(kOp, "losses", a.losses);
  check_array(kOp, "rounded_losses", a.rounded_losses);
}

void check(const DequantiseArgs& a) {
  check_int4("dequantise", a.q);
  check_array("dequantise", "out", a.out);
}

}  // namespace fut
