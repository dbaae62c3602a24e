// Embedding and head go through a few thousand rows at a time, a layer as a whole.
#include "engine/quantize_pack.h"

#include <algorithm>

#include "kernels/numeric/activation_scales.h"
#include "kernels/numeric/formats.h"
#include "loader/packers.h"

namespace fut {
namespace {

constexpr std::int64_t kRowsAtOnce = 4096;

std::vector<std::uint16_t> to_bf16(const HostMatrix& w) {
  std::vector<std::uint16_t> bits(w.values.size());
  std::ranges::transform(w.values, bits.begin(), f32_to_bf16);
  return bits;
}

std::vector<float> attention_output_scales(const LayerStatistics& statistics) {
  std::vector<float> scales;
  for (const float amax : statistics.value_amax) scales.push_back(attention_output_scale(amax));
  return scales;
}

// o_proj for inputs that were multiplied by their KV head's scale: exact, scales are powers of two.
HostMatrix divide_columns(const HostMatrix& o_proj, std::span<const float> scales) {
  HostMatrix out = o_proj;
  const std::int64_t columns_per_scale = out.cols / std::ssize(scales);
  for (std::int64_t r = 0; r < out.rows; ++r) {
    for (std::int64_t c = 0; c < out.cols; ++c) {
      out.row(r)[c] /= scales[static_cast<std::size_t>(c / columns_per_scale)];
    }
  }
  return out;
}

}  // namespace

TensorPacker::TensorPacker(PackedWriter& writer, const WeightTransforms& weights,
                           const ModelConfig& config, int group_size, ParallelFor parallel_for)
    : writer_(writer),
      weights_(weights),
      config_(config),
      group_size_(group_size),
      parallel_for_(std::move(parallel_for)) {}

template <class T>
void TensorPacker::append(const std::string& tensor, const std::vector<T>& values) {
  writer_.append(tensor, std::as_bytes(std::span(values)));
}

template <class Body>
void TensorPacker::for_rows(const Body& body) const {
  for (std::int64_t begin = 0; begin < config_.vocab_size; begin += kRowsAtOnce) {
    body(begin, std::min<std::int64_t>(kRowsAtOnce, config_.vocab_size - begin));
  }
}

std::string TensorPacker::name(int layer, PackedLayerTensor which) const {
  return packed_layer_tensor(config_, group_size_, layer, which).name;
}

void TensorPacker::append_embedding(const RowsDone& done) {
  const std::string tensor = packed_global_tensor(config_, PackedGlobalTensor::EmbedTokens).name;
  for_rows([&](std::int64_t begin, std::int64_t count) {
    const HostMatrix rows = weights_.embedding(begin, count);
    append(tensor, to_bf16(rows));
    if (done) done(rows);
  });
}

void TensorPacker::append_matrix(int index, PackedMatrix which, const HostMatrix& w,
                                 const QuantizedMatrix& q) {
  const layout::RowOrder order = packed_matrix_shape(config_, which).order;
  append(name(index, packed_part(which, PackedPart::Int4)), pack_int4(q, order, parallel_for_));
  const PackedE4m3 e4m3 = pack_e4m3(w, parallel_for_);
  append(name(index, packed_part(which, PackedPart::E4m3)), e4m3.codes);
  append(name(index, packed_part(which, PackedPart::E4m3Scale)), e4m3.scales);
}

void TensorPacker::append_layer(int index, const StackedLayer& layer,
                                const QuantizedLayer& quantized,
                                const LayerStatistics& statistics) {
  const std::vector<float> o_scales = attention_output_scales(statistics);
  for (std::size_t m = 0; m < layer.size(); ++m) {
    const auto which = static_cast<PackedMatrix>(m);
    if (which == PackedMatrix::OProj) {
      append_matrix(index, which, divide_columns(layer[m], o_scales), quantized.matrices[m]);
    } else {
      append_matrix(index, which, layer[m], quantized.matrices[m]);
    }
  }
  const std::vector<float> h_scale = {
      swiglu_output_scale(statistics.swiglu_rms, statistics.swiglu_amax)};
  const std::vector<float> swiglu = {statistics.swiglu_rms, statistics.swiglu_amax};
  append(name(index, PackedLayerTensor::AttentionOutputScale), o_scales);
  append(name(index, PackedLayerTensor::SwigluOutputScale), h_scale);
  append(name(index, PackedLayerTensor::StatsQkvInput), statistics.qkv_input);
  append(name(index, PackedLayerTensor::StatsOInput), statistics.o_input);
  append(name(index, PackedLayerTensor::StatsGateUpInput), statistics.gate_up_input);
  append(name(index, PackedLayerTensor::StatsDownInput), statistics.down_input);
  append(name(index, PackedLayerTensor::StatsSwiglu), swiglu);
  append(name(index, PackedLayerTensor::StatsValueAmax), statistics.value_amax);
}

void TensorPacker::append_head(const RowsDone& done) {
  const auto tensor = [&](PackedGlobalTensor which) {
    return packed_global_tensor(config_, which).name;
  };
  std::vector<float> scales;
  for_rows([&](std::int64_t begin, std::int64_t count) {
    const HostMatrix rows = weights_.head(begin, count);
    const PackedInt8 int8 = pack_int8(rows, parallel_for_);
    append(tensor(PackedGlobalTensor::LmHeadInt8), int8.codes);
    scales.insert(scales.end(), int8.scales.begin(), int8.scales.end());
    if (done) done(rows);
  });
  append(tensor(PackedGlobalTensor::LmHeadInt8Scale), scales);
  for_rows([&](std::int64_t begin, std::int64_t count) {
    append(tensor(PackedGlobalTensor::LmHead), to_bf16(weights_.head(begin, count)));
  });
}

}  // namespace fut
