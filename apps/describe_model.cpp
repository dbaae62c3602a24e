// See the header.
#include "apps/describe_model.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string>

#include "apps/report_text.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

// The number that config.json most likely has: 1e-05, not the float's 9.999999747378752e-06.
double shortest(float value) {
  return std::stod(fmt::format("{}", value));
}

Json describe_rope(const RopeParams& rope) {
  Json json = {{"theta", rope.theta}};
  switch (rope.scaling) {
    case RopeParams::Scaling::None:
      json["scaling"] = "none";
      break;
    case RopeParams::Scaling::Linear:
      json["scaling"] = "linear";
      json["factor"] = rope.factor;
      break;
    case RopeParams::Scaling::Llama3:
      json["scaling"] = "llama3";
      json["factor"] = rope.factor;
      json["low_freq_factor"] = rope.low_freq_factor;
      json["high_freq_factor"] = rope.high_freq_factor;
      json["original_max_position_embeddings"] = rope.original_max_position_embeddings;
      break;
  }
  return json;
}

// Parameters of the tensors in use; a tied head is counted once.
std::int64_t count_parameters(const Checkpoint& checkpoint, const ModelConfig& config) {
  const auto elements = [](const TensorInfo& info) {
    return static_cast<std::int64_t>(info.bytes) / dtype_bytes(info.dtype);
  };
  std::int64_t sum = elements(checkpoint.global(GlobalTensor::EmbedTokens)) +
                     elements(checkpoint.global(GlobalTensor::FinalNorm));
  if (!checkpoint.head_is_tied()) sum += elements(checkpoint.global(GlobalTensor::LmHead));
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (int t = 0; t < kNumLayerTensors; ++t) {
      sum += elements(checkpoint.layer(layer, static_cast<LayerTensor>(t)));
    }
  }
  return sum;
}

// Tensors and bytes of each format, in the order of names.
class Formats {
 public:
  void add(const std::string& format, const TensorInfo& info) {
    Share& share = shares_[format];
    share.tensors += 1;
    share.bytes += info.bytes;
  }
  [[nodiscard]] Json json() const {
    Json json = Json::object();
    for (const auto& [name, share] : shares_) {
      json[name] = {{"tensors", share.tensors}, {"bytes", share.bytes}};
    }
    return json;
  }

 private:
  struct Share {
    std::int64_t tensors = 0;
    std::uint64_t bytes = 0;
  };
  std::map<std::string, Share> shares_;
};

// ---- quantised folders -------------------------------------------------------------------------

Formats packed_formats(const PackedModel& packed, int num_layers, int group_size) {
  const std::string int4 = fmt::format("INT4, a BF16 scale for {} weights", group_size);
  Formats formats;
  for (int layer = 0; layer < num_layers; ++layer) {
    for (int m = 0; m < kNumPackedMatrices; ++m) {
      const auto matrix = static_cast<PackedMatrix>(m);
      formats.add(int4, packed.layer(layer, matrix, PackedPart::Int4));
      formats.add("E4M3 codes", packed.layer(layer, matrix, PackedPart::E4m3));
      formats.add("E4M3 scales of rows, F32", packed.layer(layer, matrix, PackedPart::E4m3Scale));
    }
  }
  formats.add("embedding, BF16", packed.global(PackedGlobalTensor::EmbedTokens));
  formats.add("head, INT8 codes", packed.global(PackedGlobalTensor::LmHeadInt8));
  formats.add("head, scales of rows, F32", packed.global(PackedGlobalTensor::LmHeadInt8Scale));
  if (packed.has(PackedGlobalTensor::LmHead)) {
    formats.add("head, BF16", packed.global(PackedGlobalTensor::LmHead));
  }
  return formats;
}

// The least and the most of one small F32 tensor over all layers.
Json range_of(const PackedModel& packed, int num_layers, PackedLayerTensor which) {
  float least = std::numeric_limits<float>::infinity();
  float most = -least;
  for (int layer = 0; layer < num_layers; ++layer) {
    const TensorInfo& info = packed.layer(layer, which);
    std::vector<float> values(info.bytes / sizeof(float));
    packed.read(info, std::as_writable_bytes(std::span(values)), {});
    for (const float value : values) {
      least = std::min(least, value);
      most = std::max(most, value);
    }
  }
  return {{"least", least}, {"most", most}};
}

Json describe_source(const PackedModel& packed) {
  Json files = Json::array();
  for (const SourceFile& file : packed.info().source.files) {
    files.push_back(
        {{"name", file.name}, {"bytes", file.size}, {"sha256_of_blocks", file.content}});
  }
  Json json = {{"files", std::move(files)}};
  if (const auto note = read_source_note(packed.path().parent_path()))
    json["folder"] = note->folder;
  return json;
}

Json describe_report(const PackedModel& packed) {
  const std::string& report = packed.info().report;
  return report.empty() ? Json(nullptr) : report_document(parse_report_card(report));
}

}  // namespace

Json describe_config(const ModelConfig& c) {
  return {{"hidden_size", c.hidden_size},
          {"intermediate_size", c.intermediate_size},
          {"num_layers", c.num_layers},
          {"num_q_heads", c.num_q_heads},
          {"num_kv_heads", c.num_kv_heads},
          {"head_dim", c.head_dim},
          {"vocab_size", c.vocab_size},
          {"max_position_embeddings", c.max_position_embeddings},
          {"rms_norm_eps", shortest(c.rms_norm_eps)},
          {"torch_dtype", c.torch_dtype},
          {"rope", describe_rope(c.rope)}};
}

Json describe_checkpoint(const Checkpoint& checkpoint, const ModelConfig& config) {
  Formats formats;
  Json files = Json::array();
  for (const Safetensors& file : checkpoint.files()) {
    files.push_back({{"name", file.path().filename().string()},
                     {"tensors", file.tensors().size()},
                     {"header_bytes", file.header_bytes()}});
    for (const TensorInfo& info : file.tensors()) {
      formats.add(std::string(dtype_name(info.dtype)), info);
    }
  }
  return {{"parameters", count_parameters(checkpoint, config)},
          {"bytes", checkpoint.total_bytes()},
          {"formats", formats.json()},
          {"head", checkpoint.head_is_tied() ? "tied to the embedding" : "lm_head.weight"},
          {"files", files}};
}

Json describe_packed(const PackedModel& packed, const ModelConfig& config) {
  const PackedInfo& info = packed.info();
  const int layers = config.num_layers;
  return {{"format", "quantised by fut"},
          {"version", info.version},
          {"bytes", info.file_bytes},
          {"formats", packed_formats(packed, layers, info.options.group_size).json()},
          {"options", Json::parse(options_json(info.options))},
          {"activation_scales",
           {{"attention_output", range_of(packed, layers, PackedLayerTensor::AttentionOutputScale)},
            {"swiglu_output", range_of(packed, layers, PackedLayerTensor::SwigluOutputScale)}}},
          {"source", describe_source(packed)},
          {"report", describe_report(packed)}};
}

}  // namespace fut::app
