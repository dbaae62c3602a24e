// Null tests of everything that is done to weights before they are quantised: a small layer must
// compute the same as before. Powers of two are held to every bit in float32; rotations to the
// bound that each number of the computation carries with it.
#include "loader/transforms.h"

#include <cmath>
#include <functional>
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <string>

#include "tests/support/expect_error.h"

namespace fut {
namespace {

// A float64 number with a bound of how far it is from the exact one: running error analysis
// (Higham, Accuracy and Stability, section 3.3). Every operation adds what it passes on and its own
// rounding.
struct Bounded {
  double value = 0;
  double error = 0;

  Bounded() = default;
  explicit Bounded(double exact, double off = 0) : value(exact), error(off) {}
};

constexpr double kUnit = 0x1p-53;
Bounded rounded(double value, double passed_on) {
  return Bounded(value, passed_on + 2 * kUnit * std::fabs(value));
}
Bounded operator+(const Bounded& a, const Bounded& b) {
  return rounded(a.value + b.value, a.error + b.error);
}
Bounded operator*(const Bounded& a, const Bounded& b) {
  return rounded(a.value * b.value,
                 std::fabs(a.value) * b.error + std::fabs(b.value) * a.error + a.error * b.error);
}
Bounded operator/(const Bounded& a, const Bounded& b) {
  const double smallest = std::fabs(b.value) - b.error;
  const double quotient = a.value / b.value;
  return rounded(quotient, (a.error + std::fabs(quotient) * b.error) / smallest);
}
Bounded exp(const Bounded& a) {
  const double value = std::exp(a.value);
  return rounded(value, value * std::expm1(a.error));
}
Bounded sqrt(const Bounded& a) {
  const double value = std::sqrt(a.value);
  return rounded(value, a.error / (value + std::sqrt(a.value - a.error)));
}

// ---- a layer ------------------------------------------------------------------------------------

constexpr AttentionShape kShape{.num_q_heads = 4, .num_kv_heads = 2, .head_dim = 8};
constexpr std::int64_t kHidden = 12;
constexpr std::int64_t kIntermediate = 10;
constexpr std::int64_t kVocabulary = 6;
constexpr std::int64_t kTokens = 4;
constexpr std::int64_t kQRows = 32, kKvRows = 16;

// One layer with everything around it. Token t is row t of the embedding.
struct Layer {
  HostMatrix embedding{"embed_tokens", kVocabulary, kHidden};
  HostMatrix head{"lm_head", kVocabulary, kHidden};
  HostMatrix q{"q_proj", kQRows, kHidden}, k{"k_proj", kKvRows, kHidden};
  HostMatrix v{"v_proj", kKvRows, kHidden}, o{"o_proj", kHidden, kQRows};
  HostMatrix gate{"gate_proj", kIntermediate, kHidden}, up{"up_proj", kIntermediate, kHidden};
  HostMatrix down{"down_proj", kHidden, kIntermediate};
  std::vector<float> input_gain, post_gain, final_gain;
};

// Weights as a checkpoint has them: BF16.
void fill(std::vector<float>& values, float deviation, float mean, std::mt19937& engine) {
  std::normal_distribution<float> normal(mean, deviation);
  for (float& value : values) value = bf16_to_f32(f32_to_bf16(normal(engine)));
}

Layer random_layer(std::uint32_t seed = 1) {
  std::mt19937 engine(seed);
  Layer layer;
  fill(layer.embedding.values, 1.0F, 0, engine);
  for (HostMatrix* m :
       {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down, &layer.head}) {
    fill(m->values, 0.2F, 0, engine);
  }
  for (std::vector<float>* gain : {&layer.input_gain, &layer.post_gain, &layer.final_gain}) {
    gain->resize(static_cast<std::size_t>(kHidden));
    fill(*gain, 0.5F, 1, engine);
  }
  return layer;
}

template <class T>
using Rows = std::vector<std::vector<T>>;

// Turns a stored weight into a number of the computation.
template <class T>
using Reader = std::function<T(const HostMatrix& w, std::int64_t row, std::int64_t col)>;

template <class T>
Rows<T> linear(const Rows<T>& x, const HostMatrix& w, const Reader<T>& read) {
  Rows<T> y;
  for (const std::vector<T>& token : x) {
    std::vector<T> out;
    for (std::int64_t r = 0; r < w.rows; ++r) {
      T sum{};
      for (std::int64_t c = 0; c < w.cols; ++c) {
        sum = sum + token[static_cast<std::size_t>(c)] * read(w, r, c);
      }
      out.push_back(sum);
    }
    y.push_back(out);
  }
  return y;
}

template <class T>
Rows<T> normalised(const Rows<T>& x, const std::vector<float>& gain) {
  using std::sqrt;
  Rows<T> y = x;
  for (std::vector<T>& token : y) {
    T squares{};
    for (const T& value : token) squares = squares + value * value;
    const T root = sqrt(squares / T(static_cast<double>(kHidden)) + T(1e-5));
    for (std::size_t c = 0; c < token.size(); ++c) token[c] = token[c] / root * T(gain[c]);
  }
  return y;
}

template <class T>
void rotate_positions(Rows<T>& x) {
  constexpr int kHalf = kShape.head_dim / 2;
  for (std::size_t t = 0; t < x.size(); ++t) {
    for (std::size_t head = 0; head < x[t].size() / kShape.head_dim; ++head) {
      for (std::size_t i = 0; i < kHalf; ++i) {
        const double angle = static_cast<double>(t) / static_cast<double>(i + 1);
        const T cosine(static_cast<float>(std::cos(angle)));
        const T sine(static_cast<float>(std::sin(angle)));
        T& a = x[t][head * kShape.head_dim + i];
        T& b = x[t][head * kShape.head_dim + i + kHalf];
        const T turned = a * cosine + b * sine * T(-1.0);
        b = b * cosine + a * sine;
        a = turned;
      }
    }
  }
}

template <class T>
Rows<T> attention(const Rows<T>& q, const Rows<T>& k, const Rows<T>& v) {
  using std::exp;
  constexpr std::size_t kDim = kShape.head_dim;
  Rows<T> out(q.size(), std::vector<T>(static_cast<std::size_t>(kQRows)));
  for (std::size_t t = 0; t < q.size(); ++t) {
    for (std::size_t head = 0; head < kShape.num_q_heads; ++head) {
      const std::size_t kv = head / (kShape.num_q_heads / kShape.num_kv_heads);
      std::vector<T> probability;
      T total{};
      for (std::size_t i = 0; i <= t; ++i) {
        T score{};
        for (std::size_t d = 0; d < kDim; ++d) {
          score = score + q[t][head * kDim + d] * k[i][kv * kDim + d];
        }
        probability.push_back(exp(score * T(0.5)));
        total = total + probability.back();
      }
      for (std::size_t d = 0; d < kDim; ++d) {
        T sum{};
        for (std::size_t i = 0; i <= t; ++i) sum = sum + probability[i] * v[i][kv * kDim + d];
        out[t][head * kDim + d] = sum / total;
      }
    }
  }
  return out;
}

template <class T>
Rows<T> sum_of(Rows<T> a, const Rows<T>& b) {
  for (std::size_t t = 0; t < a.size(); ++t) {
    for (std::size_t c = 0; c < a[t].size(); ++c) a[t][c] = a[t][c] + b[t][c];
  }
  return a;
}

// Logits of all tokens.
template <class T>
Rows<T> forward(const Layer& layer, const Reader<T>& read) {
  using std::exp;
  Rows<T> x;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    std::vector<T> token;
    for (std::int64_t c = 0; c < kHidden; ++c) token.push_back(read(layer.embedding, t, c));
    x.push_back(token);
  }
  const Rows<T> h = normalised(x, layer.input_gain);
  Rows<T> q = linear(h, layer.q, read), k = linear(h, layer.k, read);
  rotate_positions(q);
  rotate_positions(k);
  x = sum_of(x, linear(attention(q, k, linear(h, layer.v, read)), layer.o, read));
  const Rows<T> g = normalised(x, layer.post_gain);
  Rows<T> gate = linear(g, layer.gate, read);
  const Rows<T> up = linear(g, layer.up, read);
  for (std::size_t t = 0; t < gate.size(); ++t) {
    for (std::size_t c = 0; c < gate[t].size(); ++c) {
      const T& value = gate[t][c];
      gate[t][c] = value / (T(1.0) + exp(value * T(-1.0))) * up[t][c];
    }
  }
  x = sum_of(x, linear(gate, layer.down, read));
  return linear(normalised(x, layer.final_gain), layer.head, read);
}

Rows<float> float_logits(const Layer& layer) {
  return forward<float>(
      layer, [](const HostMatrix& w, std::int64_t r, std::int64_t c) { return w.row(r)[c]; });
}

// Weights as they are stored are the exact ones.
Rows<Bounded> exact_logits(const Layer& layer) {
  return forward<Bounded>(layer, [](const HostMatrix& w, std::int64_t r, std::int64_t c) {
    return Bounded(w.row(r)[c]);
  });
}

double norm_of_row(const HostMatrix& w, std::int64_t r) {
  double sum = 0;
  for (std::int64_t c = 0; c < w.cols; ++c) sum += static_cast<double>(w.row(r)[c]) * w.row(r)[c];
  return std::sqrt(sum);
}

double norm_of_column(const HostMatrix& w, std::int64_t c) {
  double sum = 0;
  for (std::int64_t r = 0; r < w.rows; ++r) sum += static_cast<double>(w.row(r)[c]) * w.row(r)[c];
  return std::sqrt(sum);
}

// Weights that were rounded to float32 after each of at most two rotations. The last rounding is
// off by half a unit of the weight; an earlier one was spread by a rotation of rows or of columns,
// which keeps the length of the row or column of errors. Float64 adds next to nothing to that.
Rows<Bounded> rotated_logits(const Layer& layer) {
  std::map<const HostMatrix*, std::pair<std::vector<double>, std::vector<double>>> norms;
  return forward<Bounded>(layer, [&](const HostMatrix& w, std::int64_t r, std::int64_t c) {
    auto& [rows, columns] = norms[&w];
    if (rows.empty()) {
      for (std::int64_t i = 0; i < w.rows; ++i) rows.push_back(norm_of_row(w, i));
      for (std::int64_t i = 0; i < w.cols; ++i) columns.push_back(norm_of_column(w, i));
    }
    const double value = w.row(r)[c];
    return Bounded(value, 0x1p-24 * (std::fabs(value) + rows[static_cast<std::size_t>(r)] +
                                     columns[static_cast<std::size_t>(c)]));
  });
}

// The largest difference as a multiple of what both bounds allow; `widest` receives the widest
// bound, so that a test can see that it says something.
double excess(const Rows<Bounded>& a, const Rows<Bounded>& b, double& widest) {
  double worst = 0;
  widest = 0;
  for (std::size_t t = 0; t < a.size(); ++t) {
    for (std::size_t i = 0; i < a[t].size(); ++i) {
      const double bound = a[t][i].error + b[t][i].error;
      widest = std::max(widest, bound);
      worst = std::max(worst, std::fabs(a[t][i].value - b[t][i].value) / bound);
    }
  }
  return worst;
}

void fold_all(Layer& layer) {
  for (HostMatrix* m : {&layer.q, &layer.k, &layer.v}) fold_gain(*m, layer.input_gain);
  for (HostMatrix* m : {&layer.gate, &layer.up}) fold_gain(*m, layer.post_gain);
  fold_gain(layer.head, layer.final_gain);
  for (std::vector<float>* gain : {&layer.input_gain, &layer.post_gain, &layer.final_gain}) {
    gain->assign(gain->size(), 1.0F);
  }
}

void rotate_residual(Layer& layer, const Rotation& r) {
  for (HostMatrix* m :
       {&layer.embedding, &layer.head, &layer.q, &layer.k, &layer.v, &layer.gate, &layer.up}) {
    rotate_inputs(*m, r, {});
  }
  for (HostMatrix* m : {&layer.o, &layer.down}) rotate_outputs(*m, r, {});
}

void rotate_values(Layer& layer, const Rotation& r) {
  rotate_outputs(layer.v, r, {});
  rotate_inputs(layer.o, r, {});
}

std::string message_of(const std::function<void()>& action) {
  return test::error_message(ErrorKind::Data, action);
}

// ---- gains --------------------------------------------------------------------------------------

TEST(Transforms, FoldedGainsAreExactForBf16) {
  Layer layer = random_layer();
  const HostMatrix before = layer.q;
  fold_gain(layer.q, layer.input_gain);
  for (std::int64_t r = 0; r < before.rows; ++r) {
    for (std::int64_t c = 0; c < before.cols; ++c) {
      EXPECT_EQ(
          static_cast<double>(layer.q.row(r)[c]),
          static_cast<double>(before.row(r)[c]) * layer.input_gain[static_cast<std::size_t>(c)]);
    }
  }
}

TEST(Transforms, FoldedGainsLeaveTheFunctionAlone) {
  const Layer layer = random_layer();
  Layer folded = layer;
  fold_all(folded);
  double widest = 0;
  EXPECT_LE(excess(exact_logits(layer), exact_logits(folded), widest), 1);
  EXPECT_LT(widest, 1e-10) << "a bound that says something";
}

// ---- rotations ----------------------------------------------------------------------------------

// With integers and a size that is a power of four, nothing is rounded: writer, residual stream and
// reader must give the same integers.
TEST(Transforms, RotationsMeetExactlyBetweenWriterAndReader) {
  constexpr std::int64_t kSize = 64, kInner = 10;
  HostMatrix writer("writer", kSize, kInner), reader("reader", kInner, kSize);
  for (std::size_t i = 0; i < writer.values.size(); ++i) {
    writer.values[i] = static_cast<float>(static_cast<int>(i * 7 % 31) - 15);
    reader.values[i] = static_cast<float>(static_cast<int>(i * 11 % 29) - 14);
  }
  const auto composed = [](const HostMatrix& second, const HostMatrix& first) {
    std::vector<double> result;
    for (std::int64_t i = 0; i < second.rows; ++i) {
      for (std::int64_t j = 0; j < first.cols; ++j) {
        double sum = 0;
        for (std::int64_t k = 0; k < second.cols; ++k) {
          sum += static_cast<double>(second.row(i)[k]) * first.row(k)[j];
        }
        result.push_back(sum);
      }
    }
    return result;
  };
  const std::vector<double> before = composed(reader, writer);
  for (const std::int64_t size : {64, 16, 4}) {  // smaller ones in blocks, as heads are
    HostMatrix turned_writer = writer, turned_reader = reader;
    const Rotation rotation(size, 3);
    rotate_outputs(turned_writer, rotation, {});
    rotate_inputs(turned_reader, rotation, {});
    EXPECT_NE(turned_writer.values, writer.values);
    EXPECT_NE(turned_reader.values, reader.values);
    EXPECT_EQ(composed(turned_reader, turned_writer), before) << size;
  }
}

TEST(Transforms, ARotatedModelComputesTheSame) {
  Layer layer = random_layer();
  fold_all(layer);
  Layer rotated = layer;
  rotate_values(rotated, Rotation(kShape.head_dim, 11));
  rotate_residual(rotated, Rotation(kHidden, 12));
  const Rows<Bounded> before = exact_logits(layer);
  double widest = 0;
  EXPECT_LE(excess(before, rotated_logits(rotated), widest), 1);
  double largest = 0;
  for (const std::vector<Bounded>& token : before) {
    for (const Bounded& logit : token) largest = std::max(largest, std::fabs(logit.value));
  }
  EXPECT_LT(widest, 0.01 * largest) << "a bound that says something";

  // Each of these is a mistake that has been made, and must not pass.
  const auto fails = [&](const std::function<void(Layer&)>& mistake) {
    Layer wrong = layer;
    mistake(wrong);
    return excess(before, rotated_logits(wrong), widest) > 1;
  };
  EXPECT_TRUE(fails([](Layer& l) { rotate_outputs(l.v, Rotation(kShape.head_dim, 11), {}); }));
  EXPECT_TRUE(fails([](Layer& l) {
    rotate_residual(l, Rotation(kHidden, 12));
    rotate_inputs(l.head, Rotation(kHidden, 12), {});
  })) << "a tied head, rotated twice";
  EXPECT_TRUE(fails([](Layer& l) {
    rotate_residual(l, Rotation(kHidden, 12));
    l.down = random_layer().down;
  })) << "a writer that was left out";
}

TEST(Transforms, GainsMustBeFoldedBeforeTheResidualIsRotated) {
  const Layer layer = random_layer();
  Layer rotated = layer;
  rotate_residual(rotated, Rotation(kHidden, 12));
  double widest = 0;
  EXPECT_GT(excess(exact_logits(layer), rotated_logits(rotated), widest), 1);
}

TEST(Transforms, RotationsAreTheSameBitsHoweverTheWorkIsShared) {
  const ParallelFor backwards = [](std::int64_t count, const auto& body) {
    for (std::int64_t i = count; i-- > 0;) body(i, i + 1);
  };
  const Rotation rotation(kHidden, 13);
  Layer alone = random_layer(), shared = alone;
  rotate_inputs(alone.q, rotation, {});
  rotate_inputs(shared.q, rotation, backwards);
  rotate_outputs(alone.down, rotation, {});
  rotate_outputs(shared.down, rotation, backwards);
  EXPECT_EQ(alone.q.values, shared.q.values);
  EXPECT_EQ(alone.down.values, shared.down.values);
}

TEST(Transforms, WidthsThatDoNotFitARotationAreNamed) {
  Layer layer = random_layer();
  const std::string message = message_of([&] { rotate_inputs(layer.q, Rotation(32, 1), {}); });
  EXPECT_NE(message.find("q_proj"), std::string::npos) << message;
  EXPECT_NE(message.find("12"), std::string::npos) << message;
}

// ---- powers of two ------------------------------------------------------------------------------

std::vector<int> some_exponents(std::int64_t count) {
  std::vector<int> exponents;
  for (std::int64_t i = 0; i < count; ++i) exponents.push_back(static_cast<int>(i * 5 % 13) - 6);
  return exponents;
}

TEST(Transforms, PowersOfTwoBetweenQueriesAndKeysChangeNoBit) {
  const Layer layer = random_layer();
  Layer moved = layer;
  apply_qk_exponents(moved.q, moved.k, kShape, some_exponents(kKvRows / 2));
  EXPECT_NE(moved.k.values, layer.k.values);
  EXPECT_EQ(float_logits(moved), float_logits(layer));
}

TEST(Transforms, PowersOfTwoBetweenUpAndDownChangeNoBit) {
  const Layer layer = random_layer();
  Layer moved = layer;
  apply_up_down_exponents(moved.up, moved.down, some_exponents(kIntermediate));
  EXPECT_NE(moved.up.values, layer.up.values);
  EXPECT_EQ(float_logits(moved), float_logits(layer));
}

TEST(Transforms, APairOfRowsIsOneChannelOfRope) {
  // Scaling one row of the pair alone is no null operation.
  const Layer layer = random_layer();
  Layer wrong = layer;
  for (std::int64_t c = 0; c < kHidden; ++c) {
    wrong.k.row(3)[c] *= 8;
    for (const std::int64_t head : {0, 1}) wrong.q.row(head * kShape.head_dim + 3)[c] /= 8;
  }
  EXPECT_NE(float_logits(wrong), float_logits(layer));
}

std::vector<double> energies(const HostMatrix& w) {
  return output_energies(w, {});
}

// Rows and columns of the same length everywhere, so that nothing is left to even out.
Layer even_layer() {
  Layer layer = random_layer();
  for (HostMatrix* m : {&layer.q, &layer.k, &layer.up, &layer.down}) {
    for (float& value : m->values) value = std::copysign(1.0F, value);
  }
  return layer;
}

TEST(Transforms, FindsAndTakesOutInjectedKeyOutliers) {
  Layer layer = even_layer();
  const Layer before = layer;
  std::vector<int> injected(static_cast<std::size_t>(kKvRows / 2));
  injected[2] = 3;   // head 0
  injected[5] = -4;  // head 1
  apply_qk_exponents(layer.q, layer.k, kShape, injected);
  const std::vector<int> found =
      choose_qk_exponents(layer.q, layer.k, kShape, energies(layer.q), energies(layer.k));
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], -injected[i]) << i;
  apply_qk_exponents(layer.q, layer.k, kShape, found);
  EXPECT_EQ(layer.q.values, before.q.values);
  EXPECT_EQ(layer.k.values, before.k.values);
}

