// The kernels of fragment_probe.h: loads as the real kernels will make them, one instruction after
// the other, everything else as plain as can be. Instructions are wrapped in the functions of the
// first section alone. One file, though a long one: the probes share wrappers, operands and
// launching.
#include <bit>
#include <cuda_runtime.h>
#include <stdexcept>

#include "kernels/numeric/e4m3.h"
#include "kernels/numeric/formats.h"
#include "tests/kernel/fragment_probe.h"

namespace fut::test {
namespace {

using layout::Int4Tile;
using layout::KvPageInt4;
using layout::KvPart;

constexpr int kLanes = 32;
constexpr int kWarps = 4;  // of a block that multiplies weights: a warpgroup

// ---- instructions ------------------------------------------------------------------------------

// PTX ISA, "Warp-level matrix instructions: mma", fragments of m16n8k16: d += a * b. With lane
// 4g + t: a as in layout/int4_tile.h; b[0] is B rows 2t, 2t+1 of column g, b[1] rows 2t+8, 2t+9;
// d[0], d[1] are row g of columns 2t, 2t+1 and d[2], d[3] row g + 8.
__device__ void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4],
                             const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// PTX ISA, "Asynchronous warpgroup level matrix instructions: wgmma.mma_async", m64n8k16 with A in
// registers: d += a * b. Warp w of the warpgroup holds rows 16w .. 16w+15 of A and D, in the
// fragments of mma_m16n8k16. The operation reads and writes its registers after it was issued: the
// fence orders earlier writes before it, and nothing may touch them until the wait. Fence and wait
// name them all as read and written, so that the compiler moves no use of theirs across.
__device__ void wgmma_fence(float (&d)[4], std::uint32_t (&a)[4]) {
  asm volatile("wgmma.fence.sync.aligned;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+r"(a[0]), "+r"(a[1]), "+r"(a[2]),
                 "+r"(a[3])
               :
               : "memory");
}
__device__ void wgmma_m64n8k16(float (&d)[4], const std::uint32_t (&a)[4], std::uint64_t b) {
  asm volatile(
      "{\n"
      ".reg .pred accumulate;\n"
      "setp.eq.u32 accumulate, 1, 1;\n"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, accumulate, 1, 1, 0;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
      : "memory");
}
__device__ void wgmma_wait(float (&d)[4], std::uint32_t (&a)[4]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+r"(a[0]), "+r"(a[1]), "+r"(a[2]),
                 "+r"(a[3])
               :
               : "memory");
}

// PTX ISA, "Asynchronous warpgroup level matrix instructions: matrix descriptor format", no
// swizzle: B's columns are contiguous along k in core matrices of 8 columns x 16 bytes, 128 bytes
// each. The leading dimension offset leads to the next 8 of k. The stride offset would lead to the
// next 8 columns, of which there are none.
__device__ std::uint64_t wgmma_descriptor(const std::uint16_t* b) {
  constexpr std::uint64_t kCoreBytes = 128;
  const std::uint64_t address = __cvta_generic_to_shared(b);
  return (address & 0x3FFFF) >> 4 | kCoreBytes >> 4 << 16 | kCoreBytes >> 4 << 32;
}

// PTX ISA, "Async proxy": shared memory written by ordinary stores becomes visible to wgmma.
__device__ void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// PTX ISA, "Data movement and conversion instructions: cvt".
__device__ std::uint32_t cvt_e4m3x2(float high, float low) {
  std::uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ std::uint32_t cvt_f16(float value) {
  std::uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
__device__ std::uint32_t cvt_bf16(float value) {
  std::uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
__device__ std::uint32_t cvt_f16x2(std::uint16_t e4m3_pair) {
  std::uint32_t pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(e4m3_pair));
  return pair;
}
__device__ float cvt_f32(std::uint16_t f16) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(f16));
  return value;
}

// ---- operands ----------------------------------------------------------------------------------

// The four words that a lane has of four tiles, by its one load.
struct LaneWords {
  std::uint32_t of_tile[4];
};
__device__ LaneWords load_words(const std::uint8_t* block, int lane) {
  const uint4 words = *reinterpret_cast<const uint4*>(block + 16 * lane);
  return {{words.x, words.y, words.z, words.w}};
}

