// See the header.
#include "tests/support/reordered_model.h"

#include <numeric>

#include "loader/checkpoint.h"
#include "tests/support/safetensors_writer.h"

namespace fut::test {
namespace {

using Order = std::vector<std::int64_t>;  // new place -> old place

Order reversed(std::int64_t count) {
  Order order(static_cast<std::size_t>(count));
  std::iota(order.rbegin(), order.rend(), std::int64_t{0});
  return order;
}

Order as_it_is(std::int64_t count) {
  Order order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  return order;
}

// Heads that share a KV head, the other way round.
Order heads_reversed(const ModelConfig& config) {
  const int group = config.num_q_heads / config.num_kv_heads;
  Order order;
  for (int head = 0; head < config.num_q_heads; ++head) {
    const int other = head / group * group + group - 1 - head % group;
    for (int dim = 0; dim < config.head_dim; ++dim) order.push_back(other * config.head_dim + dim);
  }
  return order;
}

class Reordering {
 public:
  Reordering(const Checkpoint& checkpoint, const ModelConfig& config)
      : checkpoint_(checkpoint),
        hidden_(reversed(config.hidden_size)),
        ffn_(reversed(config.intermediate_size)),
        heads_(heads_reversed(config)) {}

  [[nodiscard]] NamedTensor layer(int i, LayerTensor which) const {
    const TensorInfo& info = checkpoint_.layer(i, which);
    switch (which) {
      case LayerTensor::QProj:
        return reordered(info, heads_, hidden_);
      case LayerTensor::OProj:
        return reordered(info, hidden_, heads_);
      case LayerTensor::GateProj:
      case LayerTensor::UpProj:
        return reordered(info, ffn_, hidden_);
      case LayerTensor::DownProj:
        return reordered(info, hidden_, ffn_);
      case LayerTensor::KProj:
      case LayerTensor::VProj:
        return reordered(info, as_it_is(info.shape[0]), hidden_);
      case LayerTensor::InputLayernorm:
      case LayerTensor::PostAttentionLayernorm:
        break;
    }
    return reordered(info, as_it_is(1), hidden_);
  }
  [[nodiscard]] NamedTensor global(GlobalTensor which) const {
    const TensorInfo& info = checkpoint_.global(which);
    return reordered(info, as_it_is(info.shape.size() == 1 ? 1 : info.shape[0]), hidden_);
  }

 private:
  [[nodiscard]] NamedTensor reordered(const TensorInfo& info, const Order& rows,
                                      const Order& cols) const {
    std::vector<std::byte> from(info.bytes);
    checkpoint_.read(info, from);
    const auto size = static_cast<std::size_t>(dtype_bytes(info.dtype));
    NamedTensor to{info.name, std::string(dtype_name(info.dtype)), info.shape, {}};
    for (const std::int64_t row : rows) {
      for (const std::int64_t col : cols) {
        const auto at = static_cast<std::size_t>(row) * cols.size() + static_cast<std::size_t>(col);
        to.bytes.append(reinterpret_cast<const char*>(from.data()) + at * size, size);
      }
    }
    return to;
  }

  const Checkpoint& checkpoint_;
  Order hidden_, ffn_, heads_;
};

}  // namespace

void write_reordered_model(const std::filesystem::path& source,
                           const std::filesystem::path& target) {
  std::filesystem::create_directories(target);
  for (const auto& entry : std::filesystem::directory_iterator(source)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".json") && !name.ends_with(".index.json")) {
      std::filesystem::copy_file(entry.path(), target / name);
    }
  }
  ModelConfig config = load_model_config(source);
  const Checkpoint checkpoint = Checkpoint::open(source, config);
  const Reordering reordering(checkpoint, config);
  std::vector<NamedTensor> tensors = {reordering.global(GlobalTensor::EmbedTokens),
                                      reordering.global(GlobalTensor::FinalNorm)};
  if (!checkpoint.head_is_tied()) tensors.push_back(reordering.global(GlobalTensor::LmHead));
  for (int i = 0; i < config.num_layers; ++i) {
    for (int t = 0; t < kNumLayerTensors; ++t) {
      tensors.push_back(reordering.layer(i, static_cast<LayerTensor>(t)));
    }
  }
  write_safetensors(target / "model.safetensors", tensors);
}

}  // namespace fut::test