TEST(Transforms, FindsAndTakesOutInjectedUpOutliers) {
  Layer layer = even_layer();
  const Layer before = layer;
  std::vector<int> injected(static_cast<std::size_t>(kIntermediate));
  injected[7] = injected[3] = 6;
  apply_up_down_exponents(layer.up, layer.down, injected);
  const std::vector<int> found = choose_up_down_exponents(layer.up, layer.down, energies(layer.up));
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], -injected[i]) << i;
  apply_up_down_exponents(layer.up, layer.down, found);
  EXPECT_EQ(layer.up.values, before.up.values);
  EXPECT_EQ(layer.down.values, before.down.values);
}

TEST(Transforms, OutputEnergiesWeighInputsByTheirOwn) {
  HostMatrix w("w", 2, 3);
  w.values = {1, 2, 3, -4, 0, 0.5F};
  EXPECT_EQ(output_energies(w, {}), (std::vector<double>{14, 16.25}));
  EXPECT_EQ(output_energies(w, std::vector<float>{1, 0, 4}), (std::vector<double>{37, 17}));
}

TEST(Transforms, ChannelsThatAreAlwaysZeroAreLeftAlone) {
  Layer layer = even_layer();
  std::vector<double> product = energies(layer.up);
  product[5] = 0;
  for (std::int64_t r = 0; r < kHidden; ++r) layer.down.row(r)[9] = 0;
  const std::vector<int> found = choose_up_down_exponents(layer.up, layer.down, product);
  EXPECT_EQ(found, std::vector<int>(static_cast<std::size_t>(kIntermediate), 0));
}

