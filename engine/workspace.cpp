// Buffers of one step.
#include "engine/workspace.h"

#include <algorithm>

#include "engine/upload.h"
#include "kernels/check.h"

namespace fut {
namespace {

std::size_t floats(std::int64_t rows, std::int64_t cols) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols) * sizeof(float);
}

std::size_t ints(std::int64_t n) {
  return static_cast<std::size_t>(n) * sizeof(std::int32_t);
}

std::int64_t q_width(const ModelConfig& config) {
  return static_cast<std::int64_t>(config.num_q_heads) * config.head_dim;
}

std::int64_t kv_width(const ModelConfig& config) {
  return static_cast<std::int64_t>(config.num_kv_heads) * config.head_dim;
}

// Of an activation that is there in both kinds of step, in the type that `type` names.
class StepRows {
 public:
  StepRows(Precision precision, KvCacheDtype kv_dtype, const WorkspaceLimits& limits)
      : prefill_(step_types(precision, StepKind::Prefill, kv_dtype)),
        decode_(step_types(precision, StepKind::Decode, kv_dtype)),
        limits_(limits) {}

  [[nodiscard]] std::size_t bytes(DType StepTypes::*type, std::int64_t cols) const {
    return static_cast<std::size_t>(
        cols * std::max(std::int64_t{limits_.max_tokens} * dtype_bytes(prefill_.*type),
                        std::int64_t{limits_.max_sequences} * dtype_bytes(decode_.*type)));
  }

 private:
  StepTypes prefill_, decode_;
  const WorkspaceLimits& limits_;
};

}  // namespace

std::vector<Workspace::Allocation> Workspace::allocations(const ModelConfig& config,
                                                          Precision precision,
                                                          KvCacheDtype kv_dtype,
                                                          const WorkspaceLimits& limits) {
  using W = Workspace;
  const StepRows rows(precision, kv_dtype, limits);
  const int most_tokens = std::max(limits.max_tokens, limits.max_sequences);
  std::vector<Allocation> all = {
      {&W::token_ids_, ints(most_tokens)},
      {&W::positions_, ints(most_tokens)},
      {&W::q_indptr_, ints(limits.max_sequences + 1)},
      {&W::kv_indptr_, ints(limits.max_sequences + 1)},
      {&W::page_table_, ints(limits.max_pages)},
      {&W::kv_lengths_, ints(limits.max_sequences)},
      {&W::raw_slots_, ints(limits.max_sequences)},
      {&W::logit_rows_, ints(limits.max_logit_rows)},
      {&W::residual_, rows.bytes(&StepTypes::residual, config.hidden_size)},
      {&W::query_, rows.bytes(&StepTypes::qkv, q_width(config))},
      {&W::attention_, rows.bytes(&StepTypes::attention, q_width(config))},
      {&W::ffn_, rows.bytes(&StepTypes::ffn, config.intermediate_size)},
      {&W::ffn_exponents_, ints(limits.max_sequences)},
      {&W::logits_, floats(limits.max_logit_rows, config.vocab_size)},
      {&W::rope_cos_, floats(limits.context_tokens, config.head_dim / 2)},
      {&W::rope_sin_, floats(limits.context_tokens, config.head_dim / 2)}};
  if (kv_dtype == KvCacheDtype::Int4) {
    all.push_back({&W::key_, rows.bytes(&StepTypes::qkv, kv_width(config))});
    all.push_back({&W::value_, rows.bytes(&StepTypes::qkv, kv_width(config))});
  }
  return all;
}

std::size_t Workspace::bytes(const ModelConfig& config, Precision precision, KvCacheDtype kv_dtype,
                             const WorkspaceLimits& limits) {
  std::size_t sum = 0;
  for (const Allocation& a : allocations(config, precision, kv_dtype, limits)) sum += a.bytes;
  return sum;
}

Workspace::Workspace(Backend& backend, const ModelConfig& config, Precision precision,
                     KvCacheDtype kv_dtype, const WorkspaceLimits& limits)
    : config_(config), precision_(precision), kv_dtype_(kv_dtype), limits_(limits) {
  for (const Allocation& a : allocations(config, precision, kv_dtype, limits)) {
    this->*a.buffer = backend.allocate(a.bytes);
  }
  const RopeTable rope = make_rope_table(config.rope, config.head_dim, limits.context_tokens);
  upload_values(backend, rope_cos_, rope.cos);
  upload_values(backend, rope_sin_, rope.sin);
}

void Workspace::upload(Backend& backend, const Batch& batch) {
  const int most = batch.kind == StepKind::Decode ? limits_.max_sequences : limits_.max_tokens;
  FUT_CHECK(std::ssize(batch.token_ids) <= most, "{} tokens in a step, {} at most",
            batch.token_ids.size(), most);
  upload_values(backend, token_ids_, batch.token_ids);
  upload_values(backend, positions_, batch.positions);
  upload_values(backend, q_indptr_, batch.q_indptr);
  upload_values(backend, kv_indptr_, batch.kv_indptr);
  upload_values(backend, page_table_, batch.page_table);
  upload_values(backend, kv_lengths_, batch.kv_lengths);
  upload_values(backend, raw_slots_, batch.raw_slots);
  upload_logit_rows(backend, batch.logit_rows);
  kind_ = batch.kind;
  types_ = step_types(precision_, kind_, kv_dtype_);
  batch_.num_sequences = static_cast<int>(batch.sequences.size());
  batch_.num_tokens = static_cast<int>(batch.token_ids.size());
  batch_.longest_context = batch.longest_context();
  batch_.token_ids = token_ids_.as<std::int32_t>();
  batch_.positions = positions_.as<std::int32_t>();
  batch_.q_indptr = q_indptr_.as<std::int32_t>();
  batch_.kv_indptr = kv_indptr_.as<std::int32_t>();
  batch_.page_table = page_table_.as<std::int32_t>();
  batch_.kv_lengths = kv_lengths_.as<std::int32_t>();
  batch_.raw_slots = raw_slots_.as<std::int32_t>();
}

void Workspace::upload_logit_rows(Backend& backend, const std::vector<std::int32_t>& rows) {
  upload_values(backend, logit_rows_, rows);
  num_logit_rows_ = static_cast<std::int64_t>(rows.size());
}

ActivationView Workspace::view(const DeviceBuffer& buffer, DType dtype, std::int64_t cols) const {
  return {buffer.as<void>(), dtype, batch_.num_tokens, cols, cols};
}
ActivationView Workspace::residual() const {
  return view(residual_, types_.residual, config_.hidden_size);
}
ActivationView Workspace::query() const {
  return view(query_, types_.qkv, q_width(config_));
}
ActivationView Workspace::key() const {
  return view(key_, types_.qkv, kv_width(config_));
}
ActivationView Workspace::value() const {
  return view(value_, types_.qkv, kv_width(config_));
}
ActivationView Workspace::attention() const {
  return view(attention_, types_.attention, q_width(config_));
}
ActivationView Workspace::ffn() const {
  return view(ffn_, types_.ffn, config_.intermediate_size);
}
std::int32_t* Workspace::ffn_exponents() const {
  return types_.ffn == DType::F16 ? ffn_exponents_.as<std::int32_t>() : nullptr;
}
MatrixView<float> Workspace::logits() const {
  return {logits_.as<float>(), num_logit_rows_, config_.vocab_size, config_.vocab_size};
}

}  // namespace fut