__device__ void unpack(std::uint32_t word, std::uint32_t (&a)[4]) {
  a[0] = word & layout::kInt4LowMask;
  a[1] = word & layout::kInt4HighMask;
  a[2] = word >> 8 & layout::kInt4LowMask;
  a[3] = word >> 8 & layout::kInt4HighMask;
}

// What code 1 is unpacked as, in the rows of accumulator i.
__device__ float unit_of(int i) {
  return i < 2 ? layout::kInt4LowUnit : layout::kInt4HighUnit;
}

// Columns 2t and 2t+1 of B, which a lane's accumulators belong to: the sums of some of their rows.
struct ColumnSums {
  float of[2] = {0, 0};
};
__device__ ColumnSums sum_columns(const std::uint16_t* b, int rows_of_b, int first, int count,
                                  int lane) {
  ColumnSums sums;
  for (int column = 0; column < 2; ++column) {
    const std::uint16_t* values = b + (2 * (lane % 4) + column) * rows_of_b + first;
    for (int i = 0; i < count; ++i) sums.of[column] += f16_to_f32(values[i]);
  }
  return sums;
}

// B rows first .. first+15 of a matrix stored column after column, rows_of_b long.
__device__ void load_b(const std::uint16_t* b, int rows_of_b, int first, int lane,
                       std::uint32_t (&registers)[2]) {
  const std::uint16_t* place = b + (lane / 4) * rows_of_b + first + 2 * (lane % 4);
  registers[0] = *reinterpret_cast<const std::uint32_t*>(place);
  registers[1] = *reinterpret_cast<const std::uint32_t*>(place + 8);
}

// Entry i of a lane's accumulators in a row-major result of eight columns.
__device__ float& result(float* rows, int lane, int i) {
  return rows[(lane / 4 + 8 * (i / 2)) * kProbeColumns + 2 * (lane % 4) + i % 2];
}

// ---- weights -----------------------------------------------------------------------------------

// What an unpacked number of rows g and of rows g + 8 has beyond its code.
// x as wgmma wants it: (n, k) in core matrix k / 8, row n.
__device__ void stage_b(const std::uint16_t* x, int cols, std::uint16_t* staged) {
  for (int i = static_cast<int>(threadIdx.x); i < kProbeColumns * cols; i += kWarps * kLanes) {
    const int n = i / cols, k = i % cols;
    staged[k / 8 * 64 + n * 8 + k % 8] = x[i];
  }
  fence_proxy_async();
  __syncthreads();
}

// sum += the product of one tile's word and rows k .. k+15 of x.
template <Instruction kInstruction>
__device__ void add_tile(float (&sum)[4], std::uint32_t word, const std::uint16_t* x, int cols,
                         int k, const std::uint16_t* staged) {
  std::uint32_t a[4];
  unpack(word, a);
  if constexpr (kInstruction == Instruction::Wgmma) {
    wgmma_fence(sum, a);
    wgmma_m64n8k16(sum, a, wgmma_descriptor(staged + k * kProbeColumns));
    wgmma_wait(sum, a);
  } else {
    std::uint32_t b[2];
    load_b(x, cols, k, static_cast<int>(threadIdx.x) % kLanes, b);
    mma_m16n8k16(sum, a, b);
  }
}

// One warp for each strip of 16 rows, four neighbouring strips to a block.
template <Instruction kInstruction>
__global__ void __launch_bounds__(kWarps* kLanes)
    multiply_weights_kernel(Int4Tile tile, const std::uint8_t* packed, const std::uint16_t* x,
                            float* y) {
  __shared__ alignas(128) std::uint16_t staged[kProbeColumns * kProbeMaxCols];
  if constexpr (kInstruction == Instruction::Wgmma) stage_b(x, tile.cols, staged);

  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  // wgmma needs all four warps: one without a strip repeats the last one and keeps the result.
  const int own_strip = static_cast<int>(blockIdx.x) * kWarps + warp;
  const int strip = min(own_strip, tile.num_strips() - 1);

  float total[4] = {0, 0, 0, 0};
  for (int group = 0; group < tile.num_groups(); ++group) {
    const std::uint8_t* record = packed + tile.record_offset(strip, group);
    float sum[4] = {0, 0, 0, 0};
    for (int col = 0; col < tile.group; col += Int4Tile::kBlockCols) {
      const LaneWords words =
          load_words(record + col / Int4Tile::kBlockCols * Int4Tile::kBlockBytes, lane);
      for (int i = 0; i < 4; ++i) {
        const int k = group * tile.group + col + i * Int4Tile::kTileCols;
        add_tile<kInstruction>(sum, words.of_tile[i], x, tile.cols, k, staged);
      }
    }
    const ColumnSums inputs = sum_columns(x, tile.cols, group * tile.group, tile.group, lane);
    for (int i = 0; i < 4; ++i) {
      const int row = strip * Int4Tile::kStripRows + lane / 4 + 8 * (i / 2);
      const auto* scale =
          reinterpret_cast<const std::uint16_t*>(packed + tile.scale_offset(row, group));
      total[i] +=
          bf16_to_f32(*scale) * (sum[i] / unit_of(i) - layout::kInt4CodeBias * inputs.of[i % 2]);
    }
  }
  if (own_strip != strip) return;
  float* rows = y + static_cast<std::int64_t>(strip) * Int4Tile::kStripRows * kProbeColumns;
  for (int i = 0; i < 4; ++i) result(rows, lane, i) = total[i];
}

