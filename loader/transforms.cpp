// Rotations work on a few rows or columns at a time in float64. Powers of two are looked at before
// they are applied, so that a refusal leaves the weights as they were.
#include "loader/transforms.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fut {
namespace {

// Rows or columns that are rotated at a time.
constexpr std::int64_t kRotatedAtOnce = 8;

void check_blocks(const HostMatrix& w, std::int64_t width, std::string_view what,
                  const Rotation& r) {
  if (width % r.size() != 0) {
    throw data_error("{}: {} {} are no multiple of the {} channels that are rotated together",
                     w.name, width, what, r.size());
  }
}

// ---- exponents --------------------------------------------------------------------------------

// The shifts that leave a set of weights in the normal range, which BF16 shares with float32.
struct ShiftRange {
  static constexpr int kAny = 1 << 20;
  int lowest = -kAny, highest = kAny;

  // Its counterpart is shifted the other way.
  [[nodiscard]] ShiftRange meet_opposite(const ShiftRange& other) const {
    return {std::max(lowest, -other.highest), std::min(highest, -other.lowest)};
  }
  // Weights that are out of range already stay as they are.
  [[nodiscard]] int cut(int shift) const {
    return lowest > 0 || highest < 0 ? 0 : std::clamp(shift, lowest, highest);
  }
};

// The sizes of a set of weights, zeros apart.
struct SizeRange {
  float least = std::numeric_limits<float>::infinity(), largest = 0;

  void admit(float value) {
    const float size = std::fabs(value);
    least = size > 0 ? std::min(least, size) : least;
    largest = std::max(largest, size);
  }
  void admit_row(const HostMatrix& w, std::int64_t row) {
    for (std::int64_t c = 0; c < w.cols; ++c) admit(w.row(row)[c]);
  }
  [[nodiscard]] ShiftRange shifts() const {
    if (largest == 0) return {};
    return {std::numeric_limits<float>::min_exponent - 1 - std::ilogb(least),
            std::numeric_limits<float>::max_exponent - 1 - std::ilogb(largest)};
  }
};

// log2(divided / scaled) / 4, less its median, rounded. A channel that is always zero on one side
// is left alone and left out.
std::vector<int> even_out(std::span<const double> scaled, std::span<const double> divided) {
  std::vector<int> exponents(scaled.size());
  std::vector<double> logs, sorted;
  const auto alive = [&](std::size_t i) { return scaled[i] > 0 && divided[i] > 0; };
  for (std::size_t i = 0; i < scaled.size(); ++i) {
    logs.push_back(alive(i) ? (std::log2(divided[i]) - std::log2(scaled[i])) / 4 : 0);
    if (alive(i)) sorted.push_back(logs.back());
  }
  if (sorted.empty()) return exponents;
  const auto middle = sorted.begin() + std::ssize(sorted) / 2;
  std::ranges::nth_element(sorted, middle);
  for (std::size_t i = 0; i < logs.size(); ++i) {
    if (alive(i)) exponents[i] = static_cast<int>(std::lround(logs[i] - *middle));
  }
  return exponents;
}

// Multiplies the row by 2^shift, or only looks whether it can.
enum class Mode { Check, Apply };

void shift_value(HostMatrix& w, std::int64_t row, std::int64_t col, int shift, Mode mode) {
  if (shift == 0) return;
  float& value = w.row(row)[col];
  const float shifted = std::ldexp(value, shift);
  if (mode == Mode::Apply) {
    value = shifted;
  } else if (value != 0 && !std::isnormal(shifted)) {
    throw data_error(
        "{}: row {}, column {}: {} times 2^{} leaves the range of BF16; switch the balancing off",
        w.name, row, col, value, shift);
  }
}

void shift_row(HostMatrix& w, std::int64_t row, int shift, Mode mode) {
  for (std::int64_t c = 0; c < w.cols; ++c) shift_value(w, row, c, shift, mode);
}

// Rows of q_proj and k_proj that a pair of a KV head touches.
struct PairRows {
  std::vector<std::int64_t> k, q;
};

PairRows pair_rows(const AttentionShape& shape, int kv_head, int pair) {
  PairRows rows;
  const int group = shape.num_q_heads / shape.num_kv_heads;
  for (const int dim : {pair, pair + shape.head_dim / 2}) {
    rows.k.push_back(static_cast<std::int64_t>(kv_head) * shape.head_dim + dim);
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      rows.q.push_back(static_cast<std::int64_t>(head) * shape.head_dim + dim);
    }
  }
  return rows;
}

