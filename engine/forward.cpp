// The list of ops that makes a Llama.
#include "engine/forward.h"

namespace fut {
namespace {

MatrixView<const float> read_only(MatrixView<float> m) {
  return {m.data, m.rows, m.cols, m.row_stride};
}

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

  void attention_block(int i) {
    const LayerWeights& w = model_.layer(i);
    QkvRopeAppendArgs qkv;
    qkv.x = read_only(ws_.residual());
    qkv.gain = w.input_layernorm;
    qkv.eps = config_.rms_norm_eps;
    qkv.q_proj = w.q_proj;
    qkv.k_proj = w.k_proj;
    qkv.v_proj = w.v_proj;
    qkv.num_q_heads = config_.num_q_heads;
    qkv.num_kv_heads = config_.num_kv_heads;
    qkv.head_dim = config_.head_dim;
    qkv.rope_cos = ws_.rope_cos();
    qkv.rope_sin = ws_.rope_sin();
    qkv.rope_positions = ws_.rope_positions();
    qkv.batch = ws_.batch();
    qkv.kv = cache_.layer(i);
    qkv.q_out = ws_.query();
    backend_.qkv_rope_append(qkv);
    observe("qkv_rope_append", i, ws_.query());

    backend_.attention({read_only(ws_.query()), config_.num_q_heads, config_.num_kv_heads,
                        config_.head_dim, ws_.batch(), cache_.layer(i), ws_.attention()});
    observe("attention", i, ws_.attention());
    backend_.linear_residual({read_only(ws_.attention()), w.o_proj, ws_.residual()});
    observe("o_proj", i, ws_.residual());
  }

  void ffn_block(int i) {
    const LayerWeights& w = model_.layer(i);
    backend_.gate_up_swiglu({read_only(ws_.residual()), w.post_attention_layernorm,
                             config_.rms_norm_eps, w.gate_proj, w.up_proj, ws_.ffn()});
    observe("gate_up_swiglu", i, ws_.ffn());
    backend_.linear_residual({read_only(ws_.ffn()), w.down_proj, ws_.residual()});
    observe("down_proj", i, ws_.residual());
  }

  void lm_head() {
    if (ws_.logits().rows == 0) return;
    backend_.lm_head({read_only(ws_.residual()), ws_.logit_rows(), ws_.logits().rows,
                      model_.final_norm(), config_.rms_norm_eps, model_.lm_head(), ws_.logits()});
    observe("lm_head", -1, ws_.logits());
  }

 private:
  void observe(std::string_view op, int layer, MatrixView<float> written) const {
    if (tap_) tap_(op, layer, read_only(written));
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
  ForwardPass pass(backend, model, cache, workspace, tap);
  pass.embed();
  for (int i = 0; i < model.config().num_layers; ++i) {
    pass.attention_block(i);
    pass.ffn_block(i);
  }
  pass.lm_head();
}

}  // namespace fut