// ---- keys and values ---------------------------------------------------------------------------

struct ScaleAndMinimum {
  float scale, minimum;
};
__device__ ScaleAndMinimum load_params(const std::uint8_t* packed, const KvPageInt4& page,
                                       KvPart part, int head, int token, int group) {
  const auto* params =
      reinterpret_cast<const std::uint16_t*>(packed + page.params_offset(part, head, token, group));
  return {f16_to_f32(params[0]), f16_to_f32(params[1])};
}

// One warp for each head and block of 16 tokens.
__global__ void multiply_keys_kernel(KvPageInt4 page, const std::uint8_t* packed,
                                     const std::uint16_t* q, float* s) {
  const int lane = static_cast<int>(threadIdx.x);
  const int head = static_cast<int>(blockIdx.x) / 4, block = static_cast<int>(blockIdx.x) % 4;
  const std::uint8_t* codes = packed + page.block_offset(KvPart::Key, head, block);
  float* rows =
      s + static_cast<std::int64_t>(blockIdx.x) * KvPageInt4::kBlockTokens * kProbeColumns;

  float total[4] = {0, 0, 0, 0};
  float sum[4] = {0, 0, 0, 0};
  for (int dim = 0; dim < page.head_dim; dim += Int4Tile::kTileCols) {
    const LaneWords words =
        load_words(codes + dim / Int4Tile::kBlockCols * Int4Tile::kBlockBytes, lane);
    std::uint32_t a[4], b[2];
    unpack(words.of_tile[dim % Int4Tile::kBlockCols / Int4Tile::kTileCols], a);
    load_b(q, page.head_dim, dim, lane, b);
    mma_m16n8k16(sum, a, b);
    if ((dim + Int4Tile::kTileCols) % page.kv_group != 0) continue;
    const int group = dim / page.kv_group;
    const ColumnSums inputs =
        sum_columns(q, page.head_dim, group * page.kv_group, page.kv_group, lane);
    for (int i = 0; i < 4; ++i) {
      const int token = block * KvPageInt4::kBlockTokens + lane / 4 + 8 * (i / 2);
      const ScaleAndMinimum of_token = load_params(packed, page, KvPart::Key, head, token, group);
      total[i] += of_token.minimum * inputs.of[i % 2] + of_token.scale * (sum[i] / unit_of(i));
      sum[i] = 0;
    }
  }
  for (int i = 0; i < 4; ++i) result(rows, lane, i) = total[i];
}

// What the minima of all tokens' values add up to, in one column.
__device__ float sum_minima(const std::uint8_t* packed, const KvPageInt4& page, int head, int group,
                            const std::uint16_t* p) {
  float sum = 0;
  for (int token = 0; token < layout::kPageTokens; ++token) {
    const float minimum = load_params(packed, page, KvPart::Value, head, token, group).minimum;
    sum += f16_to_f32(p[token]) * minimum;
  }
  return sum;
}

