// Two rows of logits for the same token: how far apart they are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace fut::app {

struct Divergence {
  double kl = 0;  // of the second from the first, nats
  std::int32_t best[2] = {0, 0};
  double probability[2] = {0, 0};  // of the token that follows
  std::vector<std::int32_t> gone,
      come;  // of the first's five best, and new ones among the second's
};

// `next` is the token that followed. Rows of one size.
[[nodiscard]] Divergence divergence(std::span<const float> first, std::span<const float> second,
                                    std::int32_t next);

}  // namespace fut::app
