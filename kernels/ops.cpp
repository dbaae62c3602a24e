// check() of every op: each line of the contracts in ops.h that the host can verify without reading
// backend memory. What lies in arrays (ids, positions, pages, exponents) is the caller's promise
// here; the CPU backend, which can read them, checks those too.
#include "kernels/ops.h"

#include <vector>

#include "kernels/check.h"
#include "kernels/op_checks.h"

namespace fut {

using namespace op_checks;

void check(const ExpandArgs& a) {
  constexpr const char* kOp = "expand";
  check_weights(kOp, "weight", a.weight);
  check_array(kOp, "codes", a.codes);
  check_array(kOp, "row_scales", a.row_scales);
  FUT_CHECK((a.column_scales == nullptr) == (a.num_column_scales == 0),
            "{}: {} column_scales, and they are {}", kOp, a.num_column_scales,
            a.column_scales == nullptr ? "null" : "given");
  FUT_CHECK(
      a.num_column_scales >= 0 &&
          (a.num_column_scales == 0 ||
           a.weight.cols % (std::int64_t{layout::Int4Tile::kTileCols} * a.num_column_scales) == 0),
      "{}: {} column_scales for {} columns", kOp, a.num_column_scales, a.weight.cols);
  FUT_CHECK(reinterpret_cast<std::uintptr_t>(a.codes) % 16 == 0,
            "{}: codes at {}, not 16-byte aligned", kOp, static_cast<const void*>(a.codes));
  const ByteRange weight = range_of("weight", a.weight);
  const ByteRange codes{"codes", a.codes, a.weight.rows * a.weight.cols};
  const ByteRange row_scales = range_of("row_scales", a.row_scales, a.weight.rows);
  check_apart(kOp, codes, {weight, row_scales});
  check_apart(kOp, row_scales, {weight});
}

void check(const EmbedArgs& a) {
  constexpr const char* kOp = "embed";
  check_array(kOp, "token_ids", a.token_ids);
  FUT_CHECK(a.num_tokens >= 1, "{}: num_tokens is {}", kOp, a.num_tokens);
  check_weights(kOp, "weight", a.weight);
  check_view(kOp, "out", a.out, a.num_tokens, a.weight.cols);
  check_dtype(kOp, "out", a.out.dtype, {DType::F32, DType::BF16});
  check_apart(kOp, range_of("out", a.out), {range_of("weight", a.weight)});
}

namespace {

constexpr const char* kQkv = "qkv_rope_append";

void check_qkv_weights(const QkvRopeAppendArgs& a, std::vector<ByteRange>& read) {
  const std::int64_t q_rows = static_cast<std::int64_t>(a.num_q_heads) * a.head_dim;
  const std::int64_t kv_rows = static_cast<std::int64_t>(a.num_kv_heads) * a.head_dim;
  const auto check_part = [&](const char* name, const Weights& weights, std::int64_t rows) {
    check_weights(kQkv, name, weights, rows, a.x.cols);
    check_projection_types(kQkv, name, weights, a.gain, a.x);
    read.push_back(range_of(name, weights));
  };
  if (const auto* apart = std::get_if<QkvMatrices>(&a.weights)) {
    check_part("q_proj", apart->q_proj, q_rows);
    check_part("k_proj", apart->k_proj, kv_rows);
    check_part("v_proj", apart->v_proj, kv_rows);
    return;
  }
  const auto& stacked = std::get<Weights>(a.weights);
  check_part("weights", stacked, q_rows + 2 * kv_rows);
  FUT_CHECK(!std::holds_alternative<Int8Matrix>(stacked), "{}: INT8 is for lm_head alone", kQkv);
  if (std::holds_alternative<E4m3Matrix>(stacked)) {
    check_power_of_two(kQkv, "operand_scale", a.operand_scale);
  }
  if (const auto* int4 = std::get_if<Int4Matrix>(&stacked)) {
    FUT_CHECK(a.head_dim % (2 * layout::RowOrder::kHalfStrip) == 0,
              "{}: head_dim is {}, RoPE pairs of INT4 rows need a multiple of {}", kQkv, a.head_dim,
              2 * layout::RowOrder::kHalfStrip);
    FUT_CHECK(int4->order == layout::RowOrder::qkv(a.num_q_heads, a.num_kv_heads, a.head_dim),
              "{}: weights are not in the order of {} query and {} KV heads of {}", kQkv,
              a.num_q_heads, a.num_kv_heads, a.head_dim);
  }
}

// What the op writes: queries, and keys and values either into pages or side by side.
void check_qkv_outputs(const QkvRopeAppendArgs& a, std::vector<ByteRange>& written) {
  const std::int64_t tokens = a.batch.num_tokens;
  const std::int64_t kv_cols = static_cast<std::int64_t>(a.num_kv_heads) * a.head_dim;
  check_view(kQkv, "q_out", a.q_out, tokens, static_cast<std::int64_t>(a.num_q_heads) * a.head_dim);
  check_dtype(kQkv, "q_out", a.q_out.dtype, {DType::F32, DType::BF16});
  if (a.gain != nullptr) check_dtype(kQkv, "q_out beside a gain", a.q_out.dtype, {DType::F32});
  written.push_back(range_of("q_out", a.q_out));
  if (a.kv.data != nullptr) {
    check_absent(kQkv, "k_out", a.k_out.data, "keys go to kv");
    check_absent(kQkv, "v_out", a.v_out.data, "values go to kv");
    check_batch(kQkv, a.batch);
    check_kv(kQkv, a.kv, a.num_kv_heads, a.head_dim);
    check_dtype(kQkv, "kv beside q_out", a.kv.dtype, {a.q_out.dtype});
    written.push_back(range_of("kv", a.kv));
    return;
  }
  FUT_CHECK(a.k_out.data != nullptr && a.v_out.data != nullptr,
            "{}: kv is null and k_out, v_out are {}, {}; one of both is needed", kQkv, a.k_out.data,
            a.v_out.data);
  check_view(kQkv, "k_out", a.k_out, tokens, kv_cols);
  check_view(kQkv, "v_out", a.v_out, tokens, kv_cols);
  check_dtype(kQkv, "k_out beside q_out", a.k_out.dtype, {a.q_out.dtype});
  check_dtype(kQkv, "v_out beside q_out", a.v_out.dtype, {a.q_out.dtype});
  written.push_back(range_of("k_out", a.k_out));
  written.push_back(range_of("v_out", a.v_out));
}

}  // namespace

void check(const QkvRopeAppendArgs& a) {
  check_view(kQkv, "x", a.x);
  check_eps(kQkv, a.eps);
  check_heads(kQkv, a.num_q_heads, a.num_kv_heads, a.head_dim);
  std::vector<ByteRange> read = {range_of("x", a.x)};
  if (a.gain != nullptr) read.push_back(range_of("gain", a.gain, a.x.cols));
  check_qkv_weights(a, read);
  check_array(kQkv, "rope_cos", a.rope_cos);
  check_array(kQkv, "rope_sin", a.rope_sin);
  FUT_CHECK(a.rope_positions >= 1, "{}: rope_positions is {}", kQkv, a.rope_positions);
  check_tokens(kQkv, a.batch);
  check_equal(kQkv, "x.rows", a.x.rows, "batch.num_tokens", a.batch.num_tokens);
  std::vector<ByteRange> written;
  check_qkv_outputs(a, written);
  check_rotation(kQkv, a.rotation_block, a.head_dim);
  FUT_CHECK(a.rotation_block == 0 || a.q_out.dtype == DType::BF16,
            "{}: rotation_block is {}, but q_out is {}; BF16 alone is rotated here", kQkv,
            a.rotation_block, dtype_name(a.q_out.dtype));
  for (std::size_t i = 0; i < written.size(); ++i) {
    check_apart(kQkv, written[i], read);
    check_apart(kQkv, written[i], std::span<const ByteRange>(written).subspan(i + 1));
  }
}

namespace {

constexpr const char* kAttention = "attention";

void check_attention_cache(const AttentionArgs& a, const KvPages& kv) {
  check_kv(kAttention, kv, a.num_kv_heads, a.head_dim);
  check_absent(kAttention, "k", a.k.data, "the cache has the keys of the step already");
  check_absent(kAttention, "v", a.v.data, "the cache has the values of the step already");
  if (kv.dtype == DType::F32) check_dtype(kAttention, "q", a.q.dtype, {DType::F32});
  check_apart(kAttention, range_of("out", a.out), {range_of("kv", kv)});
}

void check_attention_cache(const AttentionArgs& a, const KvPagesInt4& kv) {
  check_kv(kAttention, kv, a.num_kv_heads, a.head_dim);
  check_array(kAttention, "batch.raw_slots", a.batch.raw_slots);
  const std::int64_t kv_cols = static_cast<std::int64_t>(a.num_kv_heads) * a.head_dim;
  check_view(kAttention, "k", a.k, a.q.rows, kv_cols);
  check_view(kAttention, "v", a.v, a.q.rows, kv_cols);
  check_dtype(kAttention, "k beside q", a.k.dtype, {a.q.dtype});
  check_dtype(kAttention, "v beside q", a.v.dtype, {a.q.dtype});
  const ByteRange read[] = {range_of("q", a.q), range_of("k", a.k), range_of("v", a.v)};
  const ByteRange pages = {"kv", kv.data, kv.num_pages * kv.page.bytes()};
  const ByteRange raw = {"kv.raw", kv.raw, kv.num_raw_slots * kv.raw_rows.elements() * 2};
  check_apart(kAttention, pages, read);
  check_apart(kAttention, raw, read);
  check_apart(kAttention, pages, {raw});
  check_apart(kAttention, range_of("out", a.out), {read[1], read[2], pages, raw});
}

}  // namespace

void check(const AttentionArgs& a) {
  check_heads(kAttention, a.num_q_heads, a.num_kv_heads, a.head_dim);
  check_batch(kAttention, a.batch);
  const std::int64_t q_cols = static_cast<std::int64_t>(a.num_q_heads) * a.head_dim;
  check_view(kAttention, "q", a.q, a.batch.num_tokens, q_cols);
  check_dtype(kAttention, "q", a.q.dtype, {DType::F32, DType::BF16});
  check_view(kAttention, "out", a.out, a.batch.num_tokens, q_cols);
  std::visit([&](const auto& kv) { check_attention_cache(a, kv); }, a.kv);

  const auto* pages = std::get_if<KvPages>(&a.kv);
  const bool plain = pages != nullptr && pages->dtype == DType::F32;
  if (plain) {
    check_dtype(kAttention, "out", a.out.dtype, {DType::F32});
  } else {
    check_dtype(kAttention, "out", a.out.dtype, {DType::BF16, DType::F16, DType::E4M3});
  }
  if (a.out.dtype == DType::E4M3) {
    check_array(kAttention, "out_scales", a.out_scales);
  } else {
    check_absent(kAttention, "out_scales", a.out_scales, "out is not E4M3");
  }
  check_rotation(kAttention, a.rotation_block, a.head_dim);
  FUT_CHECK(a.rotation_block == 0 || (a.q.dtype == DType::F32 && !plain),
            "{}: rotation_block is {} with q {} and a cache that is {}; rotated here is F32 q that "
            "is rounded afterwards",
            kAttention, a.rotation_block, dtype_name(a.q.dtype), plain ? "F32" : "narrower");
  check_apart(kAttention, range_of("out", a.out), {range_of("q", a.q)});
}

void check(const LinearResidualArgs& a) {
  constexpr const char* kOp = "linear_residual";
  check_view(kOp, "x", a.x);
  check_weights(kOp, "weight", a.weight);
  check_equal(kOp, "x.cols", a.x.cols, "weight.cols", weight_cols(a.weight));
  check_view(kOp, "residual", a.residual, a.x.rows, weight_rows(a.weight));
  FUT_CHECK(!std::holds_alternative<Int8Matrix>(a.weight), "{}: INT8 is for lm_head alone", kOp);
  if (const DenseMatrix* dense = as_dense(a.weight)) {
    check_dtype(kOp, "x", a.x.dtype, {DType::F32, DType::BF16});
    if (a.x.dtype == DType::BF16) check_dtype(kOp, "weight", dense->dtype, {DType::BF16});
  } else if (const auto* int4 = std::get_if<Int4Matrix>(&a.weight)) {
    check_dtype(kOp, "x", a.x.dtype, {DType::F16});
    FUT_CHECK(int4->order.kind == layout::RowOrder::Kind::Natural,
              "{}: weight is in an order of its own, must be as it comes", kOp);
  } else {
    check_dtype(kOp, "x", a.x.dtype, {DType::E4M3});
    check_power_of_two(kOp, "x_scale", a.x_scale);
  }
  if (a.x.dtype != DType::F16) {
    check_absent(kOp, "x_exponents", a.x_exponents, "the weight is not INT4");
  }
  const bool wide = a.x.dtype == DType::F32 || a.x.dtype == DType::F16;
  if (wide) {
    check_dtype(kOp, "residual", a.residual.dtype, {DType::F32});
  } else {
    check_dtype(kOp, "residual", a.residual.dtype, {DType::F32, DType::BF16});
  }
  check_apart(kOp, range_of("residual", a.residual),
              {range_of("x", a.x), range_of("weight", a.weight)});
}

namespace {

constexpr const char* kGateUp = "gate_up_swiglu";

// The type of out that goes with stacked weights, and what else comes with it.
DType check_stacked_gate_up(const GateUpSwigluArgs& a, const Weights& stacked) {
  check_weights(kGateUp, "weights", stacked, 2 * a.out.cols, a.x.cols);
  check_projection_types(kGateUp, "weights", stacked, a.gain, a.x);
  FUT_CHECK(!std::holds_alternative<Int8Matrix>(stacked), "{}: INT8 is for lm_head alone", kGateUp);
  if (std::holds_alternative<E4m3Matrix>(stacked)) {
    check_power_of_two(kGateUp, "operand_scale", a.operand_scale);
    check_power_of_two(kGateUp, "out_scale", a.out_scale);
    return DType::E4M3;
  }
  if (const auto* int4 = std::get_if<Int4Matrix>(&stacked)) {
    FUT_CHECK(int4->order == layout::RowOrder::gate_up(static_cast<int>(a.out.cols)),
              "{}: weights are not in the order of {} gate and up channels", kGateUp, a.out.cols);
    check_array(kGateUp, "out_exponents", a.out_exponents);
    return DType::F16;
  }
  return a.gain != nullptr ? DType::F32 : DType::BF16;
}

}  // namespace

void check(const GateUpSwigluArgs& a) {
  check_view(kGateUp, "x", a.x);
  check_eps(kGateUp, a.eps);
  check_view(kGateUp, "out", a.out);
  check_equal(kGateUp, "out.rows", a.out.rows, "x.rows", a.x.rows);
  const ByteRange out = range_of("out", a.out);
  DType wanted = a.gain != nullptr ? DType::F32 : DType::BF16;
  if (const auto* apart = std::get_if<GateUpMatrices>(&a.weights)) {
    check_weights(kGateUp, "gate_proj", apart->gate_proj, a.out.cols, a.x.cols);
    check_weights(kGateUp, "up_proj", apart->up_proj, a.out.cols, a.x.cols);
    check_projection_types(kGateUp, "gate_proj", apart->gate_proj, a.gain, a.x);
    check_projection_types(kGateUp, "up_proj", apart->up_proj, a.gain, a.x);
    check_apart(kGateUp, out,
                {range_of("gate_proj", apart->gate_proj), range_of("up_proj", apart->up_proj)});
  } else {
    const auto& stacked = std::get<Weights>(a.weights);
    wanted = check_stacked_gate_up(a, stacked);
    check_apart(kGateUp, out, {range_of("weights", stacked)});
  }
  check_dtype(kGateUp, "out", a.out.dtype, {wanted});
  if (wanted != DType::F16) {
    check_absent(kGateUp, "out_exponents", a.out_exponents, "the weights are not INT4");
  }
  check_apart(kGateUp, out, {range_of("x", a.x)});
  if (a.gain != nullptr) check_apart(kGateUp, out, {range_of("gain", a.gain, a.x.cols)});
}

void check(const LmHeadArgs& a) {
  constexpr const char* kOp = "lm_head";
  check_view(kOp, "x", a.x);
  check_array(kOp, "rows", a.rows);
  FUT_CHECK(a.num_rows >= 1, "{}: num_rows is {}", kOp, a.num_rows);
  check_eps(kOp, a.eps);
  check_weights(kOp, "weight", a.weight);
  check_equal(kOp, "weight.cols", weight_cols(a.weight), "x.cols", a.x.cols);
  FUT_CHECK(as_dense(a.weight) != nullptr || std::holds_alternative<Int8Matrix>(a.weight),
            "{}: weight is neither dense nor INT8", kOp);
  check_projection_types(kOp, "weight", a.weight, a.gain, a.x);
  if (a.rescoring.data != nullptr) {
    FUT_CHECK(as_dense(a.weight) == nullptr, "{}: rescoring is given, but weight is not INT8", kOp);
    check_weights(kOp, "rescoring", a.rescoring, weight_rows(a.weight), a.x.cols);
    check_dtype(kOp, "rescoring", a.rescoring.dtype, {DType::BF16});
  }
  check_view(kOp, "out", a.out, a.num_rows, weight_rows(a.weight));
  const ByteRange out = range_of("out", a.out);
  check_apart(kOp, out, {range_of("x", a.x), range_of("weight", a.weight)});
  if (a.rescoring.data != nullptr) check_apart(kOp, out, {range_of("rescoring", a.rescoring)});
  if (a.gain != nullptr) check_apart(kOp, out, {range_of("gain", a.gain, a.x.cols)});
}

void check(const SampleArgs& a) {
  constexpr const char* kOp = "sample";
  check_view(kOp, "logits", a.logits);
  check_array(kOp, "params", a.params);
  check_array(kOp, "draw_index", a.draw_index);
  check_array(kOp, "history_begins", a.history_begins);
  check_array(kOp, "history_ends", a.history_ends);
  check_array(kOp, "next_ids", a.next_ids);
  const ByteRange next_ids = {"next_ids", a.next_ids,
                              a.logits.rows * static_cast<std::int64_t>(sizeof(std::int32_t))};
  check_apart(kOp, next_ids, {range_of("logits", a.logits)});
}

}  // namespace fut
