// The transformer, spelled out once: a list of ops over a backend.
#pragma once

#include <functional>
#include <string_view>

#include "engine/kv_cache.h"
#include "engine/model.h"
#include "engine/workspace.h"

namespace fut {

// Called after each op with its name, the layer (-1 outside the layers) and what was just written
// (qkv_rope_append: the queries). Empty in production. For tests that bisect and for calibration.
using Tap = std::function<void(std::string_view op, int layer, ConstActivationView written)>;

// Runs the step that workspace.upload was given last and leaves the logits of its logit_rows in
// workspace.logits(). Appends the step's keys and values to the cache.
void forward(Backend& backend, const Model& model, KvCache& cache, Workspace& workspace,
             const Tap& tap = {});

// The same without the head.
void forward_layers(Backend& backend, const Model& model, KvCache& cache, Workspace& workspace,
                    const Tap& tap = {});

// One op of one layer on whatever the workspace holds: for timing.
enum class LayerOp { QkvRopeAppend, Attention, OProj, GateUpSwiglu, DownProj };
inline constexpr LayerOp kLayerOps[] = {LayerOp::QkvRopeAppend, LayerOp::Attention, LayerOp::OProj,
                                        LayerOp::GateUpSwiglu, LayerOp::DownProj};
[[nodiscard]] std::string_view layer_op_name(LayerOp op);  // "o_proj"; what a Tap is given
void run_layer_op(Backend& backend, const Model& model, KvCache& cache, Workspace& workspace,
                  int layer, LayerOp op);

// The head alone, on the residual that the last step left: the logits of the rows that
// workspace.upload_logit_rows was given.
void forward_head(Backend& backend, const Model& model, Workspace& workspace, const Tap& tap = {});

}  // namespace fut
