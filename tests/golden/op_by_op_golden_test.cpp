// Decode op by op: each op of each layer runs on another backend with the very inputs that the CPU
// reference had, so that nothing adds up from op to op. What it gives has to lie within the bound of the
// op's own arithmetic, and what attention stores has to be the reference's, byte by byte. (Attention's
// outputs have their bounds in its kernel tests.)
#include <cmath>
#include <gtest/gtest.h>

#include "tests/support/backends.h"
#include "tests/support/heldout.h"
#include "tests/support/matrix_reference.h"
#include "tests/support/model_runner.h"
#include "tests/support/packed_weights.h"
#include "tests/support/quantized_folder.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"

namespace fut::test {
namespace {

// A matrix of a model that lies in host memory, as packed_weights.h has such.
class HostMatrix {
 public:
  HostMatrix(Backend& cpu, const Int4Matrix& m)
      : shape_(cpu, m.order, m.cols, m.tile.group, Scales::Any, 1),
        matrix_(cpu, shape_, {m.packed, m.packed + m.tile.bytes()}) {}
  [[nodiscard]] Bounded product(std::int64_t output, std::span<const float> x) const {
    return matrix_.bounded_product(output, x);
  }

 private:
  GuardedInt4 shape_, matrix_;
};

// One side: a backend with a model, a cache and the activations of a step.
struct Side {
  ModelRunner runner;
  Model model;
  KvCache cache;
  Workspace workspace;

  Side(const std::filesystem::path& folder, const RunnerOptions& options, int sequences, int tokens)
      : runner(folder, options),
        model(runner.load_model()),
        cache(runner.backend(), runner.config(), runner.kv_cache(), sequences * pages(tokens),
              sequences),
        workspace(runner.backend(), runner.config(), Precision::Int4, runner.kv_cache().dtype,
                  {.max_tokens = sequences,
                   .max_sequences = sequences,
                   .max_logit_rows = sequences,
                   .max_pages = sequences * pages(tokens),
                   .context_tokens = tokens}) {
    cache.clear(runner.backend());
  }
  static int pages(int tokens) { return static_cast<int>(layout::pages_for_tokens(tokens)); }

  [[nodiscard]] std::vector<std::byte> bytes(const void* data, std::int64_t count) {
    std::vector<std::byte> result(static_cast<std::size_t>(count));
    runner.backend().download(result, data);
    return result;
  }
  [[nodiscard]] std::vector<float> values(const ActivationView& view) {
    const auto raw = bytes(view.data, view.rows * view.row_stride * dtype_bytes(view.dtype));
    std::vector<float> result;
    for (std::size_t i = 0; i < raw.size();
         i += static_cast<std::size_t>(dtype_bytes(view.dtype))) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, raw.data() + i, static_cast<std::size_t>(dtype_bytes(view.dtype)));
      result.push_back(value_of(view.dtype, bits));
    }
    return result;
  }
  [[nodiscard]] std::vector<ActivationView> activations() const {
    return {workspace.residual(), workspace.query(),     workspace.key(),
            workspace.value(),    workspace.attention(), workspace.ffn()};
  }
  [[nodiscard]] std::vector<std::pair<void*, std::int64_t>> cache_of(int layer) const {
    const auto kv = std::get<KvPagesInt4>(cache.layer(layer));
    return {{kv.data, kv.num_pages * kv.page.bytes()},
            {kv.raw, kv.num_raw_slots * kv.raw_rows.elements() * 2}};
  }
};

