// Attention of one query head, slowly.
#include "tests/support/attention_reference.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/dot.h"
#include "kernels/cpu/vector_loops.h"
#include "tests/support/backends.h"

namespace fut::test {
namespace {

std::size_t group_of(const CachedRow& row, std::size_t dim) {
  return dim / (row.codes.size() / row.scales.size());
}

// ---- float32, in the contract's order ----------------------------------------------------------

// A coded number as a prefill reads it.
float widened(const CachedRow& row, std::size_t dim) {
  if (!row.is_coded()) return row.numbers[dim];
  const std::size_t group = group_of(row, dim);
  const float scaled = row.scales[group] * row.codes[dim];
  return rounded_to(DType::BF16, row.minima[group] + scaled);
}

float score(const AttentionCase& c, const CachedRow& key) {
  const std::size_t dims = c.query.size();
  if (c.kind != AttentionNumbers::Factored || !key.is_coded()) {
    std::vector<float> row;
    for (std::size_t d = 0; d < dims; ++d) row.push_back(widened(key, d));
    return cpu::dot(c.query.data(), row.data(), static_cast<std::int64_t>(dims));
  }
  const std::size_t group_dims = dims / key.scales.size();
  const std::vector<float> ones(group_dims, 1.0F);
  float sum = 0;
  for (std::size_t group = 0; group < key.scales.size(); ++group) {
    const float* q = c.query.data() + group * group_dims;
    const float* u = key.codes.data() + group * group_dims;
    const auto cols = static_cast<std::int64_t>(group_dims);
    sum += key.scales[group] * cpu::dot(u, q, cols) +
           key.minima[group] * cpu::dot(ones.data(), q, cols);
  }
  return sum;
}

// exp(score - maximum) of every key.
std::vector<float> probabilities(const AttentionCase& c) {
  const float scale = 1.0F / std::sqrt(static_cast<float>(c.query.size()));
  std::vector<float> p;
  for (const CachedRow& key : c.keys) p.push_back(score(c, key) * scale);
  const float maximum = *std::max_element(p.begin(), p.end());
  // Every build of the loops gives the same bits; another test holds them to exp().
  cpu::usable_vector_loops().front()->exponentials(p.data(), static_cast<std::int64_t>(p.size()),
                                                   maximum);
  return p;
}

}  // namespace

std::vector<float> contract_attention(const AttentionCase& c) {
  const bool factored = c.kind == AttentionNumbers::Factored;
  const std::vector<float> p = probabilities(c);
  float coded_sum = 0;
  float raw_sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    float& sum = factored && c.keys[i].is_coded() ? coded_sum : raw_sum;
    sum += p[i];
  }
  std::vector<float> out;
  for (std::size_t d = 0; d < c.query.size(); ++d) {
    float codes = 0;
    float minima = 0;
    float raw = 0;
    for (std::size_t i = 0; i < p.size(); ++i) {
      const CachedRow& value = c.values[i];
      if (factored && value.is_coded()) {
        const std::size_t group = group_of(value, d);
        codes += rounded_to(DType::F16, p[i] * value.scales[group]) * value.codes[d];
        minima += p[i] * value.minima[group];
      } else {
        const float weight =
            c.kind == AttentionNumbers::Plain ? p[i] : rounded_to(DType::BF16, p[i]);
        raw += weight * widened(value, d);
      }
    }
    out.push_back(((codes + minima) + raw) / (coded_sum + raw_sum));
  }
  return out;
}

// ---- bounds ------------------------------------------------------------------------------------

Bounded narrowed(const Bounded& value, DType dtype) {
  // Half a step of the type, relative for normal numbers and absolute for subnormals.
  double relative = kUnitRoundoff;
  double absolute = 0x1p-150;
  if (dtype == DType::BF16) {
    relative = 0x1p-8;
    absolute = 0x1p-134;
  } else if (dtype == DType::F16) {
    relative = 0x1p-11;
    absolute = 0x1p-25;
  } else if (dtype == DType::E4M3) {
    relative = 0x1p-4;
    absolute = 0x1p-10;
  }
  return {value.value, value.error + relative * (std::fabs(value.value) + value.error) + absolute};
}

