// Weights on their way from the checkpoint to the quantiser: the transforms in their places.
#include "engine/quantize_weights.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>

#include "tests/support/expect_error.h"
#include "tests/unit/quantize_case.h"

namespace fut::test {
namespace {

ToyModelOptions tied_toy_model() {
  ToyModelOptions options = quantizable_toy_model();
  options.files.tie_word_embeddings = true;
  options.files.write_head = false;
  return options;
}

// The same model with gains that are far from one.
std::filesystem::path write_model(const std::filesystem::path& folder,
                                  const ToyModelOptions& options = quantizable_toy_model()) {
  return write_changed_toy_model(folder, options, [](std::vector<NamedTensor>& tensors) {
    for (NamedTensor& tensor : tensors) {
      if (tensor.shape.size() != 1) continue;
      std::vector<float> gain(static_cast<std::size_t>(tensor.shape[0]));
      for (std::size_t i = 0; i < gain.size(); ++i) {
        gain[i] = 0.5F + 0.125F * static_cast<float>(i % 16);
      }
      tensor = make_tensor(tensor.name, DType::BF16, tensor.shape, gain);
    }
  });
}

float gain_of(std::int64_t column) {
  return 0.5F + 0.125F * static_cast<float>(column % 16);
}

// A tensor as the file has it.
HostMatrix stored(const Checkpoint& checkpoint, const TensorInfo& info) {
  std::vector<std::uint16_t> bits(info.bytes / 2);
  checkpoint.read(info, std::as_writable_bytes(std::span(bits)));
  HostMatrix w(info.name, info.shape[0], info.shape[1]);
  std::ranges::transform(bits, w.values.begin(), bf16_to_f32);
  return w;
}

void expect_same(const HostMatrix& found, const HostMatrix& expected) {
  EXPECT_EQ(found.rows, expected.rows);
  EXPECT_EQ(found.cols, expected.cols);
  EXPECT_TRUE(found.values == expected.values) << found.name;
}

class TransformedWeights : public testing::Test {
 protected:
  TempFolder folder_;
};

TEST_F(TransformedWeights, HaveGainsInTheirReaders) {
  const QuantizeCase toy(write_model(folder_ / "toy"), plain_options());
  const TransformedLayer layer = toy.weights.layer(1);
  const auto as_stored = [&](LayerTensor which) {
    return stored(toy.checkpoint, toy.checkpoint.layer(1, which));
  };
  const auto folded = [&](HostMatrix w) {
    for (std::int64_t r = 0; r < w.rows; ++r) {
      for (std::int64_t c = 0; c < w.cols; ++c) w.row(r)[c] *= gain_of(c);
    }
    return w;
  };
  expect_same(layer.q_proj, folded(as_stored(LayerTensor::QProj)));
  expect_same(layer.k_proj, folded(as_stored(LayerTensor::KProj)));
  expect_same(layer.v_proj, folded(as_stored(LayerTensor::VProj)));
  expect_same(layer.gate_proj, folded(as_stored(LayerTensor::GateProj)));
  expect_same(layer.up_proj, folded(as_stored(LayerTensor::UpProj)));
  expect_same(layer.o_proj, as_stored(LayerTensor::OProj));
  expect_same(layer.down_proj, as_stored(LayerTensor::DownProj));
  const HostMatrix head = stored(toy.checkpoint, toy.checkpoint.global(GlobalTensor::LmHead));
  expect_same(toy.weights.head(0, head.rows), folded(head));
  const HostMatrix embedding =
      stored(toy.checkpoint, toy.checkpoint.global(GlobalTensor::EmbedTokens));
  expect_same(toy.weights.embedding(0, embedding.rows), embedding);
}

TEST_F(TransformedWeights, AreRotatedOnTheSidesThatTheResidualStreamTouches) {
  const auto model = write_model(folder_ / "toy");
  PackedOptions options = plain_options();
  const QuantizeCase plain(model, options);
  options.rotate = true;
  options.rotation_seed = 5;
  const QuantizeCase rotated(model, options);
  const Rotation r(128, 5);
  TransformedLayer expected = plain.weights.layer(0);
  for (HostMatrix* w : {&expected.q_proj, &expected.k_proj, &expected.v_proj, &expected.gate_proj,
                        &expected.up_proj}) {
    rotate_inputs(*w, r, {});
  }
  rotate_outputs(expected.o_proj, r, {});
  rotate_outputs(expected.down_proj, r, {});
  const TransformedLayer found = rotated.weights.layer(0);
  expect_same(found.q_proj, expected.q_proj);
  expect_same(found.k_proj, expected.k_proj);
  expect_same(found.v_proj, expected.v_proj);
  expect_same(found.o_proj, expected.o_proj);
  expect_same(found.gate_proj, expected.gate_proj);
  expect_same(found.up_proj, expected.up_proj);
  expect_same(found.down_proj, expected.down_proj);
  HostMatrix head = plain.weights.head(0, 512);
  rotate_inputs(head, r, {});
  expect_same(rotated.weights.head(0, 512), head);
}

TEST_F(TransformedWeights, RotateValuesWithinTheirHeads) {
  const auto model = write_model(folder_ / "toy");
  PackedOptions options = plain_options();
  const QuantizeCase plain(model, options);
  options.kv_rotation = true;
  const QuantizeCase rotated(model, options);
  const TransformedLayer before = plain.weights.layer(0);
  const TransformedLayer after = rotated.weights.layer(0);
  expect_same(after.q_proj, before.q_proj);
  expect_same(after.down_proj, before.down_proj);
  // o_proj v_proj of a head is what it was, and neither factor is.
  EXPECT_FALSE(after.v_proj.values == before.v_proj.values);
  EXPECT_FALSE(after.o_proj.values == before.o_proj.values);
  const auto product = [](const TransformedLayer& w, int q_head, std::int64_t row, std::int64_t col,
                          double& size) {
    double sum = 0;
    for (std::int64_t d = 0; d < 64; ++d) {
      const double term = static_cast<double>(w.o_proj.row(row)[64 * q_head + d]) *
                          w.v_proj.row(64 * (q_head / 2) + d)[col];
      sum += term;
      size += std::fabs(term);
    }
    return sum;
  };
  for (int q_head = 0; q_head < 4; ++q_head) {
    double size = 0;
    const double expected = product(before, q_head, 3, 7, size);
    const double found = product(after, q_head, 3, 7, size);
    EXPECT_NEAR(found, expected, 2 * 0x1p-24 * size) << "two factors rounded to float32";
  }
}

TEST_F(TransformedWeights, UntieATiedHeadBeforeRotatingIt) {
  const auto model = write_model(folder_ / "tied", tied_toy_model());
  PackedOptions options = plain_options();
  options.rotate = true;
  const QuantizeCase tied(model, options);
  const QuantizeCase plain(model, plain_options());
  const Rotation r(128, options.rotation_seed);
  HostMatrix embedding = plain.weights.embedding(0, 512);
  HostMatrix head = embedding;
  for (std::int64_t row = 0; row < head.rows; ++row) {
    for (std::int64_t c = 0; c < head.cols; ++c) head.row(row)[c] *= gain_of(c);
  }
  rotate_inputs(embedding, r, {});
  rotate_inputs(head, r, {});
  expect_same(tied.weights.embedding(0, 512), embedding);
  expect_same(tied.weights.head(0, 512), head);
}

TEST_F(TransformedWeights, ComeInPiecesAsWellAsWhole) {
  PackedOptions options;
  options.rotate = true;
  const QuantizeCase toy(write_model(folder_ / "toy"), options);
  const HostMatrix whole = toy.weights.embedding(0, 512);
  const HostMatrix piece = toy.weights.embedding(500, 12);
  EXPECT_TRUE(std::equal(piece.values.begin(), piece.values.end(), whole.row(500)));
  const std::vector<std::int32_t> ids = {511, 0, 7, 7};
  const HostMatrix chosen = toy.weights.embedding(ids);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_TRUE(std::equal(whole.row(ids[i]), whole.row(ids[i]) + 128,
                           chosen.row(static_cast<std::int64_t>(i))));
  }
}

TEST_F(TransformedWeights, AreStackedAsTheyArePacked) {
  const QuantizeCase toy(write_model(folder_ / "toy"), plain_options());
  const TransformedLayer layer = toy.weights.layer(1);
  const StackedLayer stacked = stack_layer(toy.weights.layer(1), 1);
  for (int m = 0; m < kNumPackedMatrices; ++m) {
    const PackedMatrixShape shape = packed_matrix_shape(toy.config, static_cast<PackedMatrix>(m));
    const HostMatrix& w = stacked[static_cast<std::size_t>(m)];
    EXPECT_EQ(w.name, fmt::format("layers.1.{}", shape.name));
    EXPECT_EQ(w.rows, shape.rows);
    EXPECT_EQ(w.cols, shape.cols);
  }
  EXPECT_TRUE(std::ranges::equal(std::span(layer.k_proj.values),
                                 std::span(stacked[0].values).subspan(256 * 128, 128 * 128)));
  EXPECT_TRUE(std::ranges::equal(std::span(layer.up_proj.values),
                                 std::span(stacked[2].values).subspan(256 * 128)));
}

TEST_F(TransformedWeights, ThatAreNotFiniteAreNamed) {
  const auto model = write_changed_toy_model(
      folder_ / "broken", quantizable_toy_model(), [](std::vector<NamedTensor>& tensors) {
        NamedTensor& o = tensor_named(tensors, "model.layers.0.self_attn.o_proj.weight");
        std::vector<float> values(128 * 256, 0.5F);
        values[256 * 3 + 9] = std::numeric_limits<float>::infinity();
        o = make_tensor(o.name, DType::BF16, o.shape, values);
      });
  const QuantizeCase toy(model);
  expect_mentions(error_message(ErrorKind::Data, [&] { (void)toy.weights.layer(0); }),
                  {"model.layers.0.self_attn.o_proj.weight", "row 3, column 9", "inf"});
}

}  // namespace
}  // namespace fut::test
