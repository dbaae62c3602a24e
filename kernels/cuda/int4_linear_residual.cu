// linear_residual on the GPU, INT4 weights: R += x W^T for 1 to 32 tokens. Contract in ops.h.
// launch  one of the two INT4 main loops (int4_launch.cuh), dependent launch
// bound   memory: bytes of the packed matrix
#include <algorithm>

#include "kernels/cuda/int4_launch.cuh"
#include "kernels/cuda/int4_ops.h"

namespace fut::cuda {
namespace {

// Tokens that are F16 already.
struct F16Operand {
  static constexpr bool kNormalised = false;
  const std::uint16_t* x;
  std::int64_t stride;

  // Columns k .. k + 3 of a token.
  __device__ uint2 load(int token, int k, float&) const {
    return *reinterpret_cast<const uint2*>(x + token * stride + k);
  }
};

// Adds to a float32 residual.
struct ResidualEpilogue {
  static constexpr bool kFetches = true;
  static constexpr bool kFinishes = false;
  float* residual;
  std::int64_t stride;
  const std::int32_t* exponents;  // may be null
  int rows;

  __device__ int look_ahead(const Int4Output&) const { return 0; }
  __device__ void fetch(const Int4Output& out, int, std::uint32_t place) const {
    const int first = row_of(out);
    const float* value = residual + out.token * stride + first;
    if (first < rows) ptx::copy_4_bytes(place, value);
    if (first + 8 < rows) ptx::copy_4_bytes(place + 4, value + 8);
    if (exponents != nullptr) ptx::copy_4_bytes(place + 8, exponents + out.token);
  }

  __device__ bool store(const Int4Output& out, float lower, float upper, float,
                        const float* inputs) const {
    const float power = exponents == nullptr ? 1.0F : ldexpf(1.0F, __float_as_int(inputs[2]));
    const int first = row_of(out);
    float* value = residual + out.token * stride + first;
    if (first < rows) value[0] = inputs[0] + lower * power;
    if (first + 8 < rows) value[8] = inputs[1] + upper * power;
    return false;
  }

 private:
  __device__ static int row_of(const Int4Output& out) {
    return out.strip * layout::Int4Tile::kStripRows + out.g;
  }
};

}  // namespace

void int4_linear_residual(const LinearResidualArgs& a, const Int4Matrix& w,
                          LaunchContext& context) {
  check_int4_operand(a.x.data, a.x.row_stride, sizeof(std::uint16_t));
  for (std::int64_t first = 0; first < a.x.rows; first += kMaxInt4Tokens) {
    const auto count = static_cast<int>(std::min<std::int64_t>(kMaxInt4Tokens, a.x.rows - first));
    const F16Operand operand{a.x.row<std::uint16_t>(first), a.x.row_stride};
    const ResidualEpilogue epilogue{a.residual.row<float>(first), a.residual.row_stride,
                                    a.x_exponents == nullptr ? nullptr : a.x_exponents + first,
                                    static_cast<int>(w.rows)};
    launch_int4_projection<kManyBatchWarpgroups>("linear_residual", w, count, operand, epilogue,
                                                 context);
  }
}

}  // namespace fut::cuda
