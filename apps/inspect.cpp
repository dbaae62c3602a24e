// fut inspect: what a model folder holds. Reads small files and headers, no weights, no device.
#include <map>
#include <spdlog/spdlog.h>

#include "apps/commands.h"
#include "apps/model_lookup.h"
#include "engine/model_folder.h"
#include "kernels/error.h"
#include "loader/checkpoint.h"

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

Json describe_weights(const Checkpoint& checkpoint, const ModelConfig& config) {
  struct Share {
    std::int64_t tensors = 0;
    std::uint64_t bytes = 0;
  };
  std::map<std::string, Share> formats;
  Json files = Json::array();
  for (const Safetensors& file : checkpoint.files()) {
    files.push_back({{"name", file.path().filename().string()},
                     {"tensors", file.tensors().size()},
                     {"header_bytes", file.header_bytes()}});
    for (const TensorInfo& info : file.tensors()) {
      Share& share = formats[std::string(dtype_name(info.dtype))];
      share.tensors += 1;
      share.bytes += info.bytes;
    }
  }
  Json histogram = Json::object();
  for (const auto& [name, share] : formats) {
    histogram[name] = {{"tensors", share.tensors}, {"bytes", share.bytes}};
  }
  return {{"parameters", count_parameters(checkpoint, config)},
          {"bytes", checkpoint.total_bytes()},
          {"formats", histogram},
          {"head", checkpoint.head_is_tied() ? "tied to the embedding" : "lm_head.weight"},
          {"files", files}};
}

Json describe_tokenizer(const ModelFolder& folder) {
  const Tokenizer& tokenizer = folder.tokenizer;
  const auto token = [&](TokenId id) {
    const bool known = id < tokenizer.vocab_size();
    return Json{{"id", id}, {"token", known ? tokenizer.piece(id) : std::string()}};
  };
  Json ends = Json::array();
  for (const TokenId id : folder.end_ids) ends.push_back(token(id));
  const auto bos = tokenizer.bos_id();
  return {{"kind", tokenizer.kind()},
          {"file", tokenizer.source().filename().string()},
          {"vocab_size", tokenizer.vocab_size()},
          {"bos", bos ? token(*bos) : Json(nullptr)},
          {"adds_bos", tokenizer.adds_bos()},
          {"ends_a_reply", ends}};
}

// An unknown template stops a chat, but not a look at the folder.
Json describe_template(const std::filesystem::path& folder) {
  try {
    const auto found = find_chat_template(folder);
    return found ? Json(chat_template_name(*found)) : Json(nullptr);
  } catch (const Error& e) {
    spdlog::warn("{}", e.what());
    return "not recognised";
  }
}

Json describe_generation(const GenerationDefaults& d) {
  Json json = Json::object();
  const auto add = [&](const char* key, const auto& value) {
    if (value) json[key] = *value;
  };
  add("do_sample", d.do_sample);
  add("temperature", d.temperature);
  add("top_k", d.top_k);
  add("top_p", d.top_p);
  add("min_p", d.min_p);
  add("repetition_penalty", d.repetition_penalty);
  return json;
}

// "key: value" lines; nested objects are indented, lists of numbers stay on their line.
void append_lines(std::string& text, const Json& value, int depth) {
  for (const auto& [key, child] : value.items()) {
    const std::string indent(static_cast<std::size_t>(depth) * 2, ' ');
    if (child.is_structured() && child.empty()) {
      text += fmt::format("{}{}: none\n", indent, key);
    } else if (child.is_object()) {
      text += fmt::format("{}{}\n", indent, key);
      append_lines(text, child, depth + 1);
    } else if (child.is_array()) {
      text += fmt::format("{}{}\n", indent, key);
      for (const Json& item : child) text += indent + "  " + json_line(item);
    } else {
      const std::string shown = child.is_string() ? child.get<std::string>()
                                : child.is_null() ? "none"
                                                  : child.dump();
      text += fmt::format("{}{}: {}\n", indent, key, shown);
    }
  }
}

}  // namespace

int inspect(const InspectOptions& options, Reporter& reporter) {
  const FoundFolder found = find_model_folder(options.model, Wanted::Model);
  ModelFolder folder = read_model_folder(found.path);
  const Checkpoint checkpoint = Checkpoint::open(found.path, folder.config);
  std::vector<std::string> notices = folder.notices;
  notices.insert(notices.end(), checkpoint.notices().begin(), checkpoint.notices().end());
  if (!found.notice.empty()) notices.push_back(found.notice);

  Json& document = reporter.document();
  document["model"] = found.path.string();
  document["config"] = describe_config(folder.config);
  document["weights"] = describe_weights(checkpoint, folder.config);
  document["tokenizer"] = describe_tokenizer(folder);
  document["chat_template"] = describe_template(found.path);
  document["generation_config"] = describe_generation(folder.generation);
  document["notices"] = notices;
  if (reporter.is_text()) {
    std::string text;
    append_lines(text, document, 0);
    reporter.text(text);
  }
  reporter.finish();
  return 0;
}

}  // namespace fut::app