void check_attention(const HostMatrix& q_proj, const HostMatrix& k_proj,
                     const AttentionShape& shape) {
  FUT_CHECK(shape.num_kv_heads > 0 && shape.num_q_heads % shape.num_kv_heads == 0 &&
                shape.head_dim % 2 == 0,
            "{} query heads, {} KV heads of {}", shape.num_q_heads, shape.num_kv_heads,
            shape.head_dim);
  FUT_CHECK(q_proj.rows == static_cast<std::int64_t>(shape.num_q_heads) * shape.head_dim &&
                k_proj.rows == static_cast<std::int64_t>(shape.num_kv_heads) * shape.head_dim,
            "{} has {} rows, {} has {}", q_proj.name, q_proj.rows, k_proj.name, k_proj.rows);
}

double sum_at(std::span<const double> energies, const std::vector<std::int64_t>& rows) {
  double sum = 0;
  for (const std::int64_t row : rows) sum += energies[static_cast<std::size_t>(row)];
  return sum;
}

}  // namespace

// ---- gains --------------------------------------------------------------------------------------

void fold_gain(HostMatrix& reader, std::span<const float> gain, const ParallelFor& parallel_for) {
  FUT_CHECK(std::ssize(gain) == reader.cols, "{} gains for the {} columns of {}", gain.size(),
            reader.cols, reader.name);
  run_parallel(parallel_for, reader.rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t c = 0; c < reader.cols; ++c) {
        reader.row(r)[c] *= gain[static_cast<std::size_t>(c)];
      }
    }
  });
}

// ---- rotations ----------------------------------------------------------------------------------

void rotate_inputs(HostMatrix& w, const Rotation& r, const ParallelFor& parallel_for) {
  check_blocks(w, w.cols, "columns", r);
  const std::int64_t num_chunks = (w.rows + kRotatedAtOnce - 1) / kRotatedAtOnce;
  run_parallel(parallel_for, num_chunks, [&](std::int64_t begin, std::int64_t end) {
    std::vector<double> rows;
    for (std::int64_t chunk = begin; chunk < end; ++chunk) {
      const std::int64_t first = chunk * kRotatedAtOnce;
      const std::int64_t count = std::min(kRotatedAtOnce, w.rows - first);
      rows.assign(w.row(first), w.row(first + count));
      r.apply({rows.data(), count * (w.cols / r.size()), r.size(), r.size()});
      std::ranges::transform(rows, w.row(first), [](double v) { return static_cast<float>(v); });
    }
  });
}

void rotate_outputs(HostMatrix& w, const Rotation& r, const ParallelFor& parallel_for) {
  check_blocks(w, w.rows, "rows", r);
  const std::int64_t num_chunks = (w.cols + kRotatedAtOnce - 1) / kRotatedAtOnce;
  run_parallel(parallel_for, num_chunks, [&](std::int64_t begin, std::int64_t end) {
    std::vector<double> columns(static_cast<std::size_t>(kRotatedAtOnce * w.rows));
    for (std::int64_t chunk = begin; chunk < end; ++chunk) {
      const std::int64_t first = chunk * kRotatedAtOnce;
      const std::int64_t count = std::min(kRotatedAtOnce, w.cols - first);
      for (std::int64_t row = 0; row < w.rows; ++row) {
        for (std::int64_t c = 0; c < count; ++c) {
          columns[static_cast<std::size_t>(c * w.rows + row)] = w.row(row)[first + c];
        }
      }
      r.apply({columns.data(), count * (w.rows / r.size()), r.size(), r.size()});
      for (std::int64_t row = 0; row < w.rows; ++row) {
        for (std::int64_t c = 0; c < count; ++c) {
          w.row(row)[first + c] =
              static_cast<float>(columns[static_cast<std::size_t>(c * w.rows + row)]);
        }
      }
    }
  });
}