class OpByOp {
 public:
  OpByOp(const std::filesystem::path& packed, const TokenWindows& windows, bool gpu)
      : windows_(windows),
        cpu_(packed, {.precision = Precision::Int4}, sequences(), tokens()),
        other_(packed, {.threads = 2, .precision = Precision::Int4, .gpu = gpu}, sequences(),
               tokens()) {
    for (int i = 0; i < cpu_.model.config().num_layers; ++i) {
      const LayerWeights& w = cpu_.model.layer(i, StepKind::Decode);
      for (const Weights* m : {&std::get<Weights>(w.qkv_proj), &w.o_proj,
                               &std::get<Weights>(w.gate_up_proj), &w.down_proj}) {
        matrices_.push_back(
            std::make_unique<HostMatrix>(cpu_.runner.backend(), std::get<Int4Matrix>(*m)));
      }
    }
  }

  // Runs all positions on the CPU, and those in `forced` on the other side as well.
  void run(const std::vector<int>& forced) {
    for (int position = 0; position < tokens(); ++position) {
      const Batch batch = batch_at(position);
      cpu_.workspace.upload(cpu_.runner.backend(), batch);
      if (std::find(forced.begin(), forced.end(), position) == forced.end()) {
        forward(cpu_.runner.backend(), cpu_.model, cpu_.cache, cpu_.workspace);
        continue;
      }
      other_.workspace.upload(other_.runner.backend(), batch);
      embed();
      for (int i = 0; i < cpu_.model.config().num_layers; ++i) run_layer(i, position);
    }
  }

 private:
  [[nodiscard]] int sequences() const { return static_cast<int>(windows_.size()); }
  [[nodiscard]] int tokens() const { return static_cast<int>(windows_[0].size()); }
  [[nodiscard]] const HostMatrix& matrix(int layer, int which) const {
    return *matrices_[static_cast<std::size_t>(4 * layer + which)];
  }

  [[nodiscard]] Batch batch_at(int position) const {
    Batch batch;
    batch.kind = StepKind::Decode;
    batch.q_indptr = {0};
    batch.kv_indptr = {0};
    for (int s = 0; s < sequences(); ++s) {
      batch.sequences.push_back(s);
      batch.token_ids.push_back(
          windows_[static_cast<std::size_t>(s)][static_cast<std::size_t>(position)]);
      batch.positions.push_back(position);
      batch.q_indptr.push_back(s + 1);
      for (int p = 0; p < Side::pages(tokens()); ++p) {
        batch.page_table.push_back(s * Side::pages(tokens()) + p);
      }
      batch.kv_indptr.push_back(static_cast<std::int32_t>(batch.page_table.size()));
      batch.kv_lengths.push_back(position + 1);
      batch.raw_slots.push_back(s);
    }
    return batch;
  }

  void embed() {
    for (Side* side : {&cpu_, &other_}) {
      side->runner.backend().embed({side->workspace.batch().token_ids,
                                    side->workspace.batch().num_tokens, side->model.embed_tokens(),
                                    side->workspace.residual()});
    }
    EXPECT_EQ(cpu_.values(cpu_.workspace.residual()), other_.values(other_.workspace.residual()));
  }

  // The other side's inputs become the reference's.
  void force(int layer) {
    Backend& backend = other_.runner.backend();
    const auto copy = [&](void* to, const void* from, std::int64_t bytes) {
      backend.upload(to, {static_cast<const std::byte*>(from), static_cast<std::size_t>(bytes)});
    };
    const auto from = cpu_.activations();
    const auto to = other_.activations();
    for (std::size_t i = 0; i < from.size(); ++i) {
      copy(to[i].data, from[i].data,
           from[i].rows * from[i].row_stride * dtype_bytes(from[i].dtype));
    }
    copy(other_.workspace.ffn_exponents(), cpu_.workspace.ffn_exponents(), 4 * sequences());
    const auto caches = cpu_.cache_of(layer);
    for (std::size_t i = 0; i < caches.size(); ++i) {
      copy(other_.cache_of(layer)[i].first, caches[i].first, caches[i].second);
    }
  }

  void run_op(int layer, LayerOp op) {
    force(layer);
    for (Side* side : {&cpu_, &other_}) {
      run_layer_op(side->runner.backend(), side->model, side->cache, side->workspace, layer, op);
    }
    other_.runner.backend().synchronize();
  }

