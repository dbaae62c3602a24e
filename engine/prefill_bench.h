// Prompts of made-up tokens, for measuring: a pack of them as one pass, whole and its layers alone, and the
// way from prompts to their first tokens as an engine goes it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/forward.h"
#include "engine/sampling.h"

namespace fut {

// Prompts that are there at the same time.
struct PromptPack {
  std::string name;          // as it was asked for: "4x2048"
  std::vector<int> lengths;  // tokens of each

  [[nodiscard]] std::int64_t tokens() const;
};

// Seventeen prompts of 30 to 3000 tokens, and as many of their mean length.
inline constexpr std::string_view kMixedPack = "mixed";
inline constexpr std::string_view kEqualPack = "equal";
// "2048", "4x2048", "mixed" or "equal"; no prompts for anything else.
[[nodiscard]] PromptPack parse_prompt_pack(std::string_view text);

struct PrefillBenchOptions {
  PromptPack pack;
  KvCacheOptions kv_cache;
  SamplingParams sampling;
};

class PrefillBench {
 public:
  // `backend` and `model` must outlive it. Throws Capacity.
  PrefillBench(Backend& backend, const Model& model, const PrefillBenchOptions& options);

  // All prompts in one pass, head and sampling of their last tokens included, recorded where the backend
  // records.
  [[nodiscard]] Backend::Procedure step();
  // The ops of all layers in one pass; as DecodeBench::layers().
  [[nodiscard]] Backend::Procedure layers();
  // Seconds by the host's clock until the first token of every prompt is known, in passes as an engine of
  // default options cuts them.
  [[nodiscard]] double seconds_to_first_tokens();

 private:
  // What step() and layers() find.
  void upload_pass();
  void sample();

  Backend& backend_;
  const Model& model_;
  PrefillBenchOptions options_;
  KvCache cache_;
  Workspace workspace_;
  SampleBuffers sample_buffers_;
};

}  // namespace fut