// ---- powers of two ------------------------------------------------------------------------------

std::vector<double> output_energies(const HostMatrix& w, std::span<const float> input_energies) {
  FUT_CHECK(input_energies.empty() || std::ssize(input_energies) == w.cols,
            "{} energies for the {} columns of {}", input_energies.size(), w.cols, w.name);
  std::vector<double> energies(static_cast<std::size_t>(w.rows));
  for (std::int64_t r = 0; r < w.rows; ++r) {
    for (std::int64_t c = 0; c < w.cols; ++c) {
      const double value = w.row(r)[c];
      const double input =
          input_energies.empty() ? 1.0 : input_energies[static_cast<std::size_t>(c)];
      energies[static_cast<std::size_t>(r)] += value * value * input;
    }
  }
  return energies;
}

std::vector<int> choose_qk_exponents(const HostMatrix& q_proj, const HostMatrix& k_proj,
                                     const AttentionShape& shape,
                                     std::span<const double> q_energies,
                                     std::span<const double> k_energies,
                                     const ParallelFor& parallel_for) {
  check_attention(q_proj, k_proj, shape);
  FUT_CHECK(std::ssize(q_energies) == q_proj.rows && std::ssize(k_energies) == k_proj.rows,
            "{} and {} energies for {} and {} rows", q_energies.size(), k_energies.size(),
            q_proj.rows, k_proj.rows);
  const int pairs = shape.head_dim / 2;
  std::vector<int> exponents(static_cast<std::size_t>(shape.num_kv_heads * pairs));
  for (int head = 0; head < shape.num_kv_heads; ++head) {
    std::vector<double> k, q;
    for (int pair = 0; pair < pairs; ++pair) {
      const PairRows rows = pair_rows(shape, head, pair);
      k.push_back(sum_at(k_energies, rows.k));
      q.push_back(sum_at(q_energies, rows.q));
    }
    std::ranges::copy(even_out(k, q), exponents.begin() + std::ptrdiff_t{head} * pairs);
  }
  run_parallel(parallel_for, std::ssize(exponents), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const PairRows rows =
          pair_rows(shape, static_cast<int>(i) / pairs, static_cast<int>(i) % pairs);
      SizeRange of_k, of_q;
      for (const std::int64_t row : rows.k) of_k.admit_row(k_proj, row);
      for (const std::int64_t row : rows.q) of_q.admit_row(q_proj, row);
      int& exponent = exponents[static_cast<std::size_t>(i)];
      exponent = of_k.shifts().meet_opposite(of_q.shifts()).cut(exponent);
    }
  });
  return exponents;
}

std::vector<std::int32_t> qk_row_exponents(const AttentionShape& shape,
                                           std::span<const int> exponents) {
  const int pairs = shape.head_dim / 2;
  const std::int64_t q_rows = std::int64_t{shape.num_q_heads} * shape.head_dim;
  const std::int64_t k_rows = std::int64_t{shape.num_kv_heads} * shape.head_dim;
  FUT_CHECK(std::ssize(exponents) == k_rows / 2, "{} exponents for {} rows of keys",
            exponents.size(), k_rows);
  std::vector<std::int32_t> of_rows(static_cast<std::size_t>(q_rows + k_rows));
  for (int head = 0; head < shape.num_kv_heads; ++head) {
    for (int pair = 0; pair < pairs; ++pair) {
      const PairRows rows = pair_rows(shape, head, pair);
      const int shift = exponents[static_cast<std::size_t>(head * pairs + pair)];
      for (const std::int64_t row : rows.k) of_rows[static_cast<std::size_t>(q_rows + row)] = shift;
      for (const std::int64_t row : rows.q) of_rows[static_cast<std::size_t>(row)] = -shift;
    }
  }
  return of_rows;
}