  void expect_both(const std::vector<Bounded>& expected, const ActivationView& of_cpu,
                   const ActivationView& of_other, const char* what) {
    const Shape shape = {of_cpu.rows, of_cpu.cols};
    EXPECT_TRUE(within_bounds(expected, cpu_.values(of_cpu), shape)) << what << ", the reference";
    EXPECT_TRUE(within_bounds(expected, other_.values(of_other), shape)) << what;
  }

  void run_layer(int layer, int position) {
    SCOPED_TRACE("layer " + std::to_string(layer) + ", position " + std::to_string(position));
    Workspace& mine = cpu_.workspace;
    Workspace& theirs = other_.workspace;
    const auto x = cpu_.values(mine.residual());
    run_op(layer, LayerOp::QkvRopeAppend);
    const Projected expected = project(layer, position, x);
    expect_both(expected.q, mine.query(), theirs.query(), "queries");
    expect_both(expected.k, mine.key(), theirs.key(), "keys");
    expect_both(expected.v, mine.value(), theirs.value(), "values");

    run_op(layer, LayerOp::Attention);
    for (std::size_t i = 0; i < 2; ++i) {
      const auto [data, bytes] = cpu_.cache_of(layer)[i];
      EXPECT_EQ(cpu_.bytes(data, bytes), other_.bytes(other_.cache_of(layer)[i].first, bytes))
          << (i == 0 ? "pages" : "raw rows");
    }

    run_op(layer, LayerOp::OProj);
    expect_both(added(matrix(layer, 1), x, cpu_.values(mine.attention()), false), mine.residual(),
                theirs.residual(), "o_proj");

    const auto middle = cpu_.values(mine.residual());
    run_op(layer, LayerOp::GateUpSwiglu);
    EXPECT_EQ(cpu_.bytes(mine.ffn_exponents(), 4 * sequences()),
              other_.bytes(theirs.ffn_exponents(), 4 * sequences()));
    expect_both(swiglu(layer, middle), mine.ffn(), theirs.ffn(), "gate_up_swiglu");

    run_op(layer, LayerOp::DownProj);
    expect_both(added(matrix(layer, 3), middle, cpu_.values(mine.ffn()), true), mine.residual(),
                theirs.residual(), "down_proj");
  }

  // ---- what the contract gives, in bounds ------------------------------------------------------------

  struct Projected {
    std::vector<Bounded> q, k, v;
  };

  [[nodiscard]] Projected project(int layer, int position, const std::vector<float>& x) const {
    const ModelConfig& c = cpu_.model.config();
    const int half = c.head_dim / 2;
    const float* cos = cpu_.workspace.rope_cos() + std::int64_t{position} * half;
    const float* sin = cpu_.workspace.rope_sin() + std::int64_t{position} * half;
    Projected result;
    for (int m = 0; m < sequences(); ++m) {
      const auto row = row_of(x, m, c.hidden_size);
      const std::vector<float> operand = rounded_row(DType::F16, row);
      const Bounded r = bounded_inverse_rms(row, c.rms_norm_eps);
      std::int64_t output = 0;
      for (int head = 0; head < c.num_q_heads + 2 * c.num_kv_heads; ++head) {
        std::vector<Bounded> y;
        for (int d = 0; d < c.head_dim; ++d) {
          y.push_back(r * matrix(layer, 0).product(output++, operand));
        }
        const bool turns = head < c.num_q_heads + c.num_kv_heads;
        auto& to = head < c.num_q_heads ? result.q : turns ? result.k : result.v;
        for (int d = 0; d < c.head_dim; ++d) {
          const auto i = static_cast<std::size_t>(d % half);
          const Bounded& lower = y[i];
          const Bounded& upper = y[i + static_cast<std::size_t>(half)];
          const Bounded turned = d < half ? lower * Bounded(cos[i]) - upper * Bounded(sin[i])
                                          : upper * Bounded(cos[i]) + lower * Bounded(sin[i]);
          to.push_back(turns ? turned : y[static_cast<std::size_t>(d)]);
        }
      }
    }
    return result;
  }

