// Each rule of the contracts of embed, the matrix ops and sample, broken once: check() must refuse,
// and accept what keeps them.
#include <cstdint>
#include <gtest/gtest.h>
#include <limits>
#include <vector>

#include "tests/support/contract_case.h"

namespace fut::test {
namespace {

TEST(OpsContract, Embed) {
  Memory memory;
  const EmbedArgs valid = {memory.ints(), kTokens, memory.dense(DType::F32, kVocab, kHidden),
                           memory.matrix(DType::F32, kTokens, kHidden)};
  expect_rules<EmbedArgs>(
      valid, {{"token_ids is null", [](auto& a) { a.token_ids = nullptr; }},
              {"num_tokens is 0", [](auto& a) { a.num_tokens = 0; }},
              {"weight is null", [](auto& a) { a.weight.data = nullptr; }},
              {"weight is [0, 128]", [](auto& a) { a.weight.rows = 0; }},
              {"weight is E4M3, must be F32 or F16 or BF16",
               [](auto& a) { a.weight.dtype = DType::E4M3; }},
              {"out is null", [](auto& a) { a.out.data = nullptr; }},
              {"out is [2, 128], must be [3, 128]", [](auto& a) { a.out.rows = 2; }},
              {"out is [3, 127], must be [3, 128]", [](auto& a) { a.out.cols = 127; }},
              {"row_stride 127", [](auto& a) { a.out.row_stride = 127; }},
              {"out is F16, must be F32 or BF16", [](auto& a) { a.out.dtype = DType::F16; }},
              {"out (1536 bytes) overlaps weight",
               [](auto& a) { a.weight.data = a.out.template row<float>(1); }}});
  EmbedArgs to_bf16 = valid;
  to_bf16.out = memory.matrix(DType::BF16, kTokens, kHidden);
  EXPECT_NO_THROW(check(to_bf16));
}

TEST(OpsContract, LinearResidual) {
  Memory memory;
  const LinearResidualArgs valid = {.x = memory.matrix(DType::F32, kTokens, kFfn),
                                    .weight = memory.dense(DType::F16, kHidden, kFfn),
                                    .residual = memory.matrix(DType::F32, kTokens, kHidden)};
  const std::int32_t* exponents = memory.ints();
  const auto dense = [](LinearResidualArgs& a) -> DenseMatrix& {
    return part<DenseMatrix>(a.weight);
  };
  expect_rules<LinearResidualArgs>(
      valid,
      {{"x is null", [](auto& a) { a.x.data = nullptr; }},
       {"x has row_stride 9", [](auto& a) { a.x.row_stride = 9; }},
       {"x is [0, 256]", [](auto& a) { a.x.rows = 0; }},
       {"weight is null", [&](auto& a) { dense(a).data = nullptr; }},
       {"x.cols is 256 but weight.cols is 9", [&](auto& a) { dense(a).cols = 9; }},
       {"residual is [2, 128], must be [3, 128]", [](auto& a) { a.residual.rows = 2; }},
       {"residual is [3, 7], must be [3, 128]", [](auto& a) { a.residual.cols = 7; }},
       {"residual is BF16, must be F32", [](auto& a) { a.residual.dtype = DType::BF16; }},
       {"x is F16, must be F32 or BF16", [](auto& a) { a.x.dtype = DType::F16; }},
       {"weight is F16, must be BF16", [](auto& a) { a.x.dtype = DType::BF16; }},
       {"x_exponents is given", [&](auto& a) { a.x_exponents = exponents; }},
       {"INT8 is for lm_head alone", [&](auto& a) { a.weight = memory.int8(kHidden, kFfn); }},
       {"overlaps x", [](auto& a) { a.x.data = a.residual.data; }},
       {"overlaps weight", [&](auto& a) { dense(a).data = a.residual.data; }}});
  LinearResidualArgs bf16 = valid;
  bf16.x.dtype = bf16.residual.dtype = DType::BF16;
  bf16.weight = memory.dense(DType::BF16, kHidden, kFfn);
  EXPECT_NO_THROW(check(bf16));
}

TEST(OpsContract, LinearResidualPackedWeights) {
  Memory memory;
  expect_rules<LinearResidualArgs>(
      {.x = memory.matrix(DType::E4M3, kTokens, kFfn),
       .x_scale = 0.5F,
       .weight = memory.e4m3(kHidden, kFfn),
       .residual = memory.matrix(DType::BF16, kTokens, kHidden)},
      {{"x is F32, must be E4M3", [](auto& a) { a.x.dtype = DType::F32; }},
       {"x_scale is 0.75", [](auto& a) { a.x_scale = 0.75F; }},
       {"residual is F16, must be F32 or BF16", [](auto& a) { a.residual.dtype = DType::F16; }},
       {"weight is null", [](auto& a) { part<E4m3Matrix>(a.weight).codes = nullptr; }}});
  expect_rules<LinearResidualArgs>(
      {.x = memory.matrix(DType::F16, kTokens, kFfn),
       .x_exponents = memory.ints(),
       .weight = memory.int4(layout::RowOrder::natural(kHidden), kFfn),
       .residual = memory.matrix(DType::F32, kTokens, kHidden)},
      {{"x is BF16, must be F16", [](auto& a) { a.x.dtype = DType::BF16; }},
       {"residual is BF16, must be F32", [](auto& a) { a.residual.dtype = DType::BF16; }},
       {"weight is in an order of its own",
        [](auto& a) { part<Int4Matrix>(a.weight).order = layout::RowOrder::gate_up(kHidden / 2); }},
       {"residual (1536 bytes) overlaps weight", [](auto& a) {
          part<Int4Matrix>(a.weight).packed = static_cast<const std::uint8_t*>(a.residual.data);
        }}});
}

GateUpSwigluArgs gate_up_with(Memory& memory, GateUpWeights weights, DType x, DType out) {
  GateUpSwigluArgs a;
  a.x = memory.matrix(x, kTokens, kHidden);
  a.eps = 1e-5F;
  a.weights = std::move(weights);
  a.out = memory.matrix(out, kTokens, kFfn);
  return a;
}

TEST(OpsContract, GateUpSwiglu) {
  Memory memory;
  GateUpSwigluArgs valid = gate_up_with(memory,
                                        GateUpMatrices{memory.dense(DType::F32, kFfn, kHidden),
                                                       memory.dense(DType::BF16, kFfn, kHidden)},
                                        DType::F32, DType::F32);
  valid.gain = memory.floats(kHidden);
  std::int32_t exponent = 0;
  const auto apart = [](GateUpSwigluArgs& a) -> GateUpMatrices& {
    return std::get<GateUpMatrices>(a.weights);
  };
  expect_rules<GateUpSwigluArgs>(
      valid,
      {{"x is null", [](auto& a) { a.x.data = nullptr; }},
       {"x is BF16, must be F32", [](auto& a) { a.x.dtype = DType::BF16; }},
       {"gain is null, but gate_proj is F32", [](auto& a) { a.gain = nullptr; }},
       {"eps is 1", [](auto& a) { a.eps = 1; }},
       {"gate_proj is [256, 7]", [&](auto& a) { apart(a).gate_proj.cols = 7; }},
       {"up_proj is [256, 7]", [&](auto& a) { apart(a).up_proj.cols = 7; }},
       {"up_proj is [9, 128], must be [256, 128]", [&](auto& a) { apart(a).up_proj.rows = 9; }},
       {"out.rows is 2 but x.rows is 3", [](auto& a) { a.out.rows = 2; }},
       {"gate_proj is [256, 128], must be [9, 128]", [](auto& a) { a.out.cols = 9; }},
       {"out is F16, must be F32", [](auto& a) { a.out.dtype = DType::F16; }},
       {"out_exponents is given", [&](auto& a) { a.out_exponents = &exponent; }},
       {"overlaps x", [](auto& a) { a.x.data = a.out.data; }},
       {"overlaps gain", [](auto& a) { a.gain = static_cast<const float*>(a.out.data); }},
       {"overlaps gate_proj", [&](auto& a) { apart(a).gate_proj.data = a.out.data; }},
       {"overlaps up_proj", [&](auto& a) { apart(a).up_proj.data = a.out.data; }}});
}

TEST(OpsContract, GateUpSwigluStackedWeights) {
  Memory memory;
  const auto stacked = [](GateUpSwigluArgs& a) -> Weights& { return std::get<Weights>(a.weights); };
  const float* gain = memory.floats(kHidden);
  expect_rules<GateUpSwigluArgs>(
      gate_up_with(memory, memory.dense(DType::BF16, 2 * kFfn, kHidden), DType::BF16, DType::BF16),
      {{"out is F32, must be BF16", [](auto& a) { a.out.dtype = DType::F32; }},
       {"weights is [511, 128], must be [512, 128]",
        [&](auto& a) { part<DenseMatrix>(stacked(a)).rows = 511; }},
       {"overlaps weights", [&](auto& a) { part<DenseMatrix>(stacked(a)).data = a.out.data; }}});
  expect_rules<GateUpSwigluArgs>(
      gate_up_with(memory, memory.e4m3(2 * kFfn, kHidden), DType::BF16, DType::E4M3),
      {{"out is BF16, must be E4M3", [](auto& a) { a.out.dtype = DType::BF16; }},
       {"gain is given", [&](auto& a) { a.gain = gain; }},
       {"operand_scale is 5", [](auto& a) { a.operand_scale = 5; }},
       {"out_scale is 1.5", [](auto& a) { a.out_scale = 1.5F; }},
       {"INT8 is for lm_head alone",
        [&](auto& a) { a.weights = Weights(memory.int8(2 * kFfn, kHidden)); }}});

  std::vector<std::int32_t> exponents(kTokens);
  GateUpSwigluArgs int4 = gate_up_with(
      memory, memory.int4(layout::RowOrder::gate_up(kFfn), kHidden), DType::F32, DType::F16);
  int4.out_exponents = exponents.data();
  expect_rules<GateUpSwigluArgs>(
      int4, {{"x is BF16, must be F32", [](auto& a) { a.x.dtype = DType::BF16; }},
             {"out is BF16, must be F16", [](auto& a) { a.out.dtype = DType::BF16; }},
             {"out_exponents is null", [](auto& a) { a.out_exponents = nullptr; }},
             {"not in the order of 256 gate and up channels", [&](auto& a) {
                part<Int4Matrix>(stacked(a)).order = layout::RowOrder::natural(2 * kFfn);
              }}});
}

TEST(OpsContract, LmHead) {
  Memory memory;
  const LmHeadArgs valid = {.x = memory.matrix(DType::F32, kTokens, kHidden),
                            .rows = memory.ints(),
                            .num_rows = 2,
                            .gain = memory.floats(kHidden),
                            .eps = 1e-5F,
                            .weight = memory.dense(DType::F32, kVocab, kHidden),
                            .rescoring = {},
                            .out = memory.logits(2, kVocab)};
  const DenseMatrix bf16 = memory.dense(DType::BF16, kVocab, kHidden);
  const auto dense = [](LmHeadArgs& a) -> DenseMatrix& { return part<DenseMatrix>(a.weight); };
  expect_rules<LmHeadArgs>(valid,
                           {{"x is null", [](auto& a) { a.x.data = nullptr; }},
                            {"x is BF16, must be F32", [](auto& a) { a.x.dtype = DType::BF16; }},
                            {"rows is null", [](auto& a) { a.rows = nullptr; }},
                            {"num_rows is 0", [](auto& a) { a.num_rows = 0; }},
                            {"gain is null, but weight is F32", [](auto& a) { a.gain = nullptr; }},
                            {"eps is -0.5", [](auto& a) { a.eps = -0.5F; }},
                            {"weight.cols is 7", [&](auto& a) { dense(a).cols = 7; }},
                            {"out is [1, 12], must be [2, 12]", [](auto& a) { a.out.rows = 1; }},
                            {"out is [2, 11], must be [2, 12]", [](auto& a) { a.out.cols = 11; }},
                            {"neither dense nor INT8",
                             [&](auto& a) {
                               a.weight = memory.e4m3(kVocab, kHidden);
                               a.gain = nullptr;
                             }},
                            {"neither dense nor INT8",
                             [&](auto& a) {
                               a.weight = memory.int4(layout::RowOrder::natural(kVocab), kHidden);
                               a.gain = nullptr;
                             }},
                            {"rescoring is given", [&](auto& a) { a.rescoring = bf16; }},
                            {"overlaps x", [](auto& a) { a.x.data = a.out.data; }},
                            {"overlaps gain", [](auto& a) { a.gain = a.out.data; }},
                            {"overlaps weight", [&](auto& a) { dense(a).data = a.out.data; }}});
}

TEST(OpsContract, LmHeadOfInt8) {
  Memory memory;
  const LmHeadArgs valid = {.x = memory.matrix(DType::BF16, kTokens, kHidden),
                            .rows = memory.ints(),
                            .num_rows = 2,
                            .weight = memory.int8(kVocab, kHidden),
                            .rescoring = memory.dense(DType::BF16, kVocab, kHidden),
                            .out = memory.logits(2, kVocab)};
  const float* gain = memory.floats(kHidden);
  expect_rules<LmHeadArgs>(
      valid, {{"gain is given", [&](auto& a) { a.gain = gain; }},
              {"x is F16, must be F32 or BF16", [](auto& a) { a.x.dtype = DType::F16; }},
              {"weight.row_scales is null",
               [](auto& a) { part<Int8Matrix>(a.weight).row_scales = nullptr; }},
              {"rescoring is F16, must be BF16", [](auto& a) { a.rescoring.dtype = DType::F16; }},
              {"rescoring is [11, 128], must be [12, 128]", [](auto& a) { a.rescoring.rows = 11; }},
              {"overlaps rescoring", [](auto& a) { a.rescoring.data = a.out.data; }}});
}

TEST(OpsContract, Sample) {
  Memory memory;
  const SampleParams params;
  const std::uint64_t draw_index = 0;
  std::int32_t next_id = 0;
  const MatrixView<float> logits = memory.logits(1, kVocab);
  const SampleArgs valid = {{logits.data, 1, kVocab, kVocab},
                            &params,
                            &draw_index,
                            memory.ints(),
                            memory.ints(),
                            memory.ints(),
                            &next_id};
  expect_rules<SampleArgs>(
      valid, {{"logits is null", [](auto& a) { a.logits.data = nullptr; }},
              {"logits is [1, 0]", [](auto& a) { a.logits.cols = 0; }},
              {"params is null", [](auto& a) { a.params = nullptr; }},
              {"draw_index is null", [](auto& a) { a.draw_index = nullptr; }},
              {"history_begins is null", [](auto& a) { a.history_begins = nullptr; }},
              {"history_ends is null", [](auto& a) { a.history_ends = nullptr; }},
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
  EXPECT_NO_THROW(check(LinearResidualArgs{
      .x = x, .weight = memory.dense(DType::F32, kHidden, kHidden), .residual = residual}));
}

}  // namespace
}  // namespace fut::test