// One warp for each head and tile of 16 dims.
__global__ void multiply_values_kernel(KvPageInt4 page, const std::uint8_t* packed,
                                       const std::uint16_t* p, float* o) {
  const int lane = static_cast<int>(threadIdx.x);
  const int tiles = page.head_dim / Int4Tile::kTileCols;
  const int head = static_cast<int>(blockIdx.x) / tiles,
            tile = static_cast<int>(blockIdx.x) % tiles;
  const int group = tile * Int4Tile::kTileCols / page.kv_group;
  float* rows = o + static_cast<std::int64_t>(blockIdx.x) * Int4Tile::kTileCols * kProbeColumns;

  float sum[4] = {0, 0, 0, 0};
  for (int block = 0; block < layout::kPageTokens / KvPageInt4::kBlockTokens; ++block) {
    const LaneWords words = load_words(
        packed + page.block_offset(KvPart::Value, head, block) + tile / 4 * Int4Tile::kBlockBytes,
        lane);
    std::uint32_t a[4], b[2];
    unpack(words.of_tile[tile % 4], a);
    for (int r = 0; r < 2; ++r) {
      const int token = block * KvPageInt4::kBlockTokens + 2 * (lane % 4) + 8 * r;
      const std::uint16_t* weights = p + lane / 4 * layout::kPageTokens + token;
      std::uint32_t bits[2];
      for (int i = 0; i < 2; ++i) {
        const float scale = load_params(packed, page, KvPart::Value, head, token + i, group).scale;
        bits[i] = f32_to_f16(f16_to_f32(weights[i]) * scale);
      }
      b[r] = bits[0] | bits[1] << 16;
    }
    mma_m16n8k16(sum, a, b);
  }
  for (int i = 0; i < 4; ++i) {
    const int column = 2 * (lane % 4) + i % 2;
    result(rows, lane, i) =
        sum_minima(packed, page, head, group, p + column * layout::kPageTokens) +
        sum[i] / unit_of(i);
  }
}

// ---- conversions -------------------------------------------------------------------------------

struct Outcome {
  std::uint32_t instruction, header;
  std::uint32_t infinity;  // whose pattern beyond is a NaN, or 0 where NaNs are compared by bits

  [[nodiscard]] __device__ bool agree() const {
    const std::uint32_t all_but_sign = infinity > 0xFFFFU ? 0x7FFFFFFFU : 0x7FFFU;
    const bool both_nan = infinity != 0 && (instruction & all_but_sign) > infinity &&
                          (header & all_but_sign) > infinity;
    return both_nan || instruction == header;
  }
};

__device__ Outcome convert(Conversion conversion, std::uint32_t input) {
  constexpr std::uint32_t kInfinityF16 = 0x7C00, kInfinityBf16 = 0x7F80, kInfinityF32 = 0x7F800000;
  const float value = std::bit_cast<float>(input);
  const auto bits = static_cast<std::uint16_t>(input);
  switch (conversion) {
    case Conversion::F32ToE4m3:  // 1.0 in the upper half shows which operand goes where
      return {cvt_e4m3x2(1.0F, value), 0x3800U | f32_to_e4m3(value), 0};
    case Conversion::F32ToF16:
      return {cvt_f16(value), f32_to_f16(value), kInfinityF16};
    case Conversion::F32ToBf16:
      return {cvt_bf16(value), f32_to_bf16(value), kInfinityBf16};
    case Conversion::E4m3ToF16: {
      const auto low =
          static_cast<std::uint16_t>(cvt_f16x2(static_cast<std::uint16_t>(0x3800U | bits)));
      return {std::bit_cast<std::uint32_t>(cvt_f32(low)),
              std::bit_cast<std::uint32_t>(e4m3_to_f32(static_cast<std::uint8_t>(bits))),
              kInfinityF32};
    }
    case Conversion::F16ToF32:
      return {std::bit_cast<std::uint32_t>(cvt_f32(bits)),
              std::bit_cast<std::uint32_t>(f16_to_f32(bits)), kInfinityF32};
  }
  return {};
}

struct Found {
  unsigned long long count;
  std::uint32_t first;
  Outcome of_first;
};

__global__ void compare_kernel(Conversion conversion, std::uint64_t inputs, Found* found) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < inputs;
       i += step) {
    if (convert(conversion, static_cast<std::uint32_t>(i)).agree()) continue;
    atomicAdd(&found->count, 1ULL);
    atomicMin(&found->first, static_cast<std::uint32_t>(i));
  }
}

__global__ void show_first_kernel(Conversion conversion, Found* found) {
  found->of_first = convert(conversion, found->first);
}

// ---- launching ---------------------------------------------------------------------------------

