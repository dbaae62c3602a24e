// The flags that say what a model computes with: precision, KV cache, head; and what becomes of the
// quantised copy of a checkpoint.
#include "apps/flag_groups.h"

namespace fut::app {
namespace {

// Sizes that no model has are refused here, those that this model has not by resolve_kv_cache.
constexpr int kMostHeadDim = 1024;

// `set`, and a note of how the flag was typed.
std::function<void(const Argument&)> noting_name(std::string& typed,
                                                 std::function<void(const Argument&)> set) {
  return [&typed, set = std::move(set)](const Argument& a) {
    if (a.typed) typed = a.source;
    set(a);
  };
}

Flags int4_cache_flags(KvCacheChoice& o) {
  Flags flags = on_off_flags("kv-rotation", kArithmeticSection,
                             "INT4 cache: rotate keys and queries by a Hadamard matrix [on]",
                             "INT4 cache: keep keys as they are", [&o](bool on) { o.rotate = on; });
  append(flags,
         {{{"--kv-rotation-block"},
           "N",
           kArithmeticSection,
           "INT4 cache: rotate blocks of N dims [head_dim]",
           set_integer(o.rotation_block, 1, kMostHeadDim, "a power of two that divides head_dim"),
           false,
           {"--no-kv-rotation"}},
          {{"--kv-group"},
           "32|64|128",
           kArithmeticSection,
           "INT4 cache: dims that share a scale [head_dim]",
           [&o](const Argument& a) {
             constexpr int kGroups[] = {32, 64, 128};
             o.group = kGroups[parse_choice(a, {"32", "64", "128"})];
           }}});
  return flags;
}

Flags kv_cache_flags(ArithmeticOptions& arithmetic) {
  KvCacheChoice& o = arithmetic.kv_cache;
  Flags flags = {
      {{"--kv-cache-dtype"},
       "int4|bf16",
       kArithmeticSection,
       "What keys and values are kept as [int4: int4; fp8 and bf16: bf16; f32: f32]",
       [&o](const Argument& a) {
         o.has_dtype = true;
         o.dtype = parse_choice(a, {"int4", "bf16"}) == 0 ? KvCacheDtype::Int4 : KvCacheDtype::Bf16;
       }}};
  for (Flag flag : int4_cache_flags(o)) {
    flag.set = noting_name(arithmetic.typed_int4_cache_flag, std::move(flag.set));
    flags.push_back(std::move(flag));
  }
  return flags;
}

}  // namespace

Precision parse_precision(const Argument& argument) {
  constexpr Precision kPrecisions[] = {Precision::Int4, Precision::Fp8, Precision::Bf16,
                                       Precision::F32};
  return kPrecisions[parse_choice(argument, {"int4", "fp8", "bf16", "f32"})];
}

Flags arithmetic_flags(ArithmeticOptions& o) {
  Flags flags = {{{"--precision"},
                  "int4|fp8|bf16|f32",
                  kArithmeticSection,
                  "int4: FP8 prefill, INT4 decode, INT4 cache; fp8: both in FP8; bf16; f32: the "
                  "weights as stored, in float32 [int4]",
                  [&o](const Argument& a) {
                    o.precision = parse_precision(a);
                    o.precision_given = true;
                  }}};
  flags.push_back({{"--prefill-weights"},
                   "fp8|int4",
                   kArithmeticSection,
                   "Where prefill of int4 has its weights from: a copy in FP8, or the INT4 ones of "
                   "decode, expanded for each product [fp8 where both fit into memory]",
                   [&o](const Argument& a) {
                     o.prefill_weights = parse_choice(a, {"fp8", "int4"}) == 0
                                             ? PrefillWeights::Fp8
                                             : PrefillWeights::Int4;
                   }});
  append(flags, kv_cache_flags(o));
  append(
      flags,
      {{{"--head"},
        "int8|bf16",
        kArithmeticSection,
        "Output head of int4 and fp8 [int8]",
        noting_name(
            o.typed_head_flag,
            [&o](const Argument& a) {
              o.head = parse_choice(a, {"int8", "bf16"}) == 0 ? HeadChoice::Int8 : HeadChoice::Bf16;
            }),
        false,
        {"--rescore-head"}},
       {{"--rescore-head"},
        "",
        kArithmeticSection,
        "INT8 head, the best 64 logits computed once more from BF16",
        noting_name(o.typed_head_flag,
                    [&o](const Argument&) { o.head = HeadChoice::Int8Rescored; })}});
  return flags;
}

Flags copy_flags(ModelOptions& o) {
  return {
      {{"--cache-dir"},
       "DIR",
       kArithmeticSection,
       "Where int4 and fp8 keep the quantised copy of a checkpoint [$XDG_CACHE_HOME/fut, else "
       "~/.cache/fut]",
       set_text(o.copies.cache_dir, "folder")},
      {{"--no-cache"},
       "",
       kArithmeticSection,
       "Quantise into a temporary folder, and remove it",
       turn_off(o.copies.keep),
       false,
       {"--cache-dir"}},
      {{"--check-tensors"},
       "",
       kModelSection,
       "Refuse weights that hold NaN or infinity; compare the automatic quantised copy with its "
       "whole source. Quantised folders meet their checksums on every load",
       turn_on(o.check_tensors)}};
}

}  // namespace fut::app
