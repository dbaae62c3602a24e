// The order of everything. Refusals come first: shape, text, target and disk space are looked at
// before a weight is read.
#include "engine/quantize.h"

#include <algorithm>
#include <memory>
#include <string>

#include "engine/parallel.h"
#include "engine/quantize_gptq.h"
#include "engine/quantize_memory.h"
#include "engine/quantize_state.h"
#include "engine/quantize_stream.h"
#include "engine/token_ids.h"
#include "kernels/error.h"
#include "tokenizer/sha256.h"

namespace fut {
namespace {

// Weights done of all, in words and numbers.
class WeightCounter {
 public:
  WeightCounter(const ModelConfig& config, const QuantizeProgress& progress)
      : num_layers_(config.num_layers), progress_(progress) {
    for (int m = 0; m < kNumPackedMatrices; ++m) {
      const PackedMatrixShape shape = packed_matrix_shape(config, static_cast<PackedMatrix>(m));
      of_layer_ += static_cast<std::uint64_t>(std::int64_t{shape.rows} * shape.cols);
    }
    of_vocabulary_ =
        static_cast<std::uint64_t>(std::int64_t{config.vocab_size} * config.hidden_size);
    total_ = 2 * of_vocabulary_ + num_layers_ * of_layer_;
  }

  void begin(std::string stage) {
    stage_ = std::move(stage);
    report();
  }
  void begin_layer(int index) { begin(fmt::format("layer {} of {}", index + 1, num_layers_)); }
  void add(const HostMatrix& w) { add(w.values.size()); }
  void add(std::uint64_t weights) {
    done_ += weights;
    report();
  }
  // Embedding and first layers, which an earlier run has done.
  void skip(int layers) { done_ = of_vocabulary_ + layers * of_layer_; }
  // Nothing new: so that the callback can stop what takes long.
  void tick() const { report(); }

 private:
  void report() const {
    if (progress_) progress_(stage_, done_, total_);
  }

  int num_layers_;
  const QuantizeProgress& progress_;
  std::string stage_;
  std::uint64_t of_layer_ = 0, of_vocabulary_ = 0;
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
};

// The windows of both passes. Statistics never take more than the automatic number, so that GPTQ
// and round-to-nearest start from the same transformed weights.
struct Windows {
  CalibrationWindows statistics;
  CalibrationWindows gptq;  // empty for round-to-nearest

  [[nodiscard]] CalibrationSize size() const {
    return {count_tokens(statistics), count_tokens(gptq), static_cast<std::int64_t>(longest())};
  }
  [[nodiscard]] std::size_t longest() const {
    return std::max(statistics.front().size(), gptq.empty() ? 0 : gptq.front().size());
  }
};

Windows choose_all_windows(const ModelConfig& config, const PackedOptions& options,
                           std::span<const std::int32_t> ids) {
  if (options.calibration_tokens < 1) {
    throw usage_error("--calib-tokens {}: at least 1 is needed", options.calibration_tokens);
  }
  const auto within_context = [&](int window) {
    return std::min(window, config.max_position_embeddings);
  };
  Windows windows;
  const bool gptq = options.method == QuantMethod::Gptq;
  const std::int64_t tokens = options.calibration_tokens;
  windows.statistics = choose_windows(ids, within_context(kStatisticsWindow),
                                      gptq ? std::min(tokens, kRtnCalibrationTokens) : tokens);
  if (gptq) windows.gptq = choose_windows(ids, within_context(kGptqWindow), tokens);
  return windows;
}

ReportCard start_card(const PackedOptions& options, const Windows& windows,
                      std::span<const std::int32_t> ids) {
  ReportCard card;
  card.calibration_tokens = count_tokens(windows.gptq.empty() ? windows.statistics : windows.gptq);
  if (std::ssize(ids) < options.calibration_tokens) {
    card.notices.push_back(
        fmt::format("the calibration text has {} tokens, {} were asked for: {} are used",
                    ids.size(), options.calibration_tokens, card.calibration_tokens));
  }
  return card;
}

void require_memory(const Backend& backend, std::uint64_t needed) {
  const std::uint64_t free = backend.memory().free_bytes;
  if (needed <= free) return;
  throw capacity_error(
      "quantising takes {:.1f} GB of {}, of which {:.1f} GB are free; give it fewer "
      "--calib-tokens, "
      "or quantise with --device cpu",
      static_cast<double>(needed) / 1e9, backend.description(), static_cast<double>(free) / 1e9);
}

// The embedding is one tensor more.
int layers_of(std::size_t tensors) {
  return static_cast<int>(tensors) / kNumPackedLayerTensors;
}

// A folder's tensors in their order; what is done to the layers is the caller's.
class FolderQuantizer {
 public:
  FolderQuantizer(const Checkpoint& checkpoint, const ModelConfig& config,
                  const PackedOptions& options, PackedWriter& writer, WeightCounter& counter,
                  const ParallelFor& parallel_for)
      : config_(config),
        options_(options),
        counter_(counter),
        parallel_for_(parallel_for),
        writer_(writer),
        weights_(checkpoint, config, options, parallel_for),
        packer_(writer, weights_, config, options.group_size, parallel_for) {}

  void run(Backend& backend, const Windows& windows, ReportCard& card) {
    if (writer_.resumed_tensors() > 0) {
      counter_.skip(first_layer());
    } else {
      counter_.begin("embedding");
      packer_.append_embedding(count_);
    }
    if (backend.offline_ops() != nullptr) {
      run_on_device(backend, windows, card);
    } else {
      run_on_host(backend, windows, card);
    }
    counter_.begin("head");
    packer_.append_head(count_);
  }

