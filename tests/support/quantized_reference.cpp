// See the header. Loops are written so that the compiler can run many outputs at a time; the order
// in which the products of one output are added is one of the two of SumOrder.
#include "tests/support/quantized_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/parallel.h"
#include "kernels/numeric/activation_scales.h"
#include "kernels/numeric/formats.h"
#include "kernels/numeric/hadamard.h"
#include "kernels/numeric/kv_int4.h"
#include "kernels/numeric/rope_table.h"
#include "loader/packed_model.h"

namespace fut::test {
namespace {

template <class T>
std::vector<T> read_all(const PackedModel& packed, const TensorInfo& info) {
  std::vector<T> values(info.bytes / sizeof(T));
  packed.read(info, std::as_writable_bytes(std::span(values)), {});
  return values;
}

QuantizedMatrix read_int4(const PackedModel& packed, const ModelConfig& config, int layer,
                          PackedMatrix which) {
  const PackedMatrixShape shape = packed_matrix_shape(config, which);
  const int group = packed.info().options.group_size;
  const layout::Int4Tile tile = shape.tile(group);
  const auto bytes = read_all<std::uint8_t>(packed, packed.layer(layer, which, PackedPart::Int4));
  QuantizedMatrix q(shape.rows, shape.cols, group);
  for (int r = 0; r < shape.rows; ++r) {
    const int row = shape.order.packed_row(r);
    for (int c = 0; c < shape.cols; ++c) {
      q.row(r)[c] = static_cast<std::int8_t>(layout::read_nibble(bytes.data(), tile.slot(row, c)) -
                                             layout::kInt4CodeBias);
    }
    for (int g = 0; g < tile.num_groups(); ++g) {
      std::memcpy(q.row_scales(r) + g, bytes.data() + tile.scale_offset(row, g), 2);
    }
  }
  return q;
}

float bf16(float v) {
  return bf16_to_f32(f32_to_bf16(v));
}
float f16(float v) {
  return f16_to_f32(f32_to_f16_saturating(v));
}

// A matrix [inputs, outputs]: the outputs of one input lie side by side.
struct Transposed {
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  std::vector<float> values;
};

Transposed transpose(const HostMatrix& w) {
  Transposed t{w.cols, w.rows, std::vector<float>(w.values.size())};
  for (std::int64_t r = 0; r < w.rows; ++r) {
    for (std::int64_t c = 0; c < w.cols; ++c) {
      t.values[static_cast<std::size_t>(c * w.rows + r)] = w.row(r)[c];
    }
  }
  return t;
}

QuantizedMatrix with_fault(QuantizedMatrix q, Fault fault) {
  if (fault == Fault::SwappedNibbles) {
    for (std::int64_t r = 0; r + 16 <= q.rows; r += 16) {
      for (std::int64_t g = 0; g < 8; ++g) {
        std::swap_ranges(q.row(r + g), q.row(r + g) + q.cols, q.row(r + g + 8));
      }
    }
  }
  for (std::int64_t r = 0; r < q.rows; ++r) {
    std::uint16_t* scales = q.row_scales(r);
    if (fault == Fault::ShiftedScales) std::rotate(scales, scales + 1, scales + q.groups());
    if (fault == Fault::UnsignedScales) {
      for (std::int64_t g = 0; g < q.groups(); ++g) scales[g] &= 0x7FFFU;
    }
  }
  return q;
}

using Rows = std::vector<std::vector<float>>;

// y[token] = x[token] W^T for all tokens.
Rows multiply(const Rows& x, const Transposed& w, SumOrder order) {
  Rows y(x.size(), std::vector<float>(static_cast<std::size_t>(w.outputs)));
  const ParallelFor parallel_for = parallel_for_on_threads(0);
  parallel_for(std::ssize(x), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const float* in = x[static_cast<std::size_t>(t)].data();
      float* out = y[static_cast<std::size_t>(t)].data();
      for (std::int64_t i = 0; i < w.inputs; ++i) {
        const std::int64_t k = order == SumOrder::Ascending ? i : w.inputs - 1 - i;
        const float* column = w.values.data() + k * w.outputs;
        for (std::int64_t n = 0; n < w.outputs; ++n) out[n] += in[k] * column[n];
      }
    }
  });
  return y;
}

