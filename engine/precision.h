// What a model computes with: the precisions, the types of the KV cache, and from both the types of
// a step's activations, as the table "Who rounds what" of kernels/README.md has them.
#pragma once

#include <string_view>

#include "engine/step_kind.h"
#include "kernels/tensor.h"
#include "loader/model_config.h"

namespace fut {

enum class Precision {
  F32,   // weights as stored, float32 everywhere: the truth
  Bf16,  // weights, operands and cache in BF16
  Fp8,   // E4M3 weights and operands in prefill and decode, BF16 cache
  Int4,  // prefill as Fp8, decode with INT4 weights, INT4 cache
};
enum class KvCacheDtype { F32, Bf16, Int4 };

// Where prefill of Int4 has its weights from: a copy of their own in E4M3, or the INT4 codes of decode,
// rounded to E4M3 when a product needs them: one more rounding and some more time, and a model of twice the
// size fits.
enum class PrefillWeights { Fp8, Int4 };
[[nodiscard]] std::string_view prefill_weights_name(PrefillWeights weights);  // "fp8", "int4"

[[nodiscard]] std::string_view precision_name(Precision precision);     // "f32", "bf16", ...
[[nodiscard]] std::string_view kv_cache_dtype_name(KvCacheDtype type);  // "f32", "bf16", "int4"

// Whether the weights come from a quantised folder.
[[nodiscard]] constexpr bool is_quantized(Precision precision) {
  return precision == Precision::Fp8 || precision == Precision::Int4;
}

struct KvCacheOptions {
  KvCacheDtype dtype = KvCacheDtype::F32;
  int rotation_block = 0;  // INT4: of the Hadamard on keys and queries; 0: none
  int group = 0;           // INT4: dims that share a scale
};

// What a user may say about the cache; absent values take the precision's default: the precision's
// own type, rotation by blocks of head_dim, one scale for head_dim dims.
struct KvCacheChoice {
  bool has_dtype = false;
  KvCacheDtype dtype = KvCacheDtype::F32;
  bool rotate = true;
  int rotation_block = 0;  // 0: head_dim
  int group = 0;           // 0: head_dim
};

// Throws Usage, naming flag and allowed values, where the choice does not go with the precision or
// the model: f32 goes with an F32 cache alone and the others with BF16 or INT4; an INT4 cache needs
// head_dim 64 or 128, a group of 32, 64 or head_dim, and a block that is a power of two and divides
// head_dim.
[[nodiscard]] KvCacheOptions resolve_kv_cache(const ModelConfig& config, Precision precision,
                                              const KvCacheChoice& choice);

// The types of one step's activations.
struct StepTypes {
  DType residual = DType::F32;
  DType qkv = DType::F32;        // queries, and with an INT4 cache the step's keys and values
  DType attention = DType::F32;  // operand of o_proj
  DType ffn = DType::F32;        // operand of down_proj
};
[[nodiscard]] StepTypes step_types(Precision precision, StepKind kind, KvCacheDtype cache);

}  // namespace fut