namespace {

Bounded bounded_number(const AttentionCase& c, const CachedRow& row, std::size_t dim) {
  if (!row.is_coded()) return row.numbers[dim];
  // Every step of widening is given: no bit of it may differ.
  if (c.order == SumOrder::Tiles) return widened(row, dim);
  const std::size_t group = group_of(row, dim);
  const Bounded number =
      Bounded(row.minima[group]) + Bounded(row.scales[group]) * Bounded(row.codes[dim]);
  return narrowed(number, DType::BF16);
}

// ---- SumOrder::Tiles

// A tensor core adds 16 products of BF16, which are exact, to a sum. It aligns these 17 addends to the
// largest and cuts each off at that one's last place, then the result once more: 18 times at most a
// unit, which is two roundings, of no more than the sum of all magnitudes.
constexpr int kAddedAtATime = 16;
constexpr int kTensorCoreRoundings = 2 * 18;

// Tensor core additions that a term passes where there are `terms` of them.
int tensor_core_roundings(std::size_t terms) {
  return static_cast<int>((terms + kAddedAtATime - 1) / kAddedAtATime) * kTensorCoreRoundings;
}

constexpr int kTileKeys = 2 * layout::kPageTokens;

int num_tiles(const AttentionCase& c) {
  return static_cast<int>((c.keys.size() + kTileKeys - 1) / kTileKeys);
}

// 2^x as the GPU has it is wrong by two units at most, one more than the contract's exponential.
constexpr double kExponentialUnits = 4 * kUnitRoundoff;

// A probability, and what became of it in the end: with each tile after it its sums are multiplied by the
// exponential of how much the maximum grew. The arguments are differences that add up to score minus last
// maximum and all have one sign, so that their roundings add up to that of the one difference. That the
// score is multiplied with log2(e) / sqrt(D), rounded once, and not with two roundings of 1 / sqrt(D),
// adds none.
Bounded rescaled(const AttentionCase& c, const Bounded& p) {
  const double units = kExponentialUnits * num_tiles(c);
  return {p.value, p.error + (p.value + p.error) * std::expm1(units)};
}

// Roundings that a term passes in the sum of probabilities: a lane adds its 32 of a tile in two chains and
// these to each other, multiplies what it has and adds them to it; four lanes are added in the end.
int sum_roundings(const AttentionCase& c) {
  if (c.order == SumOrder::Contract) return static_cast<int>(c.keys.size()) + 1;
  return kTileKeys / 8 + 1 + 2 * num_tiles(c) + 2;
}

// And in a sum of values: the additions of all tiles, a multiplication with each.
int value_roundings(const AttentionCase& c, std::size_t terms) {
  if (c.order == SumOrder::Contract) return static_cast<int>(terms) + 1;
  return num_tiles(c) * (tensor_core_roundings(kTileKeys) + 1);
}

Bounded bounded_score(const AttentionCase& c, const CachedRow& key) {
  const std::vector<Bounded> query(c.query.begin(), c.query.end());
  if (c.kind != AttentionNumbers::Factored || !key.is_coded()) {
    std::vector<Bounded> row;
    for (std::size_t d = 0; d < query.size(); ++d) row.push_back(bounded_number(c, key, d));
    return c.order == SumOrder::Contract ? contract_dot(query, row)
                                         : dot(query, row, tensor_core_roundings(row.size()));
  }
  const std::size_t group_dims = query.size() / key.scales.size();
  const std::vector<Bounded> ones(group_dims, Bounded(1.0F));
  const std::vector<Bounded> codes(key.codes.begin(), key.codes.end());
  Bounded sum;
  for (std::size_t group = 0; group < key.scales.size(); ++group) {
    const auto q = std::span(query).subspan(group * group_dims, group_dims);
    const auto u = std::span(codes).subspan(group * group_dims, group_dims);
    sum = sum + (Bounded(key.scales[group]) * contract_dot(u, q) +
                 Bounded(key.minima[group]) * contract_dot(ones, q));
  }
  return sum;
}

std::vector<Bounded> bounded_probabilities(const AttentionCase& c) {
  const Bounded scale = Bounded(1.0F) / sqrt(Bounded(static_cast<float>(c.query.size())));
  std::vector<Bounded> scores;
  for (const CachedRow& key : c.keys) scores.push_back(bounded_score(c, key) * scale);
  double maximum = -INFINITY;
  for (const Bounded& s : scores) maximum = std::max(maximum, s.value);
  // Any number may be taken from all scores: it cancels in the quotient. So the maximum carries no
  // error of its own here.
  std::vector<Bounded> p;
  for (const Bounded& s : scores) {
    const Bounded one = exp(s - Bounded(maximum, 0));
    p.push_back(c.order == SumOrder::Contract ? one : rescaled(c, one));
  }
  return p;
}

// p times a row's weight in the sums: what it is multiplied with, and by what number.
Bounded bounded_sum(const AttentionCase& c, const std::vector<Bounded>& p, std::size_t dim) {
  std::vector<Bounded> coded_weights, codes, minimum_weights, minima, raw_weights, numbers;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const CachedRow& value = c.values[i];
    if (c.kind == AttentionNumbers::Factored && value.is_coded()) {
      const std::size_t group = group_of(value, dim);
      // Twice, for the float32 maximum may be off a little: p then is some other number beside 1,
      // and the steps of subnormals do not grow with it.
      const Bounded weight = p[i] * Bounded(value.scales[group]);
      coded_weights.push_back(narrowed(narrowed(weight, DType::F16), DType::F16));
      codes.emplace_back(value.codes[dim]);
      minimum_weights.push_back(p[i]);
      minima.emplace_back(value.minima[group]);
    } else {
      raw_weights.push_back(c.kind == AttentionNumbers::Plain ? p[i] : narrowed(p[i], DType::BF16));
      numbers.push_back(bounded_number(c, value, dim));
    }
  }
  const auto roundings = [&](const std::vector<Bounded>& terms) {
    return value_roundings(c, terms.size());
  };
  return (dot(coded_weights, codes, roundings(codes)) +
          dot(minimum_weights, minima, roundings(minima))) +
         dot(raw_weights, numbers, roundings(numbers));
}

}  // namespace