float sum_of_products(const float* a, const float* b, int count, SumOrder order) {
  float sum = 0;
  for (int i = 0; i < count; ++i) {
    const int k = order == SumOrder::Ascending ? i : count - 1 - i;
    sum += a[k] * b[k];
  }
  return sum;
}

Rows rounded_to_f16(Rows rows) {
  for (auto& row : rows) {
    for (float& v : row) v = f16(v);
  }
  return rows;
}

void scale_rows(Rows& rows, const std::vector<float>& factors) {
  for (std::size_t t = 0; t < rows.size(); ++t) {
    for (float& v : rows[t]) v *= factors[t];
  }
}

void add_rows(Rows& into, const Rows& rows) {
  for (std::size_t t = 0; t < rows.size(); ++t) {
    for (std::size_t i = 0; i < rows[t].size(); ++i) into[t][i] += rows[t][i];
  }
}

// A cached key or value of one head, both as it was put in and as its codes say.
struct Cached {
  std::vector<float> raw;      // BF16
  std::vector<float> decoded;  // minimum + scale * u, or as raw with a BF16 cache
  std::vector<float> u;        // codes
  std::vector<KvInt4Params> params;
};

}  // namespace

// One call of logits().
class ReferencePass {
 public:
  ReferencePass(const QuantizedReference& model, const KvCacheOptions& kv, SumOrder order,
                Fault fault)
      : model_(model), config_(model.config_), kv_(kv), order_(order), fault_(fault) {}

  Rows run(const std::vector<std::int32_t>& ids) {
    make_rope(static_cast<int>(ids.size()));
    Rows x;
    for (const std::int32_t id : ids) {
      x.emplace_back(model_.embed_.row(id), model_.embed_.row(id) + config_.hidden_size);
    }
    for (const auto& layer : model_.layers_) {
      attention_block(layer, x);
      ffn_block(layer, x);
    }
    Rows logits = multiply(rounded_to_f16(x), transpose(model_.head_codes_), order_);
    for (auto& row : logits) {
      for (std::size_t v = 0; v < row.size(); ++v) row[v] *= model_.head_scales_[v];
    }
    scale_rows(logits, inverse_rms(x));
    return logits;
  }

 private:
  void make_rope(int positions) {
    RopeParams params = config_.rope;
    if (fault_ == Fault::NoRopeScaling) params.scaling = RopeParams::Scaling::None;
    if (fault_ == Fault::SmallTheta) params.theta = 10000;
    rope_ = make_rope_table(params, config_.head_dim, positions);
  }

  [[nodiscard]] Transposed weights(const QuantizedMatrix& q) const {
    return transpose(dequantize(with_fault(q, fault_)));
  }

  [[nodiscard]] std::vector<float> inverse_rms(const Rows& x) const {
    std::vector<float> r;
    for (const auto& row : x) {
      const int width = static_cast<int>(row.size());
      const float squares = sum_of_products(row.data(), row.data(), width, order_);
      r.push_back(1.0F / std::sqrt(squares / static_cast<float>(width) + config_.rms_norm_eps));
    }
    return r;
  }

  Rows project(const Rows& x, const QuantizedMatrix& q) const {
    Rows y = multiply(rounded_to_f16(x), weights(q), order_);
    scale_rows(y, inverse_rms(x));
    return y;
  }

  void rotate_pairs(float* head, std::size_t position) const {
    const int half = config_.head_dim / 2;
    for (int i = 0; i < half; ++i) {
      const float cos =
          rope_.cos[position * static_cast<std::size_t>(half) + static_cast<std::size_t>(i)];
      const float sin =
          rope_.sin[position * static_cast<std::size_t>(half) + static_cast<std::size_t>(i)];
      const float a = head[i];
      const float b = head[i + half];
      head[i] = a * cos - b * sin;
      head[i + half] = b * cos + a * sin;
    }
  }