void require(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

// Device memory for the length of one call.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t size) : size_(size) {
    require(cudaMalloc(&data_, size * sizeof(T)), "cudaMalloc");
  }
  explicit DeviceArray(std::span<const T> values) : DeviceArray(values.size()) {
    require(cudaMemcpy(data_, values.data(), values.size_bytes(), cudaMemcpyHostToDevice),
            "upload");
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  [[nodiscard]] T* data() const { return data_; }

  // Waits for the kernel that was launched before.
  [[nodiscard]] std::vector<T> download() const {
    require(cudaGetLastError(), "kernel launch");
    std::vector<T> values(size_);
    require(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
            "download");
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

template <Instruction kInstruction>
void launch_weights(const Int4Tile& tile, const std::uint8_t* packed, const std::uint16_t* x,
                    float* y) {
  const int blocks = (tile.num_strips() + kWarps - 1) / kWarps;
  multiply_weights_kernel<kInstruction><<<blocks, kWarps * kLanes>>>(tile, packed, x, y);
}

}  // namespace

std::string gpu_missing() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) return std::string("no GPU: ") + cudaGetErrorString(status);
  if (count == 0) return "no GPU";
  int major = 0, minor = 0;
  require(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "device attribute");
  require(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), "device attribute");
  if (major == 9 && minor == 0) return {};
  return "the GPU has compute capability " + std::to_string(major) + "." + std::to_string(minor) +
         ", this program was compiled for 9.0";
}

std::vector<float> multiply_weights(const Int4Tile& tile, std::span<const std::uint8_t> packed,
                                    std::span<const std::uint16_t> x, Instruction instruction) {
  if (tile.cols > kProbeMaxCols) throw std::runtime_error("multiply_weights: matrix too wide");
  const DeviceArray<std::uint8_t> packed_there(packed);
  const DeviceArray<std::uint16_t> x_there(x);
  const DeviceArray<float> y(static_cast<std::size_t>(tile.num_strips()) * Int4Tile::kStripRows *
                             kProbeColumns);
  if (instruction == Instruction::Mma) {
    launch_weights<Instruction::Mma>(tile, packed_there.data(), x_there.data(), y.data());
  } else {
    launch_weights<Instruction::Wgmma>(tile, packed_there.data(), x_there.data(), y.data());
  }
  return y.download();
}

std::vector<float> multiply_keys(const KvPageInt4& page, std::span<const std::uint8_t> packed,
                                 std::span<const std::uint16_t> q) {
  const DeviceArray<std::uint8_t> packed_there(packed);
  const DeviceArray<std::uint16_t> q_there(q);
  const int blocks = page.num_kv_heads * (layout::kPageTokens / KvPageInt4::kBlockTokens);
  const DeviceArray<float> s(static_cast<std::size_t>(blocks) * KvPageInt4::kBlockTokens *
                             kProbeColumns);
  multiply_keys_kernel<<<blocks, kLanes>>>(page, packed_there.data(), q_there.data(), s.data());
  return s.download();
}

std::vector<float> multiply_values(const KvPageInt4& page, std::span<const std::uint8_t> packed,
                                   std::span<const std::uint16_t> p) {
  const DeviceArray<std::uint8_t> packed_there(packed);
  const DeviceArray<std::uint16_t> p_there(p);
  const int blocks = page.num_kv_heads * (page.head_dim / Int4Tile::kTileCols);
  const DeviceArray<float> o(static_cast<std::size_t>(blocks) * Int4Tile::kTileCols *
                             kProbeColumns);
  multiply_values_kernel<<<blocks, kLanes>>>(page, packed_there.data(), p_there.data(), o.data());
  return o.download();
}

Disagreement compare_conversion(Conversion conversion) {
  const std::uint64_t inputs = conversion == Conversion::E4m3ToF16  ? std::uint64_t{1} << 8
                               : conversion == Conversion::F16ToF32 ? std::uint64_t{1} << 16
                                                                    : std::uint64_t{1} << 32;
  const Found nothing{0, 0xFFFFFFFFU, {}};
  const DeviceArray<Found> found(std::span<const Found>(&nothing, 1));
  compare_kernel<<<1024, 256>>>(conversion, inputs, found.data());
  show_first_kernel<<<1, 1>>>(conversion, found.data());
  const Found result = found.download().front();
  return {inputs, result.count, result.first, result.of_first.instruction, result.of_first.header};
}

}  // namespace fut::test
