// GPTQ put to work on a model: what each matrix sees of those that were quantised before it, and
// what it aims at.
#include "engine/quantize_gptq.h"

#include <gtest/gtest.h>

#include "tests/unit/quantize_case.h"

namespace fut::test {
namespace {

void expect_same(const QuantizedMatrix& found, const QuantizedMatrix& expected) {
  EXPECT_TRUE(found.codes == expected.codes);
  EXPECT_TRUE(found.scales == expected.scales);
}

class LayerGptq : public testing::Test {
 protected:
  std::filesystem::path model() {
    return write_toy_model(folder_ / "toy", quantizable_toy_model());
  }
  const CalibrationWindows windows_ = {random_ids(64), random_ids(41)};
  TempFolder folder_;
};

// A case with a runner for each stream.
struct GptqCase : QuantizeCase {
  GptqCase(const std::filesystem::path& folder, const GptqOptions& gptq_options,
           const CalibrationWindows& windows, int threads = 1)
      : QuantizeCase(folder, {}, threads),
        quantised(*backend, config, 64),
        gptq(*backend, weights, quantised, runner, windows, gptq_options, parallel_for) {
    for (CalibratedLayer& calibrated : calibrate(windows)) {
      layers.push_back(stack_layer(std::move(calibrated.weights), static_cast<int>(layers.size())));
    }
  }
  [[nodiscard]] std::vector<QuantizedLayer> run() {
    std::vector<QuantizedLayer> out;
    for (const StackedLayer& layer : layers) out.push_back(gptq.next(layer));
    return out;
  }

  LayerRunner quantised;
  SequentialGptq gptq;
  std::vector<StackedLayer> layers;
};

TEST_F(LayerGptq, IsNeverWorseThanRoundToNearest) {
  for (const int group_size : {64, 128}) {
    GptqOptions options;
    options.group_size = group_size;
    for (const QuantizedLayer& layer : GptqCase(model(), options, windows_).run()) {
      for (const MatrixReport& report : layer.reports) {
        EXPECT_GE(report.relative_loss, 0) << report.name;
        EXPECT_LE(report.relative_loss, report.rtn_loss) << report.name;
      }
    }
  }
}

TEST_F(LayerGptq, GivesTheSameBitsOnAnyNumberOfThreads) {
  const auto one = GptqCase(model(), {}, windows_, 1).run();
  const auto three = GptqCase(folder_ / "toy", {}, windows_, 3).run();
  for (std::size_t i = 0; i < one.size(); ++i) {
    for (std::size_t m = 0; m < 4; ++m) {
      expect_same(three[i].matrices[m], one[i].matrices[m]);
      EXPECT_EQ(three[i].reports[m].relative_loss, one[i].reports[m].relative_loss);
    }
  }
}

// A layer of either stream once more, by hand: all windows together go through one op after the
// other.
class ByHand {
 public:
  ByHand(GptqCase& toy, const CalibrationWindows& windows)
      : runner_(*toy.backend, toy.config, 64), hidden_(*toy.backend, toy.weights, windows) {}

  using Rows = std::vector<HostRows>;
  [[nodiscard]] Rows normalised() {
    return each([&](ActivationView x) { return runner_.normalised(x); });
  }
  [[nodiscard]] Rows attention(const HostMatrix& qkv) {
    runner_.set_qkv_proj({&qkv});
    return each([&](ActivationView x) {
      runner_.attend(x);
      return runner_.attention_output();
    });
  }
  void add_attention(const HostMatrix& o) {
    runner_.set_o_proj({&o});
    each([&](ActivationView x) {
      runner_.attend(x);
      runner_.add_attention(x);
      return HostRows{};
    });
  }
  [[nodiscard]] Rows swiglu(const HostMatrix& gate_up) {
    runner_.set_gate_up_proj({&gate_up});
    return each([&](ActivationView x) {
      runner_.feed(x);
      return runner_.swiglu_output();
    });
  }
  void add_feed(const HostMatrix& down) {
    runner_.set_down_proj({&down});
    each([&](ActivationView x) {
      runner_.feed(x);
      runner_.add_feed(x);
      return HostRows{};
    });
  }

 private:
  template <class Body>
  Rows each(const Body& body) {
    Rows rows;
    for (std::int64_t i = 0; i < hidden_.num_windows(); ++i) {
      rows.push_back(body(hidden_.window(i)));
    }
    return rows;
  }
  LayerRunner runner_;
  HiddenStates hidden_;
};

// Codes of `w` for inputs x, which should have been x0.
QuantizedMatrix expected_codes(const HostMatrix& w, const ByHand::Rows& x, ByHand::Rows x0,
                               const GptqOptions& options) {
  SquareMatrix h(w.cols), g(w.cols);
  for (std::size_t i = 0; i < x.size(); ++i) {
    accumulate_hessian(h, x[i].view(), {});
    for (std::size_t v = 0; v < x[i].values.size(); ++v) x0[i].values[v] -= x[i].values[v];
    accumulate_products(g, x0[i].view(), x[i].view(), {});
  }
  mirror_lower(h);
  const GptqFactor factor = factor_hessian(w.name, h, options, {});
  const HostMatrix target = upstream_target(w, g, factor, options.upstream_share, {});
  return quantize_gptq(target, h, factor, options, {}).matrix;
}

TEST_F(LayerGptq, SeesWhatTheQuantisedMatricesBeforeGive) {
  for (const double share : {0.0, 0.5}) {
    SCOPED_TRACE(share);
    GptqOptions options;
    options.upstream_share = share;
    GptqCase toy(model(), options, windows_);
    const std::vector<QuantizedLayer> found = toy.run();
    ByHand quantised(toy, windows_), original(toy, windows_);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const StackedLayer& w = toy.layers[i];
      const auto& q = found[i].matrices;
      expect_same(q[0],
                  expected_codes(w[0], quantised.normalised(), original.normalised(), options));
      expect_same(q[1], expected_codes(w[1], quantised.attention(dequantize(q[0])),
                                       original.attention(w[0]), options));
      quantised.add_attention(dequantize(q[1]));
      original.add_attention(w[1]);
      expect_same(q[2],
                  expected_codes(w[2], quantised.normalised(), original.normalised(), options));
      expect_same(q[3], expected_codes(w[3], quantised.swiglu(dequantize(q[2])),
                                       original.swiglu(w[2]), options));
      quantised.add_feed(dequantize(q[3]));
      original.add_feed(w[3]);
    }
  }
}

TEST_F(LayerGptq, InputsThatAreAlwaysZeroAreReported) {
  // Two channels of up_proj that give nothing.
  const auto toy_folder = write_changed_toy_model(
      folder_ / "dead", quantizable_toy_model(), [](std::vector<NamedTensor>& tensors) {
        std::string& bytes = tensor_named(tensors, "model.layers.0.mlp.up_proj.weight").bytes;
        std::fill_n(bytes.begin() + 2 * 128 * 17, 2 * 2 * 128, '\0');
      });
  const QuantizedLayer layer = GptqCase(toy_folder, {}, windows_).run().front();
  EXPECT_EQ(layer.reports[3].note, "2 inputs are always zero");
  EXPECT_EQ(layer.reports[0].note, "");
  for (std::int64_t r = 0; r < layer.matrices[3].rows; ++r) {
    EXPECT_EQ(layer.matrices[3].row(r)[17], 0);
    EXPECT_EQ(layer.matrices[3].row(r)[18], 0);
  }
}

}  // namespace
}  // namespace fut::test