  // The cache's view of one head's key or value.
  [[nodiscard]] Cached cached(const float* values, const float* params_from) const {
    Cached c;
    const int dims = config_.head_dim;
    for (int d = 0; d < dims; ++d) c.raw.push_back(bf16(values[d]));
    if (kv_.dtype != KvCacheDtype::Int4) {
      c.decoded = c.raw;
      return c;
    }
    for (int first = 0; first < dims; first += kv_.group) {
      std::vector<float> group;
      for (int d = first; d < first + kv_.group; ++d) group.push_back(bf16(params_from[d]));
      KvInt4Params params = kv_int4_params(group);
      for (int d = first; d < first + kv_.group; ++d) {
        const int u = encode_kv_int4(c.raw[static_cast<std::size_t>(d)], params);
        KvInt4Params read = params;
        if (fault_ == Fault::NoMinimum) read.minimum = 0;
        c.u.push_back(static_cast<float>(u));
        c.decoded.push_back(decode_kv_int4(u, read));
      }
      if (fault_ == Fault::NoMinimum) params.minimum = 0;
      c.params.push_back(params);
    }
    return c;
  }

  void attention_block(const QuantizedReference::Layer& layer, Rows& x) {
    const int dims = config_.head_dim;
    Rows qkv = project(x, layer.qkv);
    Rows out(x.size(), std::vector<float>(static_cast<std::size_t>(config_.num_q_heads * dims)));
    for (int kv_head = 0; kv_head < config_.num_kv_heads; ++kv_head) {
      std::vector<Cached> keys;
      std::vector<Cached> values;
      for (std::size_t t = 0; t < x.size(); ++t) {
        float* key = qkv[t].data() + (config_.num_q_heads + kv_head) * dims;
        rotate_pairs(key, t);
        const std::vector<float> unrotated(key, key + dims);
        if (kv_.rotation_block > 0) hadamard_blocks(key, dims, kv_.rotation_block);
        keys.push_back(cached(key, fault_ == Fault::UnrotatedScales ? unrotated.data() : key));
        const float* value = key + config_.num_kv_heads * dims;
        values.push_back(cached(value, value));
      }
      attend_group(kv_head, qkv, keys, values, out);
    }
    add_rows(x, multiply(rounded_to_f16(std::move(out)), weights(layer.o), order_));
  }