TEST(Transforms, ChosenExponentsKeepWeightsInRange) {
  // The outlier asks for 2^-6, which one of its weights cannot give; another weight is below the
  // normal range already.
  Layer layer = even_layer();
  std::vector<int> injected(static_cast<std::size_t>(kIntermediate));
  injected[7] = injected[8] = 6;
  apply_up_down_exponents(layer.up, layer.down, injected);
  layer.up.row(7)[0] = 0x1p-124F;
  layer.up.row(8)[0] = 0x1p-130F;
  const std::vector<double> product = energies(layer.up);
  const std::vector<int> found = choose_up_down_exponents(layer.up, layer.down, product);
  EXPECT_EQ(found[7], -2);
  EXPECT_EQ(found[8], 0);
  apply_up_down_exponents(layer.up, layer.down, found);
  EXPECT_EQ(layer.up.row(7)[0], 0x1p-126F);
}

TEST(Transforms, RefusesToLoseABitAndChangesNothing) {
  Layer layer = random_layer();
  layer.q.row(2 * kShape.head_dim + 3)[5] = 0x1p126F;  // query head 2 reads KV head 1
  layer.down.row(1)[4] = 0x1p-125F;
  const Layer before = layer;
  std::vector<int> qk(static_cast<std::size_t>(kKvRows / 2));
  qk[kShape.head_dim / 2 + 3] = -3;
  std::string message = message_of([&] { apply_qk_exponents(layer.q, layer.k, kShape, qk); });
  EXPECT_NE(message.find("q_proj: row 19, column 5"), std::string::npos) << message;
  EXPECT_NE(message.find("2^3"), std::string::npos) << message;
  std::vector<int> ffn(static_cast<std::size_t>(kIntermediate));
  ffn[4] = 2;
  message = message_of([&] { apply_up_down_exponents(layer.up, layer.down, ffn); });
  EXPECT_NE(message.find("down_proj: row 1, column 4"), std::string::npos) << message;
  EXPECT_EQ(layer.q.values, before.q.values);
  EXPECT_EQ(layer.k.values, before.k.values);
  EXPECT_EQ(layer.up.values, before.up.values);
  EXPECT_EQ(layer.down.values, before.down.values);
}

}  // namespace
}  // namespace fut
