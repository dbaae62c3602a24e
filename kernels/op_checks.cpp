// The checks that ops share; see op_checks.h.
#include "kernels/op_checks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "kernels/check.h"
#include "kernels/numeric/hadamard.h"

namespace fut::op_checks {
namespace {

void check_size(const char* op, const char* name, std::int64_t rows, std::int64_t cols) {
  FUT_CHECK(rows >= 1 && cols >= 1, "{}: {} is [{}, {}], both must be at least 1", op, name, rows,
            cols);
}

void check_one(const char* op, const char* name, const DenseMatrix& weight) {
  check_array(op, name, weight.data);
  check_size(op, name, weight.rows, weight.cols);
  check_dtype(op, name, weight.dtype, {DType::F32, DType::F16, DType::BF16});
}

template <class CodesByRow>
void check_codes_by_row(const char* op, const char* name, const CodesByRow& weight) {
  check_array(op, name, weight.codes);
  FUT_CHECK(weight.row_scales != nullptr, "{}: {}.row_scales is null", op, name);
  check_size(op, name, weight.rows, weight.cols);
}

void check_one(const char* op, const char* name, const E4m3Matrix& weight) {
  check_codes_by_row(op, name, weight);
}

void check_one(const char* op, const char* name, const Int8Matrix& weight) {
  check_codes_by_row(op, name, weight);
}

void check_one(const char* op, const char* name, const Int4Matrix& weight) {
  check_array(op, name, weight.packed);
  FUT_CHECK(reinterpret_cast<std::uintptr_t>(weight.packed) % 16 == 0,
            "{}: {} lies at {}, must be 16-byte aligned", op, name,
            static_cast<const void*>(weight.packed));
  check_size(op, name, weight.rows, weight.cols);
  FUT_CHECK(layout::Int4Tile::packable(weight.tile.rows, weight.tile.cols, weight.tile.group),
            "{}: {} has a tile of [{}, {}] in groups of {}, columns must be a multiple of {}", op,
            name, weight.tile.rows, weight.tile.cols, weight.tile.group,
            layout::Int4Tile::kColsMultiple);
  FUT_CHECK(weight.tile.cols == weight.cols, "{}: {} has a tile of {} columns but {} columns", op,
            name, weight.tile.cols, weight.cols);
  FUT_CHECK(weight.order.source_rows == weight.rows, "{}: {} has an order of {} rows but {} rows",
            op, name, weight.order.source_rows, weight.rows);
  FUT_CHECK(weight.tile.rows == weight.order.packed_rows(),
            "{}: {} has a tile of {} rows but its order makes {}", op, name, weight.tile.rows,
            weight.order.packed_rows());
}

}  // namespace

ByteRange range_of(const char* name, const ConstActivationView& view) {
  if (view.data == nullptr) return {name, nullptr, 0};
  const std::int64_t elements = (view.rows - 1) * view.row_stride + view.cols;
  return {name, view.data, elements * dtype_bytes(view.dtype)};
}

ByteRange range_of(const char* name, const Weights& weights) {
  if (const DenseMatrix* dense = as_dense(weights)) {
    return {name, dense->data, dense->rows * dense->cols * dtype_bytes(dense->dtype)};
  }
  if (const auto* int4 = std::get_if<Int4Matrix>(&weights)) {
    return {name, int4->packed, int4->tile.bytes()};
  }
  if (const auto* e4m3 = std::get_if<E4m3Matrix>(&weights)) {
    return {name, e4m3->codes, e4m3->rows * e4m3->cols};
  }
  const auto& int8 = std::get<Int8Matrix>(weights);
  return {name, int8.codes, int8.rows * int8.cols};
}

ByteRange range_of(const char* name, const KvPages& kv) {
  return {name, kv.data, kv.num_pages * kv.page.elements() * dtype_bytes(kv.dtype)};
}

ByteRange range_of(const char* name, const float* data, std::int64_t elements) {
  return {name, data, elements * static_cast<std::int64_t>(sizeof(float))};
}

void check_array(const char* op, const char* name, const void* data) {
  FUT_CHECK(data != nullptr, "{}: {} is null", op, name);
}

void check_absent(const char* op, const char* name, const void* data, const char* why) {
  FUT_CHECK(data == nullptr, "{}: {} is given at {}, but {}", op, name, data, why);
}

void check_equal(const char* op, const char* left_name, std::int64_t left, const char* right_name,
                 std::int64_t right) {
  FUT_CHECK(left == right, "{}: {} is {} but {} is {}", op, left_name, left, right_name, right);
}

void check_dtype(const char* op, const char* name, DType dtype,
                 std::initializer_list<DType> allowed) {
  if (std::find(allowed.begin(), allowed.end(), dtype) != allowed.end()) return;
  std::string names;
  for (const DType type : allowed) {
    if (!names.empty()) names += " or ";
    names += dtype_name(type);
  }
  throw runtime_failure("{}: {} is {}, must be {}", op, name, dtype_name(dtype), names);
}

void check_view(const char* op, const char* name, const ConstActivationView& view) {
  check_array(op, name, view.data);
  check_size(op, name, view.rows, view.cols);
  FUT_CHECK(view.row_stride >= view.cols, "{}: {} has row_stride {} below its {} columns", op, name,
            view.row_stride, view.cols);
}

void check_view(const char* op, const char* name, const ConstActivationView& view,
                std::int64_t rows, std::int64_t cols) {
  check_view(op, name, view);
  FUT_CHECK(view.rows == rows && view.cols == cols, "{}: {} is [{}, {}], must be [{}, {}]", op,
            name, view.rows, view.cols, rows, cols);
}

void check_eps(const char* op, float eps) {
  FUT_CHECK(eps >= 0 && eps < 1, "{}: eps is {}, must lie in [0, 1)", op, eps);
}

void check_groups(const char* op, std::int64_t cols, int group_size) {
  FUT_CHECK((group_size == 64 || group_size == 128) && cols % group_size == 0,
            "{}: {} columns in groups of {}", op, cols, group_size);
}

void check_power_of_two(const char* op, const char* name, float scale) {
  int exponent = 0;
  FUT_CHECK(scale > 0 && std::isnormal(scale) && std::frexp(scale, &exponent) == 0.5F,
            "{}: {} is {}, must be a power of two", op, name, scale);
}

void check_weights(const char* op, const char* name, const Weights& weights) {
  std::visit([&](const auto& weight) { check_one(op, name, weight); }, weights);
}

void check_weights(const char* op, const char* name, const Weights& weights, std::int64_t rows,
                   std::int64_t cols) {
  check_weights(op, name, weights);
  FUT_CHECK(weight_rows(weights) == rows && weight_cols(weights) == cols,
            "{}: {} is [{}, {}], must be [{}, {}]", op, name, weight_rows(weights),
            weight_cols(weights), rows, cols);
}

void check_projection_types(const char* op, const char* name, const Weights& weights,
                            const float* gain, const ConstActivationView& x) {
  const DenseMatrix* dense = as_dense(weights);
  if (dense == nullptr) {
    check_absent(op, "gain", gain, "codes have it folded in");
  } else if (gain == nullptr) {
    FUT_CHECK(dense->dtype == DType::BF16, "{}: gain is null, but {} is {}; without one it is BF16",
              op, name, dtype_name(dense->dtype));
  }
  if (gain != nullptr || std::holds_alternative<Int4Matrix>(weights)) {
    check_dtype(op, "x", x.dtype, {DType::F32});
  } else {
    check_dtype(op, "x", x.dtype, {DType::F32, DType::BF16});
  }
}

void check_heads(const char* op, int num_q_heads, int num_kv_heads, int head_dim) {
  FUT_CHECK(num_q_heads >= 1 && num_kv_heads >= 1 && num_q_heads % num_kv_heads == 0,
            "{}: {} query heads do not share {} KV heads evenly", op, num_q_heads, num_kv_heads);
  FUT_CHECK(head_dim >= 2 && head_dim % 2 == 0, "{}: head_dim is {}, must be even", op, head_dim);
}

void check_rotation(const char* op, int rotation_block, int head_dim) {
  FUT_CHECK(rotation_block == 0 || is_rotation_block(rotation_block, head_dim),
            "{}: rotation_block is {}, must be 0 or a power of two that divides head_dim {}", op,
            rotation_block, head_dim);
}

void check_tokens(const char* op, const RaggedBatch& batch) {
  FUT_CHECK(batch.num_sequences >= 1 && batch.num_tokens >= 1, "{}: {} tokens of {} sequences", op,
            batch.num_tokens, batch.num_sequences);
  check_array(op, "batch.positions", batch.positions);
}

void check_batch(const char* op, const RaggedBatch& batch) {
  check_tokens(op, batch);
  check_array(op, "batch.q_indptr", batch.q_indptr);
  check_array(op, "batch.kv_indptr", batch.kv_indptr);
  check_array(op, "batch.page_table", batch.page_table);
  check_array(op, "batch.kv_lengths", batch.kv_lengths);
}

void check_kv(const char* op, const KvPages& kv, int num_kv_heads, int head_dim) {
  check_array(op, "kv", kv.data);
  FUT_CHECK(kv.num_pages >= 1, "{}: kv has {} pages", op, kv.num_pages);
  check_dtype(op, "kv", kv.dtype, {DType::F32, DType::BF16});
  check_equal(op, "kv.page.num_kv_heads", kv.page.num_kv_heads, "num_kv_heads", num_kv_heads);
  check_equal(op, "kv.page.head_dim", kv.page.head_dim, "head_dim", head_dim);
}

void check_kv(const char* op, const KvPagesInt4& kv, int num_kv_heads, int head_dim) {
  check_array(op, "kv", kv.data);
  FUT_CHECK(kv.num_pages >= 1, "{}: kv has {} pages", op, kv.num_pages);
  FUT_CHECK(reinterpret_cast<std::uintptr_t>(kv.data) % 16 == 0,
            "{}: kv lies at {}, must be 16-byte aligned", op, static_cast<const void*>(kv.data));
  check_equal(op, "kv.page.num_kv_heads", kv.page.num_kv_heads, "num_kv_heads", num_kv_heads);
  check_equal(op, "kv.page.head_dim", kv.page.head_dim, "head_dim", head_dim);
  FUT_CHECK(layout::KvPageInt4::supported(head_dim, kv.page.kv_group),
            "{}: kv has groups of {} dims, which head_dim {} does not take", op, kv.page.kv_group,
            head_dim);
  check_array(op, "kv.raw", kv.raw);
  FUT_CHECK(kv.num_raw_slots >= 1, "{}: kv has {} raw slots", op, kv.num_raw_slots);
  check_equal(op, "kv.raw_rows.num_kv_heads", kv.raw_rows.num_kv_heads, "num_kv_heads",
              num_kv_heads);
  check_equal(op, "kv.raw_rows.head_dim", kv.raw_rows.head_dim, "head_dim", head_dim);
}

void check_apart(const char* op, const ByteRange& written, std::span<const ByteRange> others) {
  const auto* begin = static_cast<const char*>(written.data);
  for (const ByteRange& other : others) {
    if (other.bytes == 0) continue;
    const auto* other_begin = static_cast<const char*>(other.data);
    FUT_CHECK(begin + written.bytes <= other_begin || other_begin + other.bytes <= begin,
              "{}: {} ({} bytes) overlaps {} ({} bytes)", op, written.name, written.bytes,
              other.name, other.bytes);
  }
}

}  // namespace fut::op_checks
