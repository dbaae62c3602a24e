// What the checks of several ops in ops.cpp have in common: views, weights, the batch, the cache,
// and arrays that must lie apart. Each throws a Runtime error that names the op, the argument and
// the numbers that disagree. Not part of any contract: include ops.h.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>

#include "kernels/ops.h"

namespace fut::op_checks {

// The bytes from an array's first to its last element. An array that is not given is empty.
struct ByteRange {
  const char* name = "";
  const void* data = nullptr;
  std::int64_t bytes = 0;
};
[[nodiscard]] ByteRange range_of(const char* name, const ConstActivationView& view);
[[nodiscard]] ByteRange range_of(const char* name, const Weights& weights);
[[nodiscard]] ByteRange range_of(const char* name, const KvPages& kv);
[[nodiscard]] ByteRange range_of(const char* name, const float* data, std::int64_t elements);

void check_array(const char* op, const char* name, const void* data);
void check_absent(const char* op, const char* name, const void* data, const char* why);
void check_equal(const char* op, const char* left_name, std::int64_t left, const char* right_name,
                 std::int64_t right);
void check_dtype(const char* op, const char* name, DType dtype,
                 std::initializer_list<DType> allowed);
// Data, sizes of at least 1 and the stride; not the type.
void check_view(const char* op, const char* name, const ConstActivationView& view);
// check_view(), and the size.
void check_view(const char* op, const char* name, const ConstActivationView& view,
                std::int64_t rows, std::int64_t cols);
void check_eps(const char* op, float eps);
// Columns in whole groups of a size that INT4 weights have.
void check_groups(const char* op, std::int64_t cols, int group_size);
// `scale` multiplies operands and is divided out again: both are exact for powers of two alone.
void check_power_of_two(const char* op, const char* name, float scale);

// Pointers, sizes of at least 1, the type of a dense matrix, the tile and the order of a packed one.
void check_weights(const char* op, const char* name, const Weights& weights);
void check_weights(const char* op, const char* name, const Weights& weights, std::int64_t rows,
                   std::int64_t cols);

// The operands of proj(): which weights go with a gain and which types of x with either.
void check_projection_types(const char* op, const char* name, const Weights& weights,
                            const float* gain, const ConstActivationView& x);

void check_heads(const char* op, int num_q_heads, int num_kv_heads, int head_dim);
void check_rotation(const char* op, int rotation_block, int head_dim);
// Counts and positions; check_batch() asks for the arrays that lead to the cache as well.
void check_tokens(const char* op, const RaggedBatch& batch);
void check_batch(const char* op, const RaggedBatch& batch);
void check_kv(const char* op, const KvPages& kv, int num_kv_heads, int head_dim);
void check_kv(const char* op, const KvPagesInt4& kv, int num_kv_heads, int head_dim);

// What is written must lie apart from all that is read and from all else that is written.
void check_apart(const char* op, const ByteRange& written, std::span<const ByteRange> others);
inline void check_apart(const char* op, const ByteRange& written,
                        std::initializer_list<ByteRange> others) {
  check_apart(op, written, std::span(others.begin(), others.size()));
}

}  // namespace fut::op_checks
