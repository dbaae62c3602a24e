// GPTQ layer by layer: the layers that are quantised already process the calibration text, and the
// matrices of a layer see what the quantised ones before them give. What is done to one matrix is
// loader/gptq.h.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "engine/quantize_layer.h"
#include "loader/gptq.h"

namespace fut {

// How the note of a matrix begins that GPTQ had to leave to round-to-nearest.
inline constexpr std::string_view kRoundedToNearest = "rounded to nearest";

[[nodiscard]] GptqOptions gptq_options(const PackedOptions& options);

// A matrix that GPTQ could not serve is said aloud, not only in its line of the card.
void add_reports(ReportCard& card, std::span<const MatrixReport> reports);

// What the card says of a matrix beside its numbers.
[[nodiscard]] std::string note_of(const GptqFactor& factor);

// Layers in order. Two streams of hidden states go through the model: one through the quantised
// matrices, which Hessians are taken of, and one through the weights as they were, which tells what
// the inputs should have been (GptqOptions::upstream_share).
class SequentialGptq {
 public:
  // What is passed must outlive it. The runners, one for each stream, are free between two calls.
  SequentialGptq(Backend& backend, const WeightTransforms& weights, LayerRunner& quantised,
                 LayerRunner& original, const CalibrationWindows& windows,
                 const GptqOptions& options, ParallelFor parallel_for);

  // Throws Data as factor_hessian and quantize_gptq.
  [[nodiscard]] QuantizedLayer next(const StackedLayer& layer, const MatrixDone& done = {});

  // Of both streams: all that is kept from one layer to the next.
  [[nodiscard]] std::array<HiddenStates*, 2> hidden() {
    return {&quantised_.hidden, &original_.hidden};
  }

 private:
  struct Stream {
    LayerRunner& runner;
    HiddenStates hidden;
  };
  // What a matrix sees of one window.
  using Input = std::function<HostRows(LayerRunner& runner, ActivationView x)>;
  // Sums over tokens: of x x^T, and of (x0 - x) x^T with x0 as it was.
  struct Moments {
    SquareMatrix h, g;
  };
  [[nodiscard]] bool looks_upstream() const { return options_.upstream_share > 0; }
  [[nodiscard]] Moments moments(std::int64_t size, const Input& input);
  // Quantises matrix `which`, and returns it as the next ops should see it.
  HostMatrix quantize(const HostMatrix& w, const Moments& moments, PackedMatrix which,
                      QuantizedLayer& out) const;
  void load_original(const StackedLayer& layer);
  void finish_layer();

  Stream quantised_, original_;
  GptqOptions options_;
  ParallelFor parallel_for_;
};

}  // namespace fut
