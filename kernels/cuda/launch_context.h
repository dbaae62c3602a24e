// What the ops of one device share beside their arguments: the stream that they run in, what the chip
// runs at a time, memory for intermediate results, counters. One for each backend. Includes no CUDA
// header.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/attention_decode.h"
#include "kernels/cuda/int4_gemm_plan.h"
#include "kernels/cuda/runtime.h"

namespace fut::cuda {

// Whose scratch memory; each op has its own, so that neighbouring launches may overlap.
enum class ScratchUse {
  SwigluNumbers,
  SwigluProgress,
  RowOperand,
  Int4Operand,
  PromptSums,
  AttentionTiles,
  AttentionParts,
  AttentionParked,
  AttentionArrivals,
  AttentionHistory,
  AttentionQueries,
  kCount
};

class LaunchContext {
 public:
  // Of the current device. long_context 0: kLongContext.
  explicit LaunchContext(int long_context = 0);

  [[nodiscard]] const Stream& stream() const { return stream_; }
  [[nodiscard]] StreamHandle handle() const { return stream_.handle(); }
  [[nodiscard]] const Int4GemmMachine& machine() const { return machine_; }
  // How a decode step is handed out whose longest context has at most so many tokens.
  [[nodiscard]] AttentionContexts attention_contexts(int longest_context) const {
    return longest_context < long_context_ ? AttentionContexts::Short : AttentionContexts::Long;
  }

  // At least `bytes`, zeros when first handed out, at an address that stays as long as nobody asks for
  // more; what was handed out before stays valid, for recorded launches still use it. May be called
  // while a graph is recorded. Throws Capacity.
  [[nodiscard]] void* scratch(ScratchUse use, std::size_t bytes);

  // [3] in device memory, in the order of SaturationCounts.
  [[nodiscard]] std::uint64_t* saturations() const { return saturations_.as<std::uint64_t>(); }

 private:
  Stream stream_;
  Int4GemmMachine machine_;
  int long_context_;
  DeviceMemory saturations_;
  // All that was ever handed out; the last of each use is the one that counts.
  std::array<std::vector<DeviceMemory>, static_cast<std::size_t>(ScratchUse::kCount)> scratch_;
};

}  // namespace fut::cuda
