// Perplexity of a model on windows of token ids, alone or against another model: negative
// log-likelihood of each token, the paired difference to the other model's, Kullback-Leibler
// divergence and agreement of the best token. Token ids in, numbers out; texts are the caller's.
//
// Windows do not overlap and each begins at position 0 with an empty cache; its first token is not
// scored (as Hugging Face's evaluation of WikiText-2 does it, with BOS in the first window alone).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/model.h"
#include "engine/precision.h"
#include "kernels/backend.h"

namespace fut {

using TokenWindows = std::vector<std::vector<std::int32_t>>;

// Cuts ids into windows; what is left at the end is dropped. Throws Data where not one window
// comes out (both counts).
[[nodiscard]] TokenWindows cut_windows(std::span<const std::int32_t> ids, int window,
                                       int max_windows);

struct ScoringOptions {
  StepKind path = StepKind::Prefill;
  KvCacheOptions kv_cache;
  int prefill_chunk = kDefaultPrefillChunk;  // a window is cut into passes at multiples of it
  int lock_step = 16;                        // decode: windows that go along together
  int threads = 0;                           // of the sums over logits; 0: one for each core
};

// A model that scores windows. `backend` and `model` must outlive it.
struct ScoredModel {
  Backend* backend = nullptr;
  const Model* model = nullptr;
  ScoringOptions options;
};

// Windows done of all.
using ScoringProgress = std::function<void(std::size_t done, std::size_t total, double nll_so_far)>;

struct PairedScores {
  double perplexity = 0;        // of the other model
  double difference = 0;        // mean of nll - other nll over all tokens, nats
  double difference_error = 0;  // its standard error
  double kl = 0;                // mean of KL(other || this), nats
  double kl_error = 0;
  double top1 = 0;  // share of tokens for which both have the same best token
};

struct PerplexityResult {
  double perplexity = 0;
  double perplexity_error = 0;  // standard error
  double nll = 0;               // mean, nats
  std::int64_t tokens = 0;      // scored
  std::int64_t windows = 0;
  std::optional<PairedScores> against;
  // Of each scored token in order, for callers that compare runs.
  std::vector<float> token_nll;
};

// Scores all windows. With `against` both models see the same windows in the same order. Throws
// Data for ids outside a model's vocabulary, for models of different vocabularies, and, naming model,
// window and position, for logits that are not finite; Capacity where memory is short.
[[nodiscard]] PerplexityResult score_windows(const ScoredModel& scored, const TokenWindows& windows,
                                             const ScoredModel* against = nullptr,
                                             const ScoringProgress& progress = {});

}  // namespace fut
