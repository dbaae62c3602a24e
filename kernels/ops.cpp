// check() of every op: each line of the contracts in ops.h that the host can verify without reading
// backend memory. What lies in arrays (ids, positions, pages) is the caller's promise here; the CPU
// backend, which can read them, checks those too.
#include "kernels/ops.h"

#include <initializer_list>

#include "kernels/check.h"

namespace fut {
namespace {

// The bytes from an array's first to its last element.
struct ByteRange {
  const char* name;
  const void* data;
  std::int64_t bytes;
};

template <class T>
ByteRange range_of(const char* name, const MatrixView<T>& view) {
  const std::int64_t elements = (view.rows - 1) * view.row_stride + view.cols;
  return {name, view.data, elements * static_cast<std::int64_t>(sizeof(T))};
}

ByteRange range_of(const char* name, const WeightMatrix& weight) {
  return {name, weight.data, weight.rows * weight.cols * dtype_bytes(weight.dtype)};
}

ByteRange range_of(const char* name, const float* data, std::int64_t elements) {
  return {name, data, elements * static_cast<std::int64_t>(sizeof(float))};
}

ByteRange range_of(const char* name, const KvPages& kv) {
  return range_of(name, kv.data, kv.num_pages * kv.page.elements());
}

void check_array(const char* op, const char* name, const void* data) {
  FUT_CHECK(data != nullptr, "{}: {} is null", op, name);
}

template <class T>
void check_view(const char* op, const char* name, const MatrixView<T>& view) {
  check_array(op, name, view.data);
  FUT_CHECK(view.rows >= 1 && view.cols >= 1, "{}: {} is [{}, {}], both must be at least 1", op,
            name, view.rows, view.cols);
  FUT_CHECK(view.row_stride >= view.cols, "{}: {} has row_stride {} below its {} columns", op, name,
            view.row_stride, view.cols);
}

void check_weight(const char* op, const char* name, const WeightMatrix& weight) {
  check_array(op, name, weight.data);
  FUT_CHECK(weight.rows >= 1 && weight.cols >= 1, "{}: {} is [{}, {}], both must be at least 1", op,
            name, weight.rows, weight.cols);
}

void check_equal(const char* op, const char* left_name, std::int64_t left, const char* right_name,
                 std::int64_t right) {
  FUT_CHECK(left == right, "{}: {} is {} but {} is {}", op, left_name, left, right_name, right);
}

void check_eps(const char* op, float eps) {
  FUT_CHECK(eps >= 0 && eps < 1, "{}: eps is {}, must lie in [0, 1)", op, eps);
}

// What is written must lie apart from all that is read and from all else that is written.
void check_apart(const char* op, const ByteRange& written,
                 std::initializer_list<ByteRange> others) {
  const auto* begin = static_cast<const char*>(written.data);
  for (const ByteRange& other : others) {
    const auto* other_begin = static_cast<const char*>(other.data);
    FUT_CHECK(begin + written.bytes <= other_begin || other_begin + other.bytes <= begin,
              "{}: {} ({} bytes) overlaps {} ({} bytes)", op, written.name, written.bytes,
              other.name, other.bytes);
  }
}

void check_heads(const char* op, int num_q_heads, int num_kv_heads, int head_dim) {
  FUT_CHECK(num_q_heads >= 1 && num_kv_heads >= 1 && num_q_heads % num_kv_heads == 0,
            "{}: {} query heads do not share {} KV heads evenly", op, num_q_heads, num_kv_heads);
  FUT_CHECK(head_dim >= 2 && head_dim % 2 == 0, "{}: head_dim is {}, must be even", op, head_dim);
}

void check_kv(const char* op, const KvPages& kv, int num_kv_heads, int head_dim) {
  check_array(op, "kv", kv.data);
  FUT_CHECK(kv.num_pages >= 1, "{}: kv has {} pages", op, kv.num_pages);
  check_equal(op, "kv.page.num_kv_heads", kv.page.num_kv_heads, "num_kv_heads", num_kv_heads);
  check_equal(op, "kv.page.head_dim", kv.page.head_dim, "head_dim", head_dim);
}

void check_batch(const char* op, const RaggedBatch& batch) {
  FUT_CHECK(batch.num_sequences >= 1 && batch.num_tokens >= 1, "{}: {} tokens of {} sequences", op,
            batch.num_tokens, batch.num_sequences);
  check_array(op, "batch.positions", batch.positions);
  check_array(op, "batch.q_indptr", batch.q_indptr);
  check_array(op, "batch.kv_indptr", batch.kv_indptr);
  check_array(op, "batch.page_table", batch.page_table);
  check_array(op, "batch.kv_lengths", batch.kv_lengths);
}

}  // namespace

void check(const EmbedArgs& a) {
  constexpr const char* kOp = "embed";
  check_array(kOp, "token_ids", a.token_ids);
  FUT_CHECK(a.num_tokens >= 1, "{}: num_tokens is {}", kOp, a.num_tokens);
  check_weight(kOp, "weight", a.weight);
  check_view(kOp, "out", a.out);
  check_equal(kOp, "out.rows", a.out.rows, "num_tokens", a.num_tokens);
  check_equal(kOp, "out.cols", a.out.cols, "weight.cols", a.weight.cols);
  check_apart(kOp, range_of("out", a.out), {range_of("weight", a.weight)});
}

void check(const QkvRopeAppendArgs& a) {
  constexpr const char* kOp = "qkv_rope_append";
  check_view(kOp, "x", a.x);
  check_array(kOp, "gain", a.gain);
  check_eps(kOp, a.eps);
  check_heads(kOp, a.num_q_heads, a.num_kv_heads, a.head_dim);
  check_weight(kOp, "q_proj", a.q_proj);
  check_weight(kOp, "k_proj", a.k_proj);
  check_weight(kOp, "v_proj", a.v_proj);
  const std::int64_t q_cols = static_cast<std::int64_t>(a.num_q_heads) * a.head_dim;
  const std::int64_t kv_cols = static_cast<std::int64_t>(a.num_kv_heads) * a.head_dim;
  check_equal(kOp, "q_proj.rows", a.q_proj.rows, "num_q_heads * head_dim", q_cols);
  check_equal(kOp, "k_proj.rows", a.k_proj.rows, "num_kv_heads * head_dim", kv_cols);
  check_equal(kOp, "v_proj.rows", a.v_proj.rows, "num_kv_heads * head_dim", kv_cols);
  check_equal(kOp, "q_proj.cols", a.q_proj.cols, "x.cols", a.x.cols);
  check_equal(kOp, "k_proj.cols", a.k_proj.cols, "x.cols", a.x.cols);
  check_equal(kOp, "v_proj.cols", a.v_proj.cols, "x.cols", a.x.cols);
  check_array(kOp, "rope_cos", a.rope_cos);
  check_array(kOp, "rope_sin", a.rope_sin);
  FUT_CHECK(a.rope_positions >= 1, "{}: rope_positions is {}", kOp, a.rope_positions);
  check_batch(kOp, a.batch);
  check_equal(kOp, "x.rows", a.x.rows, "batch.num_tokens", a.batch.num_tokens);
  check_kv(kOp, a.kv, a.num_kv_heads, a.head_dim);
  check_view(kOp, "q_out", a.q_out);
  check_equal(kOp, "q_out.rows", a.q_out.rows, "batch.num_tokens", a.batch.num_tokens);
  check_equal(kOp, "q_out.cols", a.q_out.cols, "num_q_heads * head_dim", q_cols);
  const ByteRange x = range_of("x", a.x);
  const ByteRange gain = range_of("gain", a.gain, a.x.cols);
  const ByteRange kv = range_of("kv", a.kv);
  check_apart(kOp, range_of("q_out", a.q_out),
              {x, gain, range_of("q_proj", a.q_proj), range_of("k_proj", a.k_proj),
               range_of("v_proj", a.v_proj), kv});
  check_apart(kOp, kv, {x, gain});
}

void check(const AttentionArgs& a) {
  constexpr const char* kOp = "attention";
  check_view(kOp, "q", a.q);
  check_heads(kOp, a.num_q_heads, a.num_kv_heads, a.head_dim);
  check_batch(kOp, a.batch);
  check_kv(kOp, a.kv, a.num_kv_heads, a.head_dim);
  const std::int64_t q_cols = static_cast<std::int64_t>(a.num_q_heads) * a.head_dim;
  check_equal(kOp, "q.rows", a.q.rows, "batch.num_tokens", a.batch.num_tokens);
  check_equal(kOp, "q.cols", a.q.cols, "num_q_heads * head_dim", q_cols);
  check_view(kOp, "out", a.out);
  check_equal(kOp, "out.rows", a.out.rows, "batch.num_tokens", a.batch.num_tokens);
  check_equal(kOp, "out.cols", a.out.cols, "num_q_heads * head_dim", q_cols);
  check_apart(kOp, range_of("out", a.out), {range_of("q", a.q), range_of("kv", a.kv)});
}

void check(const LinearResidualArgs& a) {
  constexpr const char* kOp = "linear_residual";
  check_view(kOp, "x", a.x);
  check_weight(kOp, "weight", a.weight);
  check_view(kOp, "residual", a.residual);
  check_equal(kOp, "x.cols", a.x.cols, "weight.cols", a.weight.cols);
  check_equal(kOp, "residual.rows", a.residual.rows, "x.rows", a.x.rows);
  check_equal(kOp, "residual.cols", a.residual.cols, "weight.rows", a.weight.rows);
  check_apart(kOp, range_of("residual", a.residual),
              {range_of("x", a.x), range_of("weight", a.weight)});
}

void check(const GateUpSwigluArgs& a) {
  constexpr const char* kOp = "gate_up_swiglu";
  check_view(kOp, "x", a.x);
  check_array(kOp, "gain", a.gain);
  check_eps(kOp, a.eps);
  check_weight(kOp, "gate_proj", a.gate_proj);
  check_weight(kOp, "up_proj", a.up_proj);
  check_view(kOp, "out", a.out);
  check_equal(kOp, "gate_proj.cols", a.gate_proj.cols, "x.cols", a.x.cols);
  check_equal(kOp, "up_proj.cols", a.up_proj.cols, "x.cols", a.x.cols);
  check_equal(kOp, "up_proj.rows", a.up_proj.rows, "gate_proj.rows", a.gate_proj.rows);
  check_equal(kOp, "out.rows", a.out.rows, "x.rows", a.x.rows);
  check_equal(kOp, "out.cols", a.out.cols, "gate_proj.rows", a.gate_proj.rows);
  check_apart(kOp, range_of("out", a.out),
              {range_of("x", a.x), range_of("gain", a.gain, a.x.cols),
               range_of("gate_proj", a.gate_proj), range_of("up_proj", a.up_proj)});
}

void check(const LmHeadArgs& a) {
  constexpr const char* kOp = "lm_head";
  check_view(kOp, "x", a.x);
  check_array(kOp, "rows", a.rows);
  FUT_CHECK(a.num_rows >= 1, "{}: num_rows is {}", kOp, a.num_rows);
  check_array(kOp, "gain", a.gain);
  check_eps(kOp, a.eps);
  check_weight(kOp, "weight", a.weight);
  check_view(kOp, "out", a.out);
  check_equal(kOp, "weight.cols", a.weight.cols, "x.cols", a.x.cols);
  check_equal(kOp, "out.rows", a.out.rows, "num_rows", a.num_rows);
  check_equal(kOp, "out.cols", a.out.cols, "weight.rows", a.weight.rows);
  check_apart(
      kOp, range_of("out", a.out),
      {range_of("x", a.x), range_of("gain", a.gain, a.x.cols), range_of("weight", a.weight)});
}

void check(const SampleArgs& a) {
  constexpr const char* kOp = "sample";
  check_view(kOp, "logits", a.logits);
  check_array(kOp, "params", a.params);
  check_array(kOp, "draw_index", a.draw_index);
  check_array(kOp, "history_indptr", a.history_indptr);
  check_array(kOp, "next_ids", a.next_ids);
  const ByteRange next_ids = {"next_ids", a.next_ids,
                              a.logits.rows * static_cast<std::int64_t>(sizeof(std::int32_t))};
  check_apart(kOp, next_ids, {range_of("logits", a.logits)});
}

}  // namespace fut
