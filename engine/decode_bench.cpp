// See the header.
#include "engine/decode_bench.h"

#include "engine/roofline.h"
#include "kernels/op_cost.h"

namespace fut {
namespace {

int pages_each(const DecodeBenchOptions& o) {
  return static_cast<int>(layout::pages_for_tokens(o.depth_tokens + 1));
}

WorkspaceLimits limits_for(const DecodeBenchOptions& o) {
  WorkspaceLimits limits;
  limits.max_tokens = limits.max_sequences = limits.max_logit_rows = o.sequences;
  limits.max_pages = pages_each(o) * o.sequences;
  limits.context_tokens = o.depth_tokens + 1;
  return limits;
}

Batch batch_of(const DecodeBenchOptions& o, int vocab_size) {
  Batch batch;
  batch.kind = StepKind::Decode;
  batch.q_indptr.push_back(0);
  batch.kv_indptr.push_back(0);
  for (int s = 0; s < o.sequences; ++s) {
    batch.sequences.push_back(s);
    batch.token_ids.push_back(s % vocab_size);
    batch.positions.push_back(o.depth_tokens);
    batch.q_indptr.push_back(s + 1);
    for (int p = 0; p < pages_each(o); ++p) batch.page_table.push_back(s * pages_each(o) + p);
    batch.kv_indptr.push_back(static_cast<std::int32_t>(batch.page_table.size()));
    batch.kv_lengths.push_back(o.depth_tokens + 1);
    batch.raw_slots.push_back(s);
    batch.logit_rows.push_back(s);
    batch.logit_sequences.push_back(s);
  }
  return batch;
}

}  // namespace

DecodeBench::DecodeBench(Backend& backend, const Model& model, const DecodeBenchOptions& options)
    : backend_(backend),
      model_(model),
      options_(options),
      cache_(backend, model.config(), options.kv_cache, pages_each(options) * options.sequences,
             options.sequences),
      workspace_(backend, model.config(), model.precision(), options.kv_cache.dtype,
                 limits_for(options)),
      sample_buffers_(backend, options.sequences, options.depth_tokens + 1) {
  cache_.clear(backend);
  workspace_.upload(backend, batch_of(options, model.config().vocab_size));
  for (int s = 0; s < options.sequences; ++s) sample_buffers_.add(options.sampling, {});
  sample_buffers_.upload(backend);
}

void DecodeBench::sample() {
  sample_buffers_.launch(backend_, workspace_.logits());
}

Backend::Procedure DecodeBench::step() {
  return backend_.capture([this] {
    forward(backend_, model_, cache_, workspace_);
    sample();
  });
}

Backend::Procedure DecodeBench::layers() {
  return backend_.capture([this] { forward_layers(backend_, model_, cache_, workspace_); });
}

std::int64_t DecodeBench::layer_bytes(LayerOp op) const {
  std::int64_t bytes = 0;
  for (int i = 0; i < model_.config().num_layers; ++i) {
    const LayerWeights& w = model_.layer(i, StepKind::Decode);
    switch (op) {
      case LayerOp::QkvRopeAppend:
        bytes += weight_bytes(w.qkv_proj);
        break;
      case LayerOp::Attention:
        bytes += kv_read_bytes(model_.config(), options_.kv_cache, options_.depth_tokens) *
                 options_.sequences;
        break;
      case LayerOp::OProj:
        bytes += weight_bytes(w.o_proj);
        break;
      case LayerOp::GateUpSwiglu:
        bytes += weight_bytes(w.gate_up_proj);
        break;
      case LayerOp::DownProj:
        bytes += weight_bytes(w.down_proj);
        break;
    }
  }
  return bytes;
}

double DecodeBench::layer_flops(LayerOp op) const {
  const ModelConfig& config = model_.config();
  switch (op) {
    case LayerOp::QkvRopeAppend:
      return layer_product_flops(config, PackedMatrix::QkvProj, options_.sequences);
    case LayerOp::Attention:
      return layer_attention_flops(config, options_.depth_tokens, 1) * options_.sequences;
    case LayerOp::OProj:
      return layer_product_flops(config, PackedMatrix::OProj, options_.sequences);
    case LayerOp::GateUpSwiglu:
      return layer_product_flops(config, PackedMatrix::GateUpProj, options_.sequences);
    case LayerOp::DownProj:
      return layer_product_flops(config, PackedMatrix::DownProj, options_.sequences);
  }
  return 0;
}

std::vector<DecodePart> DecodeBench::parts() {
  const int layers = model_.config().num_layers;
  std::vector<DecodePart> parts;
  for (const LayerOp op : kLayerOps) {
    parts.push_back({layer_op_name(op), layers, layer_bytes(op), layer_flops(op) * layers,
                     backend_.capture([this, op, layers] {
                       for (int i = 0; i < layers; ++i) {
                         run_layer_op(backend_, model_, cache_, workspace_, i, op);
                       }
                     })});
  }
  const double head_flops =
      2.0 * options_.sequences * model_.config().hidden_size * model_.config().vocab_size;
  parts.push_back({"lm_head", 1, weight_bytes(model_.lm_head()), head_flops,
                   backend_.capture([this] { forward_head(backend_, model_, workspace_); })});
  parts.push_back({"sample", 1, 0, 0, backend_.capture([this] { sample(); })});
  return parts;
}

std::int64_t DecodeBench::bytes_per_step() {
  std::int64_t bytes = weight_bytes(model_.lm_head());
  for (const LayerOp op : kLayerOps) bytes += layer_bytes(op);
  return bytes;
}

}  // namespace fut
