// Models of random weights: as large as real ones and as finite, with nothing in them.
#include <random>
#include <utility>

#include "engine/arena.h"
#include "engine/model.h"
#include "kernels/error.h"
#include "kernels/numeric/activation_scales.h"
#include "kernels/numeric/formats.h"
#include "loader/packed_tensors.h"

namespace fut {
namespace {

constexpr int kGroup = 128;
// Random codes have a standard deviation of some 4.6 (INT4), 73 (INT8), 0.6 (E4M3 below 2); with these
// scales a product of K inputs of size 1 has a size of about 1/2 whatever the type.
float scale_for(std::int64_t cols, float deviation) {
  return 0.5F / (deviation * std::sqrt(static_cast<float>(cols)));
}

}  // namespace

class RandomWeights {
 public:
  RandomWeights(Backend& backend, const ModelConfig& config, Precision precision, RandomFor steps,
                PrefillWeights prefill)
      : backend_(backend),
        config_(config),
        precision_(precision),
        expands_(precision == Precision::Int4 && prefill == PrefillWeights::Int4),
        has_int4_(precision == Precision::Int4 && (steps != RandomFor::Prefill || expands_)),
        has_e4m3_(is_quantized(precision) &&
                  (!has_int4_ || (steps == RandomFor::Both && !expands_))),
        random_(kPatternBytes) {
    std::mt19937 engine(1);
    for (std::size_t i = 0; i < random_.size(); i += sizeof(std::uint32_t)) {
      const auto word = static_cast<std::uint32_t>(engine());
      std::memcpy(random_.data() + i, &word, sizeof(word));
    }
  }

  Model run() && {
    model_.config_ = config_;
    model_.precision_ = precision_;
    model_.operand_scale_ = normalised_operand_scale(config_.hidden_size);
    Arena counted;
    build(counted);
    Arena arena(backend_, counted.used());
    model_.layers_.clear();
    model_.decode_layers_.clear();
    build(arena);
    model_.arena_ = arena.take();
    if (expands_) model_.make_expanded(backend_);
    return std::move(model_);
  }

 private:
  // A prime number of strips' worth of records, so that repeating it does not repeat a row soon.
  static constexpr std::size_t kPatternBytes = 1056 * 16 * 1021;

  void build(Arena& arena) {
    const std::int64_t hidden = config_.hidden_size;
    const std::int64_t vocab = config_.vocab_size;
    model_.embed_tokens_ = bf16(arena, vocab, hidden, 1);
    for (int i = 0; i < config_.num_layers; ++i) {
      if (has_int4_) {
        model_.decode_layers_.push_back(
            layer([&](PackedMatrix m) { return Weights(int4(arena, m)); }));
        if (expands_) model_.layers_.push_back(with_scales(arena, {}));
      }
      if (has_e4m3_) {
        model_.layers_.push_back(
            with_scales(arena, layer([&](PackedMatrix m) { return Weights(e4m3(arena, m)); })));
      } else if (!is_quantized(precision_)) {
        model_.layers_.push_back(layer([&](PackedMatrix m) {
          const PackedMatrixShape shape = packed_matrix_shape(config_, m);
          return Weights(bf16(arena, shape.rows, shape.cols, scale_for(shape.cols, 0.7F)));
        }));
      }
    }
    if (precision_ == Precision::Bf16) {
      model_.lm_head_ = bf16(arena, vocab, hidden, scale_for(hidden, 0.7F));
    } else {
      model_.lm_head_ = int8(arena, vocab, hidden);
    }
  }

  template <class Matrix>
  static LayerWeights layer(const Matrix& matrix) {
    LayerWeights w;
    w.qkv_proj = matrix(PackedMatrix::QkvProj);
    w.o_proj = matrix(PackedMatrix::OProj);
    w.gate_up_proj = matrix(PackedMatrix::GateUpProj);
    w.down_proj = matrix(PackedMatrix::DownProj);
    return w;
  }

  LayerWeights with_scales(Arena& arena, LayerWeights w) {
    w.attention_output_scales = floats(arena, config_.num_kv_heads, 16.0F);
    w.swiglu_output_scale = 16;
    return w;
  }

