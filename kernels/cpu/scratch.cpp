// The memory that ops use in passing.
#include "kernels/check.h"
#include "kernels/cpu/cpu_ops.h"

namespace fut::cpu {
namespace {

constexpr std::int64_t kLineFloats = 16;

}  // namespace

void Scratch::reserve(std::int64_t elements, std::int64_t pieces) {
  // Each piece may leave the rest of its last line unused.
  const auto lines = static_cast<std::size_t>(elements / kLineFloats + pieces);
  if (lines > lines_.size()) lines_.resize(lines);
  num_taken_ = 0;
}

float* Scratch::take(std::int64_t elements) {
  const auto lines = static_cast<std::size_t>((elements + kLineFloats - 1) / kLineFloats);
  FUT_CHECK(num_taken_ + lines <= lines_.size(), "{} of {} cache lines taken, {} more wanted",
            num_taken_, lines_.size(), lines);
  CacheLine* first = lines_.data() + num_taken_;
  num_taken_ += lines;
  return first->values;
}

}  // namespace fut::cpu
