// Each rule of each op's contract, broken once: check() must refuse, and accept what keeps them.
#include <cstdint>
#include <functional>
#include <gtest/gtest.h>
#include <limits>
#include <string>
#include <vector>

#include "kernels/error.h"
#include "kernels/ops.h"

namespace fut::test {
namespace {

constexpr int kTokens = 3;
constexpr int kHidden = 8;
constexpr int kHeads = 4;
constexpr int kKvHeads = 2;
constexpr int kHeadDim = 6;
constexpr int kFfn = 10;
constexpr int kVocab = 12;

// Memory to point at; nothing here is ever computed.
struct Memory {
  std::vector<std::vector<float>> arrays;
  std::vector<std::int32_t> ints = std::vector<std::int32_t>(64);

  float* floats(std::int64_t count) {
    return arrays.emplace_back(static_cast<std::size_t>(count)).data();
  }
  MatrixView<float> matrix(std::int64_t rows, std::int64_t cols) {
    return {floats(rows * cols), rows, cols, cols};
  }
  MatrixView<const float> input(std::int64_t rows, std::int64_t cols) {
    return {floats(rows * cols), rows, cols, cols};
  }
  WeightMatrix weight(std::int64_t rows, std::int64_t cols) {
    return {DType::F32, floats(rows * cols), rows, cols};
  }
  RaggedBatch batch() {
    const std::int32_t* p = ints.data();
    return {1, kTokens, p, p, p, p, p, p};
  }
  KvPages pages() {
    const layout::KvPageF32 page = {kKvHeads, kHeadDim};
    return {floats(2 * page.elements()), 2, page};
  }
};

// `change` breaks one rule of a valid argument struct; the message must contain `words`.
template <class Args>
struct Rule {
  const char* words;
  std::function<void(Args&)> change;
};

template <class Args>
void expect_rules(const Args& valid, const std::vector<Rule<Args>>& rules) {
  EXPECT_NO_THROW(check(valid));
  for (const Rule<Args>& rule : rules) {
    Args broken = valid;
    rule.change(broken);
    try {
      check(broken);
      ADD_FAILURE() << "accepted what breaks: " << rule.words;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(rule.words), std::string::npos)
          << "wanted '" << rule.words << "' in: " << e.what();
      EXPECT_EQ(e.kind(), ErrorKind::Runtime);
    }
  }
}

TEST(OpsContract, Embed) {
  Memory memory;
  const EmbedArgs valid = {memory.ints.data(), kTokens, memory.weight(kVocab, kHidden),
                           memory.matrix(kTokens, kHidden)};
  expect_rules<EmbedArgs>(
      valid,
      {{"token_ids is null", [](auto& a) { a.token_ids = nullptr; }},
       {"num_tokens is 0", [](auto& a) { a.num_tokens = 0; }},
       {"weight is null", [](auto& a) { a.weight.data = nullptr; }},
       {"weight is [0, 8]", [](auto& a) { a.weight.rows = 0; }},
       {"out is null", [](auto& a) { a.out.data = nullptr; }},
       {"out.rows is 2 but num_tokens is 3", [](auto& a) { a.out.rows = 2; }},
       {"out.cols is 7 but weight.cols is 8", [](auto& a) { a.out.cols = 7; }},
       {"row_stride 7", [](auto& a) { a.out.row_stride = 7; }},
       {"out (96 bytes) overlaps weight", [](auto& a) { a.weight.data = a.out.data + kHidden; }}});
}

QkvRopeAppendArgs valid_qkv(Memory& memory) {
  return {memory.input(kTokens, kHidden),
          memory.floats(kHidden),
          1e-5F,
          memory.weight(kHeads * kHeadDim, kHidden),
          memory.weight(kKvHeads * kHeadDim, kHidden),
          memory.weight(kKvHeads * kHeadDim, kHidden),
          kHeads,
          kKvHeads,
          kHeadDim,
          memory.floats(64),
          memory.floats(64),
          16,
          memory.batch(),
          memory.pages(),
          memory.matrix(kTokens, kHeads * kHeadDim)};
}

TEST(OpsContract, QkvRopeAppendShapes) {
  Memory memory;
  expect_rules<QkvRopeAppendArgs>(
      valid_qkv(memory),
      {{"x is null", [](auto& a) { a.x.data = nullptr; }},
       {"gain is null", [](auto& a) { a.gain = nullptr; }},
       {"eps is -1", [](auto& a) { a.eps = -1; }},
       {"eps is nan", [](auto& a) { a.eps = std::numeric_limits<float>::quiet_NaN(); }},
       {"4 query heads do not share 3", [](auto& a) { a.num_kv_heads = 3; }},
       {"0 KV heads", [](auto& a) { a.num_kv_heads = 0; }},
       {"head_dim is 5", [](auto& a) { a.head_dim = 5; }},
       {"head_dim is 0", [](auto& a) { a.head_dim = 0; }},
       {"q_proj.rows is 23", [](auto& a) { a.q_proj.rows = 23; }},
       {"k_proj.rows is 11", [](auto& a) { a.k_proj.rows = 11; }},
       {"v_proj.rows is 11", [](auto& a) { a.v_proj.rows = 11; }},
       {"q_proj.cols is 9", [](auto& a) { a.q_proj.cols = 9; }},
       {"k_proj.cols is 9", [](auto& a) { a.k_proj.cols = 9; }},
       {"v_proj.cols is 9", [](auto& a) { a.v_proj.cols = 9; }},
       {"q_proj is null", [](auto& a) { a.q_proj.data = nullptr; }},
       {"rope_cos is null", [](auto& a) { a.rope_cos = nullptr; }},
       {"rope_sin is null", [](auto& a) { a.rope_sin = nullptr; }},
       {"rope_positions is 0", [](auto& a) { a.rope_positions = 0; }},
       {"q_out.rows is 2", [](auto& a) { a.q_out.rows = 2; }},
       {"q_out.cols is 23", [](auto& a) { a.q_out.cols = 23; }}});
}

TEST(OpsContract, QkvRopeAppendBatchPagesAndAliasing) {
  Memory memory;
  expect_rules<QkvRopeAppendArgs>(
      valid_qkv(memory),
      {{"3 tokens of 0 sequences", [](auto& a) { a.batch.num_sequences = 0; }},
       {"0 tokens of 1", [](auto& a) { a.batch.num_tokens = 0; }},
       {"batch.positions is null", [](auto& a) { a.batch.positions = nullptr; }},
       {"batch.q_indptr is null", [](auto& a) { a.batch.q_indptr = nullptr; }},
       {"batch.kv_indptr is null", [](auto& a) { a.batch.kv_indptr = nullptr; }},
       {"batch.page_table is null", [](auto& a) { a.batch.page_table = nullptr; }},
       {"batch.kv_lengths is null", [](auto& a) { a.batch.kv_lengths = nullptr; }},
       {"x.rows is 3 but batch.num_tokens is 2", [](auto& a) { a.batch.num_tokens = 2; }},
       {"kv is null", [](auto& a) { a.kv.data = nullptr; }},
       {"kv has 0 pages", [](auto& a) { a.kv.num_pages = 0; }},
       {"kv.page.num_kv_heads is 1", [](auto& a) { a.kv.page.num_kv_heads = 1; }},
       {"kv.page.head_dim is 4", [](auto& a) { a.kv.page.head_dim = 4; }},
       {"overlaps x", [](auto& a) { a.x.data = a.q_out.data; }},
       {"overlaps gain", [](auto& a) { a.gain = a.q_out.data; }},
       {"overlaps v_proj", [](auto& a) { a.v_proj.data = a.q_out.data; }},
       {"overlaps kv", [](auto& a) { a.kv.data = a.q_out.data; }},
       {"kv (12288 bytes) overlaps x", [](auto& a) { a.x.data = a.kv.data; }}});
}

TEST(OpsContract, Attention) {
  Memory memory;
  const AttentionArgs valid = {memory.input(kTokens, kHeads * kHeadDim),
                               kHeads,
                               kKvHeads,
                               kHeadDim,
                               memory.batch(),
                               memory.pages(),
                               memory.matrix(kTokens, kHeads * kHeadDim)};
  expect_rules<AttentionArgs>(
      valid, {{"q is null", [](auto& a) { a.q.data = nullptr; }},
              {"q.cols is 23", [](auto& a) { a.q.cols = 23; }},
              {"q.rows is 2", [](auto& a) { a.q.rows = 2; }},
              {"do not share", [](auto& a) { a.num_q_heads = 3; }},
              {"head_dim is 7", [](auto& a) { a.head_dim = 7; }},
              {"batch.kv_lengths is null", [](auto& a) { a.batch.kv_lengths = nullptr; }},
              {"kv is null", [](auto& a) { a.kv.data = nullptr; }},
              {"kv.page.head_dim is 8", [](auto& a) { a.kv.page.head_dim = 8; }},
              {"out.rows is 4", [](auto& a) { a.out.rows = 4; }},
              {"out.cols is 25", [](auto& a) { a.out.cols = a.out.row_stride = 25; }},
              {"overlaps q", [](auto& a) { a.q.data = a.out.data; }},
              {"overlaps kv", [](auto& a) { a.kv.data = a.out.data; }}});
}

TEST(OpsContract, LinearResidual) {
  Memory memory;
  const LinearResidualArgs valid = {memory.input(kTokens, kFfn), memory.weight(kHidden, kFfn),
                                    memory.matrix(kTokens, kHidden)};
  expect_rules<LinearResidualArgs>(
      valid, {{"x is null", [](auto& a) { a.x.data = nullptr; }},
              {"x has row_stride 9", [](auto& a) { a.x.row_stride = 9; }},
              {"x is [0, 10]", [](auto& a) { a.x.rows = 0; }},
              {"weight is null", [](auto& a) { a.weight.data = nullptr; }},
              {"x.cols is 10 but weight.cols is 9", [](auto& a) { a.weight.cols = 9; }},
              {"residual.rows is 2 but x.rows is 3", [](auto& a) { a.residual.rows = 2; }},
              {"residual.cols is 7 but weight.rows is 8", [](auto& a) { a.residual.cols = 7; }},
              {"overlaps x", [](auto& a) { a.x.data = a.residual.data; }},
              {"overlaps weight", [](auto& a) { a.weight.data = a.residual.data; }}});
}

TEST(OpsContract, GateUpSwiglu) {
  Memory memory;
  const GateUpSwigluArgs valid = {
      memory.input(kTokens, kHidden), memory.floats(kHidden),       1e-5F,
      memory.weight(kFfn, kHidden),   memory.weight(kFfn, kHidden), memory.matrix(kTokens, kFfn)};
  expect_rules<GateUpSwigluArgs>(
      valid, {{"x is null", [](auto& a) { a.x.data = nullptr; }},
              {"gain is null", [](auto& a) { a.gain = nullptr; }},
              {"eps is 1", [](auto& a) { a.eps = 1; }},
              {"gate_proj.cols is 7", [](auto& a) { a.gate_proj.cols = 7; }},
              {"up_proj.cols is 7", [](auto& a) { a.up_proj.cols = 7; }},
              {"up_proj.rows is 9 but gate_proj.rows is 10", [](auto& a) { a.up_proj.rows = 9; }},
              {"out.rows is 2", [](auto& a) { a.out.rows = 2; }},
              {"out.cols is 9", [](auto& a) { a.out.cols = 9; }},
              {"overlaps x", [](auto& a) { a.x.data = a.out.data; }},
              {"overlaps gain", [](auto& a) { a.gain = a.out.data; }},
              {"overlaps gate_proj", [](auto& a) { a.gate_proj.data = a.out.data; }},
              {"overlaps up_proj", [](auto& a) { a.up_proj.data = a.out.data; }}});
}

TEST(OpsContract, LmHead) {
  Memory memory;
  const LmHeadArgs valid = {
      memory.input(kTokens, kHidden), memory.ints.data(),      2, memory.floats(kHidden), 1e-5F,
      memory.weight(kVocab, kHidden), memory.matrix(2, kVocab)};
  expect_rules<LmHeadArgs>(
      valid, {{"x is null", [](auto& a) { a.x.data = nullptr; }},
              {"rows is null", [](auto& a) { a.rows = nullptr; }},
              {"num_rows is 0", [](auto& a) { a.num_rows = 0; }},
              {"gain is null", [](auto& a) { a.gain = nullptr; }},
              {"eps is -0.5", [](auto& a) { a.eps = -0.5F; }},
              {"weight.cols is 7", [](auto& a) { a.weight.cols = 7; }},
              {"out.rows is 1 but num_rows is 2", [](auto& a) { a.out.rows = 1; }},
              {"out.cols is 11 but weight.rows is 12", [](auto& a) { a.out.cols = 11; }},
              {"overlaps x", [](auto& a) { a.x.data = a.out.data; }},
              {"overlaps gain", [](auto& a) { a.gain = a.out.data; }},
              {"overlaps weight", [](auto& a) { a.weight.data = a.out.data; }}});
}

TEST(OpsContract, Sample) {
  Memory memory;
  const SampleParams params;
  const std::uint64_t draw_index = 0;
  std::int32_t next_id = 0;
  const SampleArgs valid = {memory.input(1, kVocab), &params, &draw_index, memory.ints.data(),
                            memory.ints.data(),      &next_id};
  expect_rules<SampleArgs>(
      valid, {{"logits is null", [](auto& a) { a.logits.data = nullptr; }},
              {"logits is [1, 0]", [](auto& a) { a.logits.cols = 0; }},
              {"params is null", [](auto& a) { a.params = nullptr; }},
              {"draw_index is null", [](auto& a) { a.draw_index = nullptr; }},
              {"history_indptr is null", [](auto& a) { a.history_indptr = nullptr; }},
              {"next_ids is null", [](auto& a) { a.next_ids = nullptr; }},
              {"overlaps logits",
               [&](auto& a) { a.logits.data = reinterpret_cast<const float*>(a.next_ids); }}});
}

TEST(OpsContract, RowsMayHaveGapsAndNeighbouringArraysMayTouch) {
  Memory memory;
  std::vector<float> block(2 * kTokens * (kHidden + 2));
  const MatrixView<float> residual = {block.data(), kTokens, kHidden, kHidden + 2};
  const MatrixView<const float> x = {block.data() + kTokens * (kHidden + 2), kTokens, kHidden,
                                     kHidden + 2};
  EXPECT_NO_THROW(check(LinearResidualArgs{x, memory.weight(kHidden, kHidden), residual}));
}

}  // namespace
}  // namespace fut::test