  // `bytes` of the pattern, whose beginning `prepare` may change.
  template <class T, class Prepare>
  const T* repeat(Arena& arena, std::size_t bytes, const Prepare& prepare) {
    if (arena.counts()) return arena.put_repeated<T>({}, bytes);
    std::vector<std::byte> pattern = random_;
    prepare(std::span(pattern));
    return arena.put_repeated<T>(pattern, bytes);
  }

  Int4Matrix int4(Arena& arena, PackedMatrix which) {
    const PackedMatrixShape shape = packed_matrix_shape(config_, which);
    Int4Matrix m;
    m.tile = shape.tile(kGroup);
    m.order = shape.order;
    m.rows = shape.rows;
    m.cols = shape.cols;
    const auto bytes = static_cast<std::size_t>(m.tile.bytes());
    const std::uint16_t scale = f32_to_bf16(scale_for(shape.cols, 4.6F));
    m.packed = repeat<std::uint8_t>(arena, bytes, [&](std::span<std::byte> pattern) {
      const auto record = static_cast<std::size_t>(m.tile.record_bytes());
      for (std::size_t end = record; end <= pattern.size(); end += record) {
        for (std::size_t i = 0; i < layout::Int4Tile::kScaleBytes; i += sizeof(scale)) {
          std::memcpy(pattern.data() + end - layout::Int4Tile::kScaleBytes + i, &scale,
                      sizeof(scale));
        }
      }
    });
    return m;
  }

  E4m3Matrix e4m3(Arena& arena, PackedMatrix which) {
    const PackedMatrixShape shape = packed_matrix_shape(config_, which);
    E4m3Matrix m;
    m.rows = shape.rows;
    m.cols = shape.cols;
    const auto bytes = static_cast<std::size_t>(m.rows * m.cols);
    m.codes = repeat<std::uint8_t>(arena, bytes, [](std::span<std::byte> pattern) {
      for (std::byte& code : pattern) code &= std::byte{0xBF};  // below 2
    });
    m.row_scales = floats(arena, m.rows, scale_for(m.cols, 0.6F));
    return m;
  }

  Int8Matrix int8(Arena& arena, std::int64_t rows, std::int64_t cols) {
    Int8Matrix m;
    m.rows = rows;
    m.cols = cols;
    m.codes = repeat<std::int8_t>(arena, static_cast<std::size_t>(rows * cols),
                                  [](std::span<std::byte> pattern) {
                                    for (std::byte& code : pattern) {
                                      if (code == std::byte{0x80}) code = std::byte{0};
                                    }
                                  });
    m.row_scales = floats(arena, rows, scale_for(cols, 73.0F));
    return m;
  }

  // Numbers between scale and 2 * scale of both signs; `scale` is rounded to a power of two.
  DenseMatrix bf16(Arena& arena, std::int64_t rows, std::int64_t cols, float scale) {
    const std::uint16_t exponent = f32_to_bf16(power_of_two_below(scale));
    const auto bytes = static_cast<std::size_t>(rows * cols) * sizeof(std::uint16_t);
    const auto* data = repeat<std::byte>(arena, bytes, [&](std::span<std::byte> pattern) {
      for (std::size_t i = 0; i < pattern.size(); i += sizeof(std::uint16_t)) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, pattern.data() + i, sizeof(bits));
        bits = static_cast<std::uint16_t>((bits & 0x807FU) | exponent);
        std::memcpy(pattern.data() + i, &bits, sizeof(bits));
      }
    });
    return {DType::BF16, data, rows, cols};
  }

  const float* floats(Arena& arena, std::int64_t count, float value) {
    const std::vector<float> values(static_cast<std::size_t>(count), value);
    return arena.put<float>(std::as_bytes(std::span(values)));
  }

  Backend& backend_;
  const ModelConfig& config_;
  Precision precision_;
  bool expands_;   // prompts have their weights from the INT4 codes
  bool has_int4_;  // for decode
  bool has_e4m3_;  // for prefill, and for decode without the others
  std::vector<std::byte> random_;
  Model model_;
};

Model Model::make_random(Backend& backend, const ModelConfig& config, Precision precision,
                         RandomFor steps, PrefillWeights prefill) {
  if (precision == Precision::F32) {
    throw usage_error("random weights come in bf16, fp8 and int4, not in f32");
  }
  if (precision != Precision::Bf16) check_packable(config, kGroup);
  return RandomWeights(backend, config, precision, steps, prefill).run();
}

}  // namespace fut
