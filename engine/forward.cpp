// The list of ops that makes a Llama.
#include "engine/forward.h"

namespace fut {
namespace {

// One pass over the op list; holds what every op of the step shares.
class ForwardPass {
 public:
  ForwardPass(Backend& backend, const Model& model, KvCache& cache, Workspace& workspace,
              const Tap& tap)
      : backend_(backend),
        model_(model),
        config_(model.config()),
        cache_(cache),
        ws_(workspace),
        tap_(tap) {}

  void embed() {
    backend_.embed(
        {ws_.batch().token_ids, ws_.batch().num_tokens, model_.embed_tokens(), ws_.residual()});
    observe("embed", -1, ws_.residual());
  }

  void run(int i, LayerOp op) {
    const LayerWeights& w = model_.layer(i, ws_.kind());
    switch (op) {
      case LayerOp::QkvRopeAppend:
        expand(i, PackedMatrix::QkvProj);
        project_qkv(i, w);
        return observe(layer_op_name(op), i, ws_.query());
      case LayerOp::Attention:
        attend(i, w);
        return observe(layer_op_name(op), i, ws_.attention());
      case LayerOp::OProj:
        expand(i, PackedMatrix::OProj);
        project_attention(w);
        return observe(layer_op_name(op), i, ws_.residual());
      case LayerOp::GateUpSwiglu:
        expand(i, PackedMatrix::GateUpProj);
        gate_up(w);
        return observe(layer_op_name(op), i, ws_.ffn());
      case LayerOp::DownProj:
        expand(i, PackedMatrix::DownProj);
        project_down(w);
        return observe(layer_op_name(op), i, ws_.residual());
    }
  }

 private:
  // Where prompts have their weights from INT4 codes: right before they are read, one matrix at a time.
  void expand(int i, PackedMatrix matrix) {
    if (ws_.kind() != StepKind::Prefill || !model_.expands()) return;
    backend_.expand(model_.expansion(i, matrix));
  }

  // Keys and queries are rotated once: where they are rounded. That is here for the steps of
  // prefill, and in attention for those of decode, whose queries come as float32.
  [[nodiscard]] bool rotates_in_attention() const { return ws_.query().dtype == DType::F32; }

  void project_qkv(int i, const LayerWeights& w) {
    QkvRopeAppendArgs qkv;
    qkv.x = ws_.residual();
    qkv.gain = w.input_layernorm;
    qkv.eps = config_.rms_norm_eps;
    qkv.weights = w.qkv_proj;
    qkv.operand_scale = model_.operand_scale();
    qkv.num_q_heads = config_.num_q_heads;
    qkv.num_kv_heads = config_.num_kv_heads;
    qkv.head_dim = config_.head_dim;
    qkv.rope_cos = ws_.rope_cos();
    qkv.rope_sin = ws_.rope_sin();
    qkv.rope_positions = ws_.rope_positions();
    qkv.rotation_block = rotates_in_attention() ? 0 : cache_.options().rotation_block;
    qkv.batch = ws_.batch();
    const KvCacheView kv = cache_.layer(i);
    if (const auto* pages = std::get_if<KvPages>(&kv)) {
      qkv.kv = *pages;
    } else {
      qkv.k_out = ws_.key();
      qkv.v_out = ws_.value();
    }
    qkv.q_out = ws_.query();
    backend_.qkv_rope_append(qkv);
  }

  void project_attention(const LayerWeights& w) {
    LinearResidualArgs o_proj;
    o_proj.x = ws_.attention();
    o_proj.weight = w.o_proj;
    o_proj.residual = ws_.residual();
    backend_.linear_residual(o_proj);
  }

  void gate_up(const LayerWeights& w) {
    GateUpSwigluArgs gate_up;
    gate_up.x = ws_.residual();
    gate_up.gain = w.post_attention_layernorm;
    gate_up.eps = config_.rms_norm_eps;
    gate_up.weights = w.gate_up_proj;
    gate_up.operand_scale = model_.operand_scale();
    gate_up.out_scale = w.swiglu_output_scale;
    gate_up.out_exponents = ws_.ffn_exponents();
    gate_up.out = ws_.ffn();
    backend_.gate_up_swiglu(gate_up);
  }

  void project_down(const LayerWeights& w) {
    LinearResidualArgs down_proj;
    down_proj.x = ws_.ffn();
    down_proj.x_scale = w.swiglu_output_scale;
    down_proj.x_exponents = ws_.ffn_exponents();
    down_proj.weight = w.down_proj;
    down_proj.residual = ws_.residual();
    backend_.linear_residual(down_proj);
  }

  void attend(int i, const LayerWeights& w) {
    AttentionArgs attention;
    attention.q = ws_.query();
    attention.num_q_heads = config_.num_q_heads;
    attention.num_kv_heads = config_.num_kv_heads;
    attention.head_dim = config_.head_dim;
    attention.batch = ws_.batch();
    attention.kv = cache_.layer(i);
    if (cache_.options().dtype == KvCacheDtype::Int4) {
      attention.k = ws_.key();
      attention.v = ws_.value();
      attention.rotation_block = rotates_in_attention() ? cache_.options().rotation_block : 0;
    }
    attention.out_scales = w.attention_output_scales;
    attention.out = ws_.attention();
    attention.of_prompts = ws_.kind() == StepKind::Prefill;
    backend_.attention(attention);
  }

  void observe(std::string_view op, int layer, ConstActivationView written) const {
    if (tap_) tap_(op, layer, written);
  }

  Backend& backend_;
  const Model& model_;
  const ModelConfig& config_;
  KvCache& cache_;
  Workspace& ws_;
  const Tap& tap_;
};

}  // namespace

void forward(Backend& backend, const Model& model, KvCache& cache, Workspace& workspace,
             const Tap& tap) {
  forward_layers(backend, model, cache, workspace, tap);
  forward_head(backend, model, workspace, tap);
}

void forward_layers(Backend& backend, const Model& model, KvCache& cache, Workspace& workspace,
                    const Tap& tap) {
  ForwardPass pass(backend, model, cache, workspace, tap);
  pass.embed();
  for (int i = 0; i < model.config().num_layers; ++i) {
    for (const LayerOp op : kLayerOps) pass.run(i, op);
  }
}

std::string_view layer_op_name(LayerOp op) {
  switch (op) {
    case LayerOp::QkvRopeAppend:
      return "qkv_rope_append";
    case LayerOp::Attention:
      return "attention";
    case LayerOp::OProj:
      return "o_proj";
    case LayerOp::GateUpSwiglu:
      return "gate_up_swiglu";
    case LayerOp::DownProj:
      break;
  }
  return "down_proj";
}

void run_layer_op(Backend& backend, const Model& model, KvCache& cache, Workspace& workspace,
                  int layer, LayerOp op) {
  const Tap no_tap;
  ForwardPass(backend, model, cache, workspace, no_tap).run(layer, op);
}

void forward_head(Backend& backend, const Model& model, Workspace& workspace, const Tap& tap) {
  if (workspace.logits().rows == 0) return;
  LmHeadArgs head;
  head.x = workspace.residual();
  head.rows = workspace.logit_rows();
  head.num_rows = workspace.logits().rows;
  head.gain = model.final_norm();
  head.eps = model.config().rms_norm_eps;
  head.weight = model.lm_head();
  head.rescoring = model.rescoring_head();
  head.out = workspace.logits();
  backend.lm_head(head);
  if (tap) tap("lm_head", -1, workspace.logits());
}

}  // namespace fut
