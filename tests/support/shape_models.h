// Models of real shapes with random weights, where no real ones can be had: checkpoints in the layout that
// Hugging Face serves, and quantised folders as if one had been quantised. Fast enough for many gigabytes.
// Numbers are of a size that keeps every activation in range; what such a model says means nothing.
#pragma once

#include <cstdint>
#include <filesystem>

#include "tests/support/toy_tokenizers.h"

namespace fut::test {

struct ShapeModelOptions {
  std::filesystem::path shape;  // a config.json
  int num_shards = 4;           // of a checkpoint
  int num_layers = 0;           // 0: as the shape has them
  int threads = 0;              // 0: one for each core
  std::uint64_t seed = 1;
};

struct WrittenBytes {
  std::uint64_t bytes = 0;  // of weights
  double seconds = 0;       // making and writing them
};

// BF16 weights in shards with an index, config.json, a tokenizer as large as Llama-3.1's with its special
// tokens, and its chat template. The folder must not hold weights yet.
WrittenBytes write_shape_checkpoint(const std::filesystem::path& folder,
                                    const ShapeModelOptions& options);

// The same model's files around random FP8 and INT4 copies, which have nothing to do with each other.
WrittenBytes write_shape_packed(const std::filesystem::path& folder,
                                const ShapeModelOptions& options);

// `size` tokens in the way of Llama-3.1: bytes, words of small letters, 256 special tokens of which those
// that have a meaning are where it has them. At least 4608.
[[nodiscard]] ToyVocabulary llama3_like_vocabulary(int size);

}  // namespace fut::test
