// Attention of one query head in the words of ops.h, one number at a time: once in float32 in the
// contract's order, which the CPU backend has to meet bit by bit, and once in Bounded numbers, whose
// value is the mathematics and whose error is what roundings may do. Not how a cache stores rows.
#pragma once

#include <span>
#include <vector>

#include "tests/support/compare.h"

namespace fut::test {

// One key or value of one head. A coded one stands for minima[g] + scales[g] * codes[d], g being the
// group of dim d.
struct CachedRow {
  std::vector<float> numbers;  // raw; empty where it is coded
  std::vector<float> codes, scales, minima;

  [[nodiscard]] bool is_coded() const { return numbers.empty(); }
  [[nodiscard]] std::size_t dims() const { return is_coded() ? codes.size() : numbers.size(); }
};

enum class AttentionNumbers {
  Plain,     // float32 throughout
  Rounded,   // BF16 operands; codes widened to BF16
  Factored,  // BF16 operands; scales and minima outside of the sums over codes
};

// In which order a backend adds.
enum class SumOrder {
  Contract,  // of ops.h
  Tiles,  // tensor cores, two pages of keys at a time, a softmax that goes along; not for Factored
};

// The query and the rows that it sees, in order of position; owns nothing. `query` is what meets the
// keys: rotated and rounded already.
struct AttentionCase {
  AttentionNumbers kind = AttentionNumbers::Plain;
  std::span<const float> query;
  std::span<const CachedRow> keys, values;
  SumOrder order = SumOrder::Contract;  // bounds alone
};

// sum p v / sum p, as the contract computes it, before it is rounded to the type of `out`.
[[nodiscard]] std::vector<float> contract_attention(const AttentionCase& c);

// The same after rounding to `out`, with bounds. Numbers must stay in the type's normal range or
// below; scores so close that exp() does not underflow.
[[nodiscard]] std::vector<Bounded> bounded_attention(const AttentionCase& c, DType out);

// What rounding to the type may do to a number.
[[nodiscard]] Bounded narrowed(const Bounded& value, DType dtype);

// A query or a key in contract words: rotated by blocks of `rotation_block` dims (0: not), then
// rounded to BF16.
[[nodiscard]] std::vector<float> rotated_and_rounded(std::vector<float> row, int rotation_block);

}  // namespace fut::test
