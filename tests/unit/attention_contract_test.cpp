// Each rule of the contracts of qkv_rope_append and attention, broken once: check() must refuse, and
// accept what keeps them.
#include <cstdint>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "tests/support/contract_case.h"

namespace fut::test {
namespace {

QkvRopeAppendArgs qkv_with(Memory& memory, QkvWeights weights, const float* gain, DType x_type,
                           DType out_type) {
  QkvRopeAppendArgs a;
  a.x = memory.matrix(x_type, kTokens, kHidden);
  a.gain = gain;
  a.eps = 1e-5F;
  a.weights = std::move(weights);
  a.num_q_heads = kHeads;
  a.num_kv_heads = kKvHeads;
  a.head_dim = kHeadDim;
  a.rope_cos = memory.floats(16 * kHeadDim / 2);
  a.rope_sin = memory.floats(16 * kHeadDim / 2);
  a.rope_positions = 16;
  a.batch = memory.batch();
  a.kv = memory.pages(out_type);
  a.q_out = memory.matrix(out_type, kTokens, kQCols);
  return a;
}

QkvRopeAppendArgs plain_qkv(Memory& memory) {
  return qkv_with(memory,
                  QkvMatrices{memory.dense(DType::F32, kQCols, kHidden),
                              memory.dense(DType::F16, kKvCols, kHidden),
                              memory.dense(DType::BF16, kKvCols, kHidden)},
                  memory.floats(kHidden), DType::F32, DType::F32);
}

QkvRopeAppendArgs stacked_qkv(Memory& memory, const Weights& weights, DType x, DType out) {
  return qkv_with(memory, weights, nullptr, x, out);
}

QkvMatrices& apart(QkvRopeAppendArgs& a) {
  return std::get<QkvMatrices>(a.weights);
}

TEST(QkvRopeAppendContract, Shapes) {
  Memory memory;
  expect_rules<QkvRopeAppendArgs>(
      plain_qkv(memory),
      {{"x is null", [](auto& a) { a.x.data = nullptr; }},
       {"eps is -1", [](auto& a) { a.eps = -1; }},
       {"eps is nan", [](auto& a) { a.eps = std::numeric_limits<float>::quiet_NaN(); }},
       {"4 query heads do not share 3", [](auto& a) { a.num_kv_heads = 3; }},
       {"0 KV heads", [](auto& a) { a.num_kv_heads = 0; }},
       {"head_dim is 5", [](auto& a) { a.head_dim = 5; }},
       {"head_dim is 0", [](auto& a) { a.head_dim = 0; }},
       {"q_proj is [23, 128], must be [256, 128]", [](auto& a) { apart(a).q_proj.rows = 23; }},
       {"k_proj is [11, 128], must be [128, 128]", [](auto& a) { apart(a).k_proj.rows = 11; }},
       {"v_proj is [11, 128], must be [128, 128]", [](auto& a) { apart(a).v_proj.rows = 11; }},
       {"q_proj is [256, 9]", [](auto& a) { apart(a).q_proj.cols = 9; }},
       {"k_proj is [128, 9]", [](auto& a) { apart(a).k_proj.cols = 9; }},
       {"v_proj is [128, 9]", [](auto& a) { apart(a).v_proj.cols = 9; }},
       {"q_proj is null", [](auto& a) { apart(a).q_proj.data = nullptr; }},
       {"rope_cos is null", [](auto& a) { a.rope_cos = nullptr; }},
       {"rope_sin is null", [](auto& a) { a.rope_sin = nullptr; }},
       {"rope_positions is 0", [](auto& a) { a.rope_positions = 0; }},
       {"q_out is null", [](auto& a) { a.q_out.data = nullptr; }},
       {"q_out is [2, 256], must be [3, 256]", [](auto& a) { a.q_out.rows = 2; }},
       {"q_out is [3, 255], must be [3, 256]", [](auto& a) { a.q_out.cols = 255; }}});
}

TEST(QkvRopeAppendContract, BatchPagesAndAliasing) {
  Memory memory;
  expect_rules<QkvRopeAppendArgs>(
      plain_qkv(memory),
      {{"3 tokens of 0 sequences", [](auto& a) { a.batch.num_sequences = 0; }},
       {"0 tokens of 1", [](auto& a) { a.batch.num_tokens = 0; }},
       {"batch.positions is null", [](auto& a) { a.batch.positions = nullptr; }},
       {"batch.q_indptr is null", [](auto& a) { a.batch.q_indptr = nullptr; }},
       {"batch.kv_indptr is null", [](auto& a) { a.batch.kv_indptr = nullptr; }},
       {"batch.page_table is null", [](auto& a) { a.batch.page_table = nullptr; }},
       {"batch.kv_lengths is null", [](auto& a) { a.batch.kv_lengths = nullptr; }},
       {"x.rows is 3 but batch.num_tokens is 2", [](auto& a) { a.batch.num_tokens = 2; }},
       {"kv has 0 pages", [](auto& a) { a.kv.num_pages = 0; }},
       {"kv.page.num_kv_heads is 1", [](auto& a) { a.kv.page.num_kv_heads = 1; }},
       {"kv.page.head_dim is 4", [](auto& a) { a.kv.page.head_dim = 4; }},
       {"overlaps x", [](auto& a) { a.x.data = a.q_out.data; }},
       {"overlaps gain", [](auto& a) { a.gain = static_cast<const float*>(a.q_out.data); }},
       {"overlaps v_proj", [](auto& a) { apart(a).v_proj.data = a.q_out.data; }},
       {"q_out (3072 bytes) overlaps kv", [](auto& a) { a.kv.data = a.q_out.data; }},
       {"kv (131072 bytes) overlaps x", [](auto& a) { a.x.data = a.kv.data; }}});
}

TEST(QkvRopeAppendContract, WritesKeysToOnePlace) {
  Memory memory;
  QkvRopeAppendArgs valid = plain_qkv(memory);
  valid.kv = {};
  valid.k_out = memory.matrix(DType::F32, kTokens, kKvCols);
  valid.v_out = memory.matrix(DType::F32, kTokens, kKvCols);
  valid.batch.page_table = nullptr;  // positions are all that is looked at
  const KvPages kv = memory.pages(DType::F32);
  expect_rules<QkvRopeAppendArgs>(
      valid, {{"kv is null and k_out, v_out are", [](auto& a) { a.k_out.data = nullptr; }},
              {"kv is null and k_out, v_out are", [](auto& a) { a.v_out.data = nullptr; }},
              {"k_out is given", [&](auto& a) { a.kv = kv; }},
              {"v_out is given",
               [&](auto& a) {
                 a.kv = kv;
                 a.k_out = {};
               }},
              {"k_out is [3, 127], must be [3, 128]", [](auto& a) { a.k_out.cols = 127; }},
              {"v_out is [2, 128], must be [3, 128]", [](auto& a) { a.v_out.rows = 2; }},
              {"k_out beside q_out is BF16", [](auto& a) { a.k_out.dtype = DType::BF16; }},
              {"v_out beside q_out is BF16", [](auto& a) { a.v_out.dtype = DType::BF16; }},
              {"k_out (1536 bytes) overlaps v_out", [](auto& a) { a.v_out.data = a.k_out.data; }},
              {"v_out (1536 bytes) overlaps x", [](auto& a) { a.x.data = a.v_out.data; }},
              {"q_out (3072 bytes) overlaps k_out", [](auto& a) { a.k_out.data = a.q_out.data; }}});
}

TEST(QkvRopeAppendContract, Types) {
  Memory memory;
  const auto to_bf16 = [&](QkvRopeAppendArgs& a) {
    a.q_out.dtype = DType::BF16;
    a.kv.dtype = DType::BF16;
  };
  expect_rules<QkvRopeAppendArgs>(
      plain_qkv(memory),
      {{"gain is null, but q_proj is F32", [](auto& a) { a.gain = nullptr; }},
       {"x is BF16, must be F32", [](auto& a) { a.x.dtype = DType::BF16; }},
       {"q_out beside a gain is BF16", to_bf16},
       {"q_out is F16, must be F32 or BF16", [](auto& a) { a.q_out.dtype = DType::F16; }},
       {"kv beside q_out is BF16, must be F32", [](auto& a) { a.kv.dtype = DType::BF16; }},
       {"kv is E4M3", [](auto& a) { a.kv.dtype = DType::E4M3; }},
       {"rotation_block is 64, but q_out is F32", [](auto& a) { a.rotation_block = 64; }}});

  const DenseMatrix bf16 = memory.dense(DType::BF16, kQCols + 2 * kKvCols, kHidden);
  expect_rules<QkvRopeAppendArgs>(
      stacked_qkv(memory, bf16, DType::BF16, DType::BF16),
      {{"x is F16", [](auto& a) { a.x.dtype = DType::F16; }},
       {"weights is [511, 128], must be [512, 128]",
        [](auto& a) { part<DenseMatrix>(std::get<Weights>(a.weights)).rows = 511; }},
       {"rotation_block is 24", [](auto& a) { a.rotation_block = 24; }},
       {"rotation_block is 128", [](auto& a) { a.rotation_block = 128; }},
       {"rotation_block is -1", [](auto& a) { a.rotation_block = -1; }},
       {"weights is F16; without one it is BF16",
        [](auto& a) { part<DenseMatrix>(std::get<Weights>(a.weights)).dtype = DType::F16; }}});
  QkvRopeAppendArgs rotated = stacked_qkv(memory, bf16, DType::F32, DType::BF16);
  rotated.rotation_block = 32;
  EXPECT_NO_THROW(check(rotated));
}

TEST(QkvRopeAppendContract, PackedWeights) {
  Memory memory;
  constexpr int kRows = kQCols + 2 * kKvCols;
  const float* gain = memory.floats(kHidden);
  expect_rules<QkvRopeAppendArgs>(
      stacked_qkv(memory, memory.e4m3(kRows, kHidden), DType::BF16, DType::BF16),
      {{"gain is given", [&](auto& a) { a.gain = gain; }},
       {"operand_scale is 3, must be a power of two", [](auto& a) { a.operand_scale = 3; }},
       {"operand_scale is 0", [](auto& a) { a.operand_scale = 0; }},
       {"operand_scale is -2", [](auto& a) { a.operand_scale = -2; }},
       {"operand_scale is inf",
        [](auto& a) { a.operand_scale = std::numeric_limits<float>::infinity(); }},
       {"weights.row_scales is null",
        [](auto& a) { part<E4m3Matrix>(std::get<Weights>(a.weights)).row_scales = nullptr; }},
       {"q_out (1536 bytes) overlaps weights",
        [](auto& a) {
          part<E4m3Matrix>(std::get<Weights>(a.weights)).codes =
              static_cast<const std::uint8_t*>(a.q_out.data);
        }},
       {"INT8 is for lm_head alone",
        [&](auto& a) { a.weights = Weights(memory.int8(kRows, kHidden)); }}});

  const layout::RowOrder order = layout::RowOrder::qkv(kHeads, kKvHeads, kHeadDim);
  const auto int4 = [](QkvRopeAppendArgs& a) -> Int4Matrix& {
    return part<Int4Matrix>(std::get<Weights>(a.weights));
  };
  expect_rules<QkvRopeAppendArgs>(
      stacked_qkv(memory, memory.int4(order, kHidden), DType::F32, DType::F32),
      {{"gain is given", [&](auto& a) { a.gain = gain; }},
       {"x is BF16, must be F32", [](auto& a) { a.x.dtype = DType::BF16; }},
       {"must be 16-byte aligned", [&](auto& a) { int4(a).packed += 8; }},
       {"tile of [512, 96] in groups of 128", [&](auto& a) { int4(a).tile.cols = 96; }},
       {"in groups of 32", [&](auto& a) { int4(a).tile.group = 32; }},
       {"tile of 256 columns but 128 columns", [&](auto& a) { int4(a).tile.cols = 256; }},
       {"order of 512 rows but 511 rows", [&](auto& a) { int4(a).rows = 511; }},
       {"tile of 500 rows but its order makes 512", [&](auto& a) { int4(a).tile.rows = 500; }},
       {"not in the order of 4 query and 2 KV heads of 64",
        [&](auto& a) { int4(a).order = layout::RowOrder::natural(kRows); }}});
}

AttentionArgs attention_with(Memory& memory, KvCacheView kv, DType q_type, DType out_type) {
  AttentionArgs a;
  a.q = memory.matrix(q_type, kTokens, kQCols);
  a.num_q_heads = kHeads;
  a.num_kv_heads = kKvHeads;
  a.head_dim = kHeadDim;
  a.batch = memory.batch();
  a.kv = kv;
  a.out = memory.matrix(out_type, kTokens, kQCols);
  return a;
}

TEST(AttentionContract, OfAFloat32Cache) {
  Memory memory;
  const auto kv = [](AttentionArgs& a) -> KvPages& { return std::get<KvPages>(a.kv); };
  const ConstActivationView k = memory.matrix(DType::F32, kTokens, kKvCols);
  expect_rules<AttentionArgs>(
      attention_with(memory, memory.pages(DType::F32), DType::F32, DType::F32),
      {{"q is null", [](auto& a) { a.q.data = nullptr; }},
       {"q is [3, 23], must be [3, 256]", [](auto& a) { a.q.cols = 23; }},
       {"q is [2, 256], must be [3, 256]", [](auto& a) { a.q.rows = 2; }},
       {"q is BF16, must be F32", [](auto& a) { a.q.dtype = DType::BF16; }},
       {"do not share", [](auto& a) { a.num_q_heads = 3; }},
       {"head_dim is 7", [](auto& a) { a.head_dim = 7; }},
       {"batch.kv_lengths is null", [](auto& a) { a.batch.kv_lengths = nullptr; }},
       {"kv is null", [&](auto& a) { kv(a).data = nullptr; }},
       {"kv.page.head_dim is 8", [&](auto& a) { kv(a).page.head_dim = 8; }},
       {"kv is F16, must be F32 or BF16", [&](auto& a) { kv(a).dtype = DType::F16; }},
       {"k is given", [&](auto& a) { a.k = k; }},
       {"v is given", [&](auto& a) { a.v = k; }},
       {"out is [4, 256]", [](auto& a) { a.out.rows = 4; }},
       {"out is [3, 257]", [](auto& a) { a.out.cols = a.out.row_stride = 257; }},
       {"out is BF16, must be F32", [](auto& a) { a.out.dtype = DType::BF16; }},
       {"rotation_block is 64 with q F32", [](auto& a) { a.rotation_block = 64; }},
       {"overlaps q", [](auto& a) { a.q.data = a.out.data; }},
       {"overlaps kv", [&](auto& a) { kv(a).data = a.out.data; }}});
}

TEST(AttentionContract, OfANarrowCache) {
  Memory memory;
  const float* scales = memory.floats(kKvHeads);
  AttentionArgs valid = attention_with(memory, memory.pages(DType::BF16), DType::BF16, DType::E4M3);
  valid.out_scales = scales;
  expect_rules<AttentionArgs>(
      valid,
      {{"out is F32, must be BF16 or F16 or E4M3", [](auto& a) { a.out.dtype = DType::F32; }},
       {"out_scales is null", [](auto& a) { a.out_scales = nullptr; }},
       {"out_scales is given", [](auto& a) { a.out.dtype = DType::BF16; }},
       {"q is F16", [](auto& a) { a.q.dtype = DType::F16; }},
       {"rotation_block is 64 with q BF16", [](auto& a) { a.rotation_block = 64; }}});
  AttentionArgs wide_q = attention_with(memory, memory.pages(DType::BF16), DType::F32, DType::F16);
  wide_q.rotation_block = 16;
  EXPECT_NO_THROW(check(wide_q));
}

TEST(AttentionContract, OfAnInt4Cache) {
  Memory memory;
  AttentionArgs valid = attention_with(memory, memory.int4_pages(), DType::F32, DType::F16);
  valid.k = memory.matrix(DType::F32, kTokens, kKvCols);
  valid.v = memory.matrix(DType::F32, kTokens, kKvCols);
  valid.rotation_block = 64;
  const auto kv = [](AttentionArgs& a) -> KvPagesInt4& { return std::get<KvPagesInt4>(a.kv); };
  expect_rules<AttentionArgs>(
      valid, {{"k is null", [](auto& a) { a.k = {}; }},
              {"v is null", [](auto& a) { a.v = {}; }},
              {"k is [3, 127], must be [3, 128]", [](auto& a) { a.k.cols = 127; }},
              {"v is [2, 128], must be [3, 128]", [](auto& a) { a.v.rows = 2; }},
              {"k beside q is BF16", [](auto& a) { a.k.dtype = DType::BF16; }},
              {"v beside q is BF16", [](auto& a) { a.v.dtype = DType::BF16; }},
              {"kv has 0 pages", [&](auto& a) { kv(a).num_pages = 0; }},
              {"must be 16-byte aligned", [&](auto& a) { kv(a).data += 8; }},
              {"kv.page.num_kv_heads is 1", [&](auto& a) { kv(a).page.num_kv_heads = 1; }},
              {"kv has groups of 16 dims", [&](auto& a) { kv(a).page.kv_group = 16; }},
              {"kv.raw is null", [&](auto& a) { kv(a).raw = nullptr; }},
              {"kv has 0 raw slots", [&](auto& a) { kv(a).num_raw_slots = 0; }},
              {"kv.raw_rows.num_kv_heads is 1", [&](auto& a) { kv(a).raw_rows.num_kv_heads = 1; }},
              {"kv.raw_rows.head_dim is 32", [&](auto& a) { kv(a).raw_rows.head_dim = 32; }},
              {"batch.raw_slots is null", [](auto& a) { a.batch.raw_slots = nullptr; }},
              {"out is F32", [](auto& a) { a.out.dtype = DType::F32; }},
              {"rotation_block is 48", [](auto& a) { a.rotation_block = 48; }},
              {"overlaps k ", [](auto& a) { a.k.data = a.out.data; }},
              {"overlaps v ", [](auto& a) { a.v.data = a.out.data; }},
              {"overlaps kv ", [&](auto& a) { a.out.data = kv(a).data; }},
              {"kv.raw (32768 bytes) overlaps k", [&](auto& a) { a.k.data = kv(a).raw; }},
              {"overlaps kv.raw",
               [&](auto& a) { kv(a).data = reinterpret_cast<std::uint8_t*>(kv(a).raw); }}});
}

}  // namespace
}  // namespace fut::test