std::vector<Bounded> bounded_attention(const AttentionCase& c, DType out) {
  const std::vector<Bounded> p = bounded_probabilities(c);
  const std::vector<Bounded> ones(p.size(), Bounded(1.0F));
  const Bounded sum = dot(p, ones, sum_roundings(c));
  std::vector<Bounded> result;
  for (std::size_t d = 0; d < c.query.size(); ++d) {
    const Bounded quotient = bounded_sum(c, p, d) / sum;
    result.push_back(out == DType::F32 ? quotient : narrowed(quotient, out));
  }
  return result;
}

std::vector<float> rotated_and_rounded(std::vector<float> row, int rotation_block) {
  if (rotation_block > 0) {
    // Sylvester's matrix by its definition would add in another order: the contract names the
    // butterflies, and so these are written out again here.
    const auto block = static_cast<std::size_t>(rotation_block);
    const auto norm = static_cast<float>(1.0 / std::sqrt(static_cast<double>(rotation_block)));
    for (std::size_t distance = 1; distance < block; distance *= 2) {
      const std::vector<float> before = row;
      for (std::size_t i = 0; i < row.size(); ++i) {
        const float partner = before[i ^ distance];
        row[i] = (i & distance) == 0 ? before[i] + partner : partner - before[i];
      }
    }
    for (float& v : row) v *= norm;
  }
  for (float& v : row) v = rounded_to(DType::BF16, v);
  return row;
}

}  // namespace fut::test