 private:
  // Where an earlier run came to.
  [[nodiscard]] int first_layer() const { return layers_of(writer_.resumed_tensors()); }
  void restore(ReportCard& card, std::span<HiddenStates* const> hidden) {
    if (writer_.resumed_tensors() > 0) restore_state(writer_.take_resumed_state(), card, hidden);
  }

  void run_on_device(Backend& backend, const Windows& windows, ReportCard& card) {
    require_memory(backend, quantizer_bytes(config_, options_, windows.size()));
    DeviceQuantizer quantizer(backend, weights_, config_, options_, windows.statistics, tick_,
                              windows.gptq);
    restore(card, quantizer.hidden());
    quantizer.go_on_at(first_layer());
    const LayerProgress progress{[&](int layer) { counter_.begin_layer(layer); },
                                 [&](std::uint64_t weights) { counter_.add(weights); }};
    stream_layers(quantizer, weights_, {first_layer(), config_.num_layers}, packer_, card,
                  progress);
  }

  void run_on_host(Backend& backend, const Windows& windows, ReportCard& card) {
    const int longest = static_cast<int>(windows.longest());
    LayerRunner runner(backend, config_, longest, tick_);
    Calibrator calibrator(backend, weights_, config_, options_, runner, windows.statistics);
    std::unique_ptr<LayerRunner> quantised_runner;  // these two for GPTQ alone
    std::unique_ptr<SequentialGptq> gptq;
    if (!windows.gptq.empty()) {
      quantised_runner = std::make_unique<LayerRunner>(backend, config_, longest, tick_);
      gptq = std::make_unique<SequentialGptq>(backend, weights_, *quantised_runner, runner,
                                              windows.gptq, gptq_options(options_), parallel_for_);
    }
    std::vector<HiddenStates*> hidden = {&calibrator.hidden()};
    if (gptq) hidden.insert(hidden.end(), {gptq->hidden()[0], gptq->hidden()[1]});
    restore(card, hidden);
    calibrator.go_on_at(first_layer());
    SavingTimes saving;
    for (int i = first_layer(); i < config_.num_layers; ++i) {
      counter_.begin_layer(i);
      CalibratedLayer calibrated = calibrator.next();
      const StackedLayer layer = stack_layer(std::move(calibrated.weights), i);
      const QuantizedLayer quantized =
          gptq ? gptq->next(layer, count_)
               : quantize_layer_rtn(layer, calibrated.statistics, options_, parallel_for_, count_);
      add_reports(card, quantized.reports);
      packer_.append_layer(
          i, pack_layer(config_, layer, quantized, calibrated.statistics, parallel_for_),
          saving.is_due(state_bytes(hidden)) ? save_state(card, hidden) : SavedState());
    }
  }

  const ModelConfig& config_;
  const PackedOptions& options_;
  WeightCounter& counter_;
  const ParallelFor& parallel_for_;
  PackedWriter& writer_;
  WeightTransforms weights_;
  TensorPacker packer_;
  MatrixDone count_ = [this](const HostMatrix& w) { counter_.add(w); };
  std::function<void()> tick_ = [this] { counter_.tick(); };
};

// What the bytes depend on beside source, options and calibration.
std::string resume_key(Backend& backend, const PackedOptions& options) {
  if (backend.offline_ops() == nullptr) return "on the host";
  if (options.method != QuantMethod::Gptq) return "on a device";
  return "on a device: " + backend.offline_ops()->gptq().made_by();
}

}  // namespace

ReportCard quantize_folder(Backend& backend, const std::filesystem::path& source,
                           const std::filesystem::path& target, const PackedOptions& options,
                           std::span<const std::int32_t> calibration, bool overwrite,
                           const QuantizeProgress& progress, int threads,
                           const QuantizeResume& resume) {
  if (options.method == QuantMethod::Gptq && backend.offline_ops() != nullptr) {
    (void)backend.offline_ops()->gptq();  // libraries are missed before a weight is read
  }
  ModelConfig config = load_model_config(source);
  const Checkpoint checkpoint = Checkpoint::open(source, config);
  check_packable(config, options.group_size);
  check_ids(calibration, config.vocab_size, "the calibration text");
  const Windows windows = choose_all_windows(config, options, calibration);
  ReportCard card = start_card(options, windows, calibration);
  const ParallelFor parallel_for = parallel_for_on_threads(threads);
  WeightCounter counter(config, progress);
  counter.begin("reading the source");
  PackedWriter writer(
      target, {options, identify_source(source, IdentityDepth::Full, sha256_hex, parallel_for)},
      packed_tensors(config, options.group_size, true), overwrite, resume_key(backend, options));
  const auto tell = [&](const auto& listener, std::size_t tensors) {
    if (!listener || tensors == 0) return;
    listener({layers_of(tensors), config.num_layers, writer.partial_folder()});
  };
  tell(resume.goes_on, writer.resumed_tensors());
  try {
    FolderQuantizer(checkpoint, config, options, writer, counter, parallel_for)
        .run(backend, windows, card);
  } catch (const Error&) {  // the same command would fail once more
    throw;
  } catch (...) {
    tell(resume.keeps, writer.keep_progress());
    throw;
  }
  writer.copy_companions(source);
  checkpoint.require_unchanged();
  writer.finish(report_card_json(card));
  return card;
}

}  // namespace fut