  // residual + x W^T * 2^exponent
  [[nodiscard]] std::vector<Bounded> added(const HostMatrix& matrix,
                                           const std::vector<float>& residual,
                                           const std::vector<float>& x, bool scaled) const {
    const std::int64_t hidden = cpu_.model.config().hidden_size;
    const std::int64_t cols = std::ssize(x) / sequences();
    std::vector<Bounded> result;
    for (int m = 0; m < sequences(); ++m) {
      const float power =
          scaled ? std::ldexp(1.0F, cpu_.workspace.ffn_exponents()[m]) : 1.0F;  // host memory
      for (std::int64_t n = 0; n < hidden; ++n) {
        const float before = row_of(residual, m, hidden)[static_cast<std::size_t>(n)];
        result.push_back(Bounded(before) + matrix.product(n, row_of(x, m, cols)) * Bounded(power));
      }
    }
    return result;
  }

  [[nodiscard]] std::vector<Bounded> swiglu(int layer, const std::vector<float>& x) const {
    const ModelConfig& c = cpu_.model.config();
    std::vector<Bounded> result;
    for (int m = 0; m < sequences(); ++m) {
      const auto row = row_of(x, m, c.hidden_size);
      const std::vector<float> operand = rounded_row(DType::F16, row);
      const Bounded r = bounded_inverse_rms(row, c.rms_norm_eps);
      const float power = std::ldexp(1.0F, -cpu_.workspace.ffn_exponents()[m]);
      for (int n = 0; n < c.intermediate_size; ++n) {
        const Bounded h =
            silu_product(r * matrix(layer, 2).product(n, operand),
                         r * matrix(layer, 2).product(c.intermediate_size + n, operand));
        result.push_back(rounded_to(DType::F16, h * Bounded(power)));
      }
    }
    return result;
  }

  TokenWindows windows_;
  Side cpu_, other_;
  std::vector<std::unique_ptr<HostMatrix>> matrices_;
};

// The first position, the ends of blocks of 16, before and behind; pages of 64.
const std::vector<int> kForced = {0, 15, 16, 31, 47, 63, 64, 69};

void expect_ops_within_bounds(const std::filesystem::path& model,
                              const std::filesystem::path& heldout, bool gpu) {
  const TempFolder folder;
  const std::filesystem::path packed = folder.path() / "packed";
  quantize_for_test(model, packed, {});
  OpByOp(packed, heldout_windows(heldout, 3, 70), gpu).run(kForced);
}

std::filesystem::path demo() {
  return source_path("configs/demo-6m");
}
std::filesystem::path demo_heldout() {
  return source_path("tests/golden/demo-6m");
}

// The reference itself on other threads: what the bounds are worth.
TEST(OpByOp, TheReferenceLiesWithinItsBounds) {
#ifdef FUT_SANITIZED
  GTEST_SKIP() << "derives a bound for each output of each op: too slow under sanitizers";
#endif
  expect_ops_within_bounds(demo(), demo_heldout(), false);
}

TEST(OpByOpGpu, EachOpLiesWithinItsBoundOnTheReferencesInputs) {
  FUT_REQUIRE_GPU_DEVICE();
  expect_ops_within_bounds(demo(), demo_heldout(), true);
}

TEST(OpByOpGpu, SoDoesEachOpOfALargerModel) {
  FUT_REQUIRE_GPU_DEVICE();
  const std::filesystem::path novels = test_data("models/novels-19m");
  FUT_REQUIRE_TEST_DATA(novels);
  expect_ops_within_bounds(novels, novels, true);
}

}  // namespace
}  // namespace fut::test