void apply_qk_exponents(HostMatrix& q_proj, HostMatrix& k_proj, const AttentionShape& shape,
                        std::span<const int> exponents) {
  check_attention(q_proj, k_proj, shape);
  const std::vector<std::int32_t> shifts = qk_row_exponents(shape, exponents);
  for (const Mode mode : {Mode::Check, Mode::Apply}) {
    for (std::int64_t r = 0; r < std::ssize(shifts); ++r) {
      const int shift = shifts[static_cast<std::size_t>(r)];
      if (r < q_proj.rows) {
        shift_row(q_proj, r, shift, mode);
      } else {
        shift_row(k_proj, r - q_proj.rows, shift, mode);
      }
    }
  }
}

std::vector<int> choose_up_down_exponents(const HostMatrix& up_proj, const HostMatrix& down_proj,
                                          std::span<const double> swiglu_energies,
                                          const ParallelFor& parallel_for) {
  FUT_CHECK(up_proj.rows == down_proj.cols && std::ssize(swiglu_energies) == up_proj.rows,
            "{} rows of {}, {} columns of {}, {} energies", up_proj.rows, up_proj.name,
            down_proj.cols, down_proj.name, swiglu_energies.size());
  const auto size = static_cast<std::size_t>(up_proj.rows);
  std::vector<double> columns(size);
  std::vector<ShiftRange> of_down(size), of_up(size);
  run_parallel(parallel_for, up_proj.rows, [&](std::int64_t begin, std::int64_t end) {
    std::vector<SizeRange> sizes(static_cast<std::size_t>(end - begin));
    for (std::int64_t r = 0; r < down_proj.rows; ++r) {
      for (std::int64_t c = begin; c < end; ++c) {
        const float value = down_proj.row(r)[c];
        columns[static_cast<std::size_t>(c)] += static_cast<double>(value) * value;
        sizes[static_cast<std::size_t>(c - begin)].admit(value);
      }
    }
    for (std::int64_t c = begin; c < end; ++c) {
      of_down[static_cast<std::size_t>(c)] = sizes[static_cast<std::size_t>(c - begin)].shifts();
      SizeRange row;
      row.admit_row(up_proj, c);
      of_up[static_cast<std::size_t>(c)] = row.shifts();
    }
  });
  std::vector<int> exponents = even_out(swiglu_energies, columns);
  for (std::size_t j = 0; j < size; ++j) {
    exponents[j] = of_up[j].meet_opposite(of_down[j]).cut(exponents[j]);
  }
  return exponents;
}

void apply_up_down_exponents(HostMatrix& up_proj, HostMatrix& down_proj,
                             std::span<const int> exponents) {
  FUT_CHECK(up_proj.rows == down_proj.cols && std::ssize(exponents) == up_proj.rows,
            "{} rows of {}, {} columns of {}, {} exponents", up_proj.rows, up_proj.name,
            down_proj.cols, down_proj.name, exponents.size());
  for (const Mode mode : {Mode::Check, Mode::Apply}) {
    for (std::int64_t j = 0; j < up_proj.rows; ++j) {
      shift_row(up_proj, j, exponents[static_cast<std::size_t>(j)], mode);
    }
    for (std::int64_t r = 0; r < down_proj.rows; ++r) {
      for (std::int64_t c = 0; c < down_proj.cols; ++c) {
        shift_value(down_proj, r, c, -exponents[static_cast<std::size_t>(c)], mode);
      }
    }
  }
}

}  // namespace fut
