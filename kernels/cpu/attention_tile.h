// A tile of attention: a few neighbouring tokens of one sequence and the query heads of theirs that
// read one KV head. All of them go through the keys together, so that whatever has to be widened or
// unpacked serves them all. What is the same for every type of cache; not where keys come from.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/vector_loops.h"
#include "kernels/ops.h"

namespace fut::cpu {

// Rows of a tile are (token, head), heads running faster.
struct Tile {
  int sequence = 0;
  std::int64_t first_token = 0;
  int num_tokens = 0;
  std::int64_t first_position = 0;  // of first_token
  int first_q_head = 0;
  int num_heads = 0;
  int kv_head = 0;

  [[nodiscard]] int rows() const { return num_tokens * num_heads; }
  // How many keys token t of the tile looks at: those of positions below.
  [[nodiscard]] std::int64_t visible(int t) const { return first_position + t + 1; }
  [[nodiscard]] std::int64_t num_keys() const { return visible(num_tokens - 1); }
};

// All tiles of a step; a result never depends on the cut.
class Tiling {
 public:
  Tiling(const AttentionArgs& a, int num_threads);
  [[nodiscard]] std::int64_t size() const {
    return static_cast<std::int64_t>(spans_.size()) * groups_per_token_;
  }
  [[nodiscard]] Tile at(std::int64_t i) const;
  [[nodiscard]] int max_rows() const { return tokens_per_tile_ * heads_per_group_; }
  // Scores of the largest tile.
  [[nodiscard]] std::int64_t max_scores() const { return max_rows() * longest_; }

 private:
  struct Span {
    int sequence = 0;
    std::int64_t first_token = 0;
    int num_tokens = 0;
    std::int64_t first_position = 0;
  };
  std::vector<Span> spans_;
  int heads_per_kv_head_;
  int heads_per_group_;
  int groups_per_token_;
  int tokens_per_tile_;
  std::int64_t longest_;  // sequence
};

inline constexpr std::int64_t kChunkKeys = layout::kPageTokens;  // keys at a time

// One thread's memory, all of it undefined between tiles.
struct TileMemory {
  float* q = nullptr;       // [rows, D]
  float* sums = nullptr;    // [2, rows]
  float* out = nullptr;     // [3, rows, D]
  float* keys = nullptr;    // [kChunkKeys, D]: keys or values at hand
  float* spare = nullptr;   // [groups, rows, 16]: what coded keys need besides
  float* scores = nullptr;  // [rows, num_keys]
};
[[nodiscard]] std::int64_t tile_memory_elements(const Tiling& tiling, const AttentionArgs& a);
[[nodiscard]] TileMemory tile_memory(const Tiling& tiling, const AttentionArgs& a, float* first);

// a.q of the tile to memory.q: rotated if asked for, rounded to BF16 if `round`.
void load_queries(const AttentionArgs& a, const Tile& tile, bool round, float* q);

// scores[row, i] = exp(scores[row, i] / sqrt(D) - their maximum) over the keys that the row sees.
void softmax_numerators(const VectorLoops& loops, const Tile& tile, int head_dim, float* scores);

// sums[row] += p[row, i] for i in [first, end) as far as the row sees them, ascending.
void add_probabilities(const Tile& tile, const float* p, std::int64_t first, std::int64_t end,
                       float* sums);

// p[row, first .. end - 1] rounded to BF16.
void round_probabilities(const Tile& tile, std::int64_t first, std::int64_t end, float* p);

// sums[row, d] += p[row, first + i] * values[i, d], i < count, as far as the row sees them.
void add_values(const VectorLoops& loops, const Tile& tile, const float* p, std::int64_t first,
                std::int64_t count, const float* values, int head_dim, float* sums);

// a.out of the tile = T(numerators[row, d] / sums[row]). Returns how many numbers E4M3 had to
// saturate.
std::int64_t store_outputs(const AttentionArgs& a, const Tile& tile, const float* numerators,
                           const float* sums);

}  // namespace fut::cpu
