// Whose a token of a step is, on the device; see RaggedBatch.
#pragma once

#include <cstdint>

#include "kernels/tensor.h"

namespace fut::cuda {

// The sequence that token t belongs to.
__device__ __forceinline__ int sequence_of_token(const RaggedBatch& batch, int token) {
  if (batch.num_tokens == batch.num_sequences) return token;
  int first = 0;
  int end = batch.num_sequences;  // q_indptr[first] <= token < q_indptr[end]
  while (end - first > 1) {
    const int middle = (first + end) / 2;
    (batch.q_indptr[middle] <= token ? first : end) = middle;
  }
  return first;
}

// The page that holds `position` of a sequence.
__device__ __forceinline__ int page_of_position(const RaggedBatch& batch, int sequence,
                                                int position) {
  return batch.page_table[batch.kv_indptr[sequence] + position / layout::kPageTokens];
}

}  // namespace fut::cuda