  void attend_group(int kv_head, const Rows& qkv, const std::vector<Cached>& keys,
                    const std::vector<Cached>& values, Rows& out) const {
    const int dims = config_.head_dim;
    const int heads = config_.num_q_heads / config_.num_kv_heads;
    const ParallelFor parallel_for = parallel_for_on_threads(0);
    parallel_for(std::ssize(qkv), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        for (int h = kv_head * heads; h < (kv_head + 1) * heads; ++h) {
          const float* head = qkv[static_cast<std::size_t>(t)].data() + h * dims;
          std::vector<float> q(head, head + dims);
          rotate_pairs(q.data(), static_cast<std::size_t>(t));
          if (kv_.rotation_block > 0 && fault_ != Fault::UnrotatedQueries) {
            hadamard_blocks(q.data(), dims, kv_.rotation_block);
          }
          for (float& v : q) v = bf16(v);
          attend(t, q, keys, values, out[static_cast<std::size_t>(t)].data() + h * dims);
        }
      }
    });
  }

  [[nodiscard]] bool reads_codes(std::int64_t key, std::int64_t query) const {
    return kv_.dtype == KvCacheDtype::Int4 && !layout::is_raw(key, query);
  }

  void attend(std::int64_t t, const std::vector<float>& q, const std::vector<Cached>& keys,
              const std::vector<Cached>& values, float* out) const {
    const int dims = config_.head_dim;
    const float scale = 1.0F / std::sqrt(static_cast<float>(dims));
    std::vector<float> p;
    for (std::int64_t i = 0; i <= t; ++i) {
      const Cached& key = keys[static_cast<std::size_t>(i)];
      const float* numbers = reads_codes(i, t) ? key.decoded.data() : key.raw.data();
      p.push_back(sum_of_products(q.data(), numbers, dims, order_) * scale);
    }
    const float maximum = *std::max_element(p.begin(), p.end());
    for (float& v : p) v = std::exp(v - maximum);
    std::vector<float> sums(static_cast<std::size_t>(dims));
    float total = 0;
    for (std::int64_t n = 0; n <= t; ++n) {
      const std::int64_t i = order_ == SumOrder::Ascending ? n : t - n;
      const float weight = p[static_cast<std::size_t>(i)];
      add_value(values[static_cast<std::size_t>(i)], weight, reads_codes(i, t), sums);
      total += weight;
    }
    for (int d = 0; d < dims; ++d) out[d] = sums[static_cast<std::size_t>(d)] / total;
  }

  void add_value(const Cached& value, float weight, bool coded, std::vector<float>& sums) const {
    for (std::size_t d = 0; d < sums.size(); ++d) {
      if (!coded) {
        sums[d] += bf16(weight) * value.raw[d];
        continue;
      }
      const KvInt4Params params = value.params[d / static_cast<std::size_t>(kv_.group)];
      const float scaled = f16_to_f32(f32_to_f16(weight * f16_to_f32(params.scale)));
      sums[d] += scaled * value.u[d] + weight * f16_to_f32(params.minimum);
    }
  }

  void ffn_block(const QuantizedReference::Layer& layer, Rows& x) {
    Rows gate_up = project(x, layer.gate_up);
    if (fault_ == Fault::NoNorm)
      gate_up = multiply(rounded_to_f16(x), weights(layer.gate_up), order_);
    const auto width = static_cast<std::size_t>(config_.intermediate_size);
    Rows h(x.size(), std::vector<float>(width));
    std::vector<float> powers;
    for (std::size_t t = 0; t < x.size(); ++t) {
      float amax = 0;
      for (std::size_t i = 0; i < width; ++i) {
        const float gate = gate_up[t][i];
        h[t][i] = gate / (1.0F + std::exp(-gate)) * gate_up[t][width + i];
        amax = std::max(amax, std::fabs(h[t][i]));
      }
      const int e = swiglu_exponent(amax);
      for (float& v : h[t]) v = f16(std::ldexp(v, -e));
      powers.push_back(std::ldexp(1.0F, e));
    }
    Rows down = multiply(h, weights(layer.down), order_);
    scale_rows(down, powers);
    add_rows(x, down);
  }

  const QuantizedReference& model_;
  const ModelConfig& config_;
  const KvCacheOptions& kv_;
  SumOrder order_;
  Fault fault_;
  RopeTable rope_;
};

QuantizedReference::QuantizedReference(const std::filesystem::path& folder)
    : config_(load_model_config(folder)) {
  const PackedModel packed = PackedModel::open(folder, config_);
  for (int i = 0; i < config_.num_layers; ++i) {
    layers_.push_back({read_int4(packed, config_, i, PackedMatrix::QkvProj),
                       read_int4(packed, config_, i, PackedMatrix::OProj),
                       read_int4(packed, config_, i, PackedMatrix::GateUpProj),
                       read_int4(packed, config_, i, PackedMatrix::DownProj)});
  }
  embed_ = HostMatrix("embed_tokens", config_.vocab_size, config_.hidden_size);
  const auto embed =
      read_all<std::uint16_t>(packed, packed.global(PackedGlobalTensor::EmbedTokens));
  std::transform(embed.begin(), embed.end(), embed_.values.begin(), bf16_to_f32);
  head_codes_ = HostMatrix("lm_head", config_.vocab_size, config_.hidden_size);
  const auto codes = read_all<std::int8_t>(packed, packed.global(PackedGlobalTensor::LmHeadInt8));
  std::transform(codes.begin(), codes.end(), head_codes_.values.begin(),
                 [](std::int8_t code) { return static_cast<float>(code); });
  head_scales_ = read_all<float>(packed, packed.global(PackedGlobalTensor::LmHeadInt8Scale));
}

std::vector<std::vector<float>> QuantizedReference::logits(const std::vector<std::int32_t>& ids,
                                                           const KvCacheOptions& kv, SumOrder order,
                                                           Fault fault) const {
  return ReferencePass(*this, kv, order, fault).run(ids);
}

}  // namespace fut::test
