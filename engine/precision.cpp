// Names, defaults and what goes with what.
#include "engine/precision.h"

#include "kernels/check.h"
#include "kernels/error.h"
#include "kernels/numeric/hadamard.h"

namespace fut {
namespace {

KvCacheDtype default_dtype(Precision precision) {
  switch (precision) {
    case Precision::F32:
      return KvCacheDtype::F32;
    case Precision::Bf16:
    case Precision::Fp8:
      return KvCacheDtype::Bf16;
    case Precision::Int4:
      break;
  }
  return KvCacheDtype::Int4;
}

KvCacheOptions resolve_int4(const ModelConfig& config, const KvCacheChoice& choice) {
  KvCacheOptions options;
  options.dtype = KvCacheDtype::Int4;
  options.group = choice.group == 0 ? config.head_dim : choice.group;
  if (!layout::KvPageInt4::supported(config.head_dim, options.group)) {
    throw usage_error(
        "an INT4 cache with one scale for {} dims (--kv-group) does not go with head_dim {}: "
        "head_dim must be 64 or 128 and the group 32, 64 or head_dim; or use --kv-cache-dtype bf16",
        options.group, config.head_dim);
  }
  if (!choice.rotate) return options;
  options.rotation_block = choice.rotation_block == 0 ? config.head_dim : choice.rotation_block;
  if (!is_rotation_block(options.rotation_block, config.head_dim)) {
    throw usage_error(
        "--kv-rotation-block {} does not go with head_dim {}: it must be a power of two that "
        "divides it",
        options.rotation_block, config.head_dim);
  }
  return options;
}

}  // namespace

std::string_view precision_name(Precision precision) {
  switch (precision) {
    case Precision::F32:
      return "f32";
    case Precision::Bf16:
      return "bf16";
    case Precision::Fp8:
      return "fp8";
    case Precision::Int4:
      break;
  }
  return "int4";
}

std::string_view prefill_weights_name(PrefillWeights weights) {
  return weights == PrefillWeights::Fp8 ? "fp8" : "int4";
}

std::string_view kv_cache_dtype_name(KvCacheDtype type) {
  switch (type) {
    case KvCacheDtype::F32:
      return "f32";
    case KvCacheDtype::Bf16:
      return "bf16";
    case KvCacheDtype::Int4:
      break;
  }
  return "int4";
}

KvCacheOptions resolve_kv_cache(const ModelConfig& config, Precision precision,
                                const KvCacheChoice& choice) {
  const KvCacheDtype dtype = choice.has_dtype ? choice.dtype : default_dtype(precision);
  if ((precision == Precision::F32) != (dtype == KvCacheDtype::F32)) {
    throw usage_error(
        "--kv-cache-dtype {} does not go with --precision {}: f32 keeps its cache in f32, the "
        "others in bf16 or int4",
        kv_cache_dtype_name(dtype), precision_name(precision));
  }
  if (dtype == KvCacheDtype::Int4) return resolve_int4(config, choice);
  KvCacheOptions options;
  options.dtype = dtype;
  return options;
}

StepTypes step_types(Precision precision, StepKind kind, KvCacheDtype cache) {
  if (precision == Precision::F32) return {};
  const bool decode = kind == StepKind::Decode;
  StepTypes types;
  // A step of many tokens is bound by what it moves, one of few is not, and a residual that is
  // rounded once less keeps the decoded text closer to the model.
  types.residual = decode ? DType::F32 : DType::BF16;
  // With an INT4 cache, decode rotates queries and keys where they are used, and rounds them there.
  types.qkv = decode && cache == KvCacheDtype::Int4 ? DType::F32 : DType::BF16;
  if (precision == Precision::Bf16) {
    types.attention = types.ffn = DType::BF16;
  } else if (precision == Precision::Int4 && decode) {
    types.attention = types.ffn = DType::F16;
  } else {
    types.attention = types.ffn = DType::E4M3;
  }
  return types;
}

}  // namespace fut
