// Which instances of the INT4 main loop there are: the one list, for launchers, plans and tests.
#pragma once

#include <array>
#include <type_traits>

#include "kernels/cuda/int4_gemm_plan.h"

namespace fut::cuda {

// With an exchange: tiles of 8 tokens, segments of K a warp.
inline constexpr std::array kInt4ExchangeTiles = {1, 2, 4};
inline constexpr std::array kInt4ExchangeSegments = {2, 4, 8};

// Calls fn(instance) with the Int4GemmConfig that has these values; false: there is none.
template <int kGroup, class Fn>
[[nodiscard]] bool with_int4_instance(const Int4GemmConfigValues& values, const Fn& fn) {
  const auto try_one = [&](auto config) {
    if (decltype(config)::kValues != values) return false;
    fn(config);
    return true;
  };
  const auto try_tiles = [&](auto tiles) {
    constexpr int kTiles = decltype(tiles)::value;
    return try_one(Int4GemmConfig<kTiles, 2, 1, true, kGroup>{}) ||
           try_one(Int4GemmConfig<kTiles, 4, 1, true, kGroup>{}) ||
           try_one(Int4GemmConfig<kTiles, 8, 1, true, kGroup>{});
  };
  return try_one(Int4GemmConfig<1, 1, 2, false, kGroup>{}) ||
         try_one(Int4GemmConfig<1, 1, 4, false, kGroup>{}) ||
         try_tiles(std::integral_constant<int, 1>{}) ||
         try_tiles(std::integral_constant<int, 2>{}) || try_tiles(std::integral_constant<int, 4>{});
}

// The same for both sizes of groups.
template <class Fn>
[[nodiscard]] bool with_int4_instance(int group, const Int4GemmConfigValues& values, const Fn& fn) {
  return group == 128 ? with_int4_instance<128>(values, fn) : with_int4_instance<64>(values, fn);
}

}  // namespace fut::cuda
