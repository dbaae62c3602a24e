// Valid arguments of the ops to break, one rule at a time. Nothing here is ever computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "kernels/error.h"
#include "kernels/ops.h"

namespace fut::test {

inline constexpr int kTokens = 3;
inline constexpr int kHidden = 128;  // narrow enough to pack
inline constexpr int kHeads = 4;
inline constexpr int kKvHeads = 2;
inline constexpr int kHeadDim = 64;
inline constexpr int kQCols = kHeads * kHeadDim;
inline constexpr int kKvCols = kKvHeads * kHeadDim;
inline constexpr int kFfn = 256;
inline constexpr int kVocab = 12;

// Memory to point at.
class Memory {
 public:
  template <class T = float>
  T* take(std::int64_t bytes) {
    arrays_.push_back(std::vector<Line>(static_cast<std::size_t>(bytes / 64 + 1)));
    return reinterpret_cast<T*>(arrays_.back().data());
  }
  const std::int32_t* ints() { return take<std::int32_t>(256); }
  float* floats(std::int64_t count) { return take(4 * count); }
  // Room for float32 whatever the type: a rule that changes the type must not break another one.
  ActivationView matrix(DType dtype, std::int64_t rows, std::int64_t cols) {
    return {take<void>(4 * rows * cols), dtype, rows, cols, cols};
  }
  MatrixView<float> logits(std::int64_t rows, std::int64_t cols) {
    return {floats(rows * cols), rows, cols, cols};
  }
  DenseMatrix dense(DType dtype, std::int64_t rows, std::int64_t cols) {
    return {dtype, take<void>(4 * rows * cols), rows, cols};
  }
  E4m3Matrix e4m3(std::int64_t rows, std::int64_t cols) {
    return {take<std::uint8_t>(rows * cols), floats(rows), rows, cols};
  }
  Int8Matrix int8(std::int64_t rows, std::int64_t cols) {
    return {take<std::int8_t>(rows * cols), floats(rows), rows, cols};
  }
  Int4Matrix int4(layout::RowOrder order, std::int64_t cols) {
    const layout::Int4Tile tile = {order.packed_rows(), static_cast<int>(cols)};
    return {take<std::uint8_t>(tile.bytes()), tile, order, order.source_rows, cols};
  }
  RaggedBatch batch() {
    return {1, kTokens, ints(), ints(), ints(), ints(), ints(), ints(), ints()};
  }
  KvPages pages(DType dtype) {
    const layout::KvPageDense page = {kKvHeads, kHeadDim};
    return {take<void>(4 * 2 * page.elements()), 2, page, dtype};
  }
  KvPagesInt4 int4_pages() {
    const layout::KvPageInt4 page = {kKvHeads, kHeadDim, 32};
    const layout::KvRawStore raw = {kKvHeads, kHeadDim};
    return {take<std::uint8_t>(2 * page.bytes()),        2, page,
            take<std::uint16_t>(2 * 2 * raw.elements()), 2, raw};
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<std::vector<Line>> arrays_;
};

// `change` breaks one rule of a valid argument struct; the message must contain `words`.
template <class Args>
struct Rule {
  const char* words;
  std::function<void(Args&)> change;
};

template <class Args>
void expect_rules(const Args& valid, const std::vector<Rule<Args>>& rules) {
  EXPECT_NO_THROW(check(valid));
  for (const Rule<Args>& rule : rules) {
    Args broken = valid;
    rule.change(broken);
    try {
      check(broken);
      ADD_FAILURE() << "accepted what breaks: " << rule.words;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(rule.words), std::string::npos)
          << "wanted '" << rule.words << "' in: " << e.what();
      EXPECT_EQ(e.kind(), ErrorKind::Runtime);
    }
  }
}

template <class T>
T& part(Weights& weights) {
  return std::get<T>(weights);
}

}  // namespace fut::test
