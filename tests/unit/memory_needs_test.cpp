// What is planned is what is allocated, byte for byte on the CPU; what fits is the most that does; the
// roofline reads what fut bench reads.
#include "engine/memory_needs.h"

#include <gtest/gtest.h>

#include "engine/decode_bench.h"
#include "engine/roofline.h"
#include "kernels/backend.h"
#include "loader/packed_model.h"
#include "tests/support/expect_error.h"
#include "tests/support/quantized_folder.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_data.h"
#include "tests/support/toy_models.h"

namespace fut::test {
namespace {

std::unique_ptr<Backend> cpu() {
  DeviceRequest request;
  request.kind = DeviceRequest::Kind::Cpu;
  request.cpu_threads = 1;
  std::string notice;
  return make_backend(request, notice);
}

EngineOptions engine_of(const ModelConfig& config, Precision precision, int context,
                        int sequences) {
  EngineOptions options;
  options.context_tokens = context;
  options.max_sequences = sequences;
  options.kv_cache = resolve_kv_cache(config, precision, {});
  return options;
}

// Loads `model` and makes engines of it, and holds each against its plan.
template <class Load>
void expect_planned(const ModelConfig& config, Precision precision, const WeightBytes& weights,
                    const Load& load) {
  for (const auto& [context, sequences] : {std::pair{2, 1}, {100, 3}, {1024, 7}}) {
    SCOPED_TRACE(testing::Message() << precision_name(precision) << ", " << sequences << " of "
                                    << context << " tokens");
    const auto backend = cpu();
    const std::size_t before = backend->memory().free_bytes;
    Model model = load(*backend);
    EXPECT_EQ(weights.total(), before - backend->memory().free_bytes);
    const EngineOptions options = engine_of(config, precision, context, sequences);
    const Engine engine(*backend, std::move(model), options);
    EXPECT_EQ(memory_needs(weights, config, options, MemoryOwner::Cpu).total,
              before - backend->memory().free_bytes);
  }
}

TEST(MemoryNeeds, OfACheckpointAreWhatIsAllocated) {
  for (const bool tied : {false, true}) {
    for (const DType dtype : {DType::BF16, DType::F32}) {
      const TempFolder folder;
      ToyModelOptions toy = small_quantizable_model();
      toy.files.dtype = dtype;
      toy.files.tie_word_embeddings = tied;
      toy.files.write_head = !tied;
      write_toy_model(folder.path(), toy);
      ModelConfig config = load_model_config(folder.path());
      const Checkpoint checkpoint = Checkpoint::open(folder.path(), config);
      for (const Precision precision : {Precision::F32, Precision::Bf16}) {
        const WeightBytes weights = checkpoint_weight_bytes(checkpoint, config, precision);
        expect_planned(config, precision, weights, [&](Backend& backend) {
          return Model::load(backend, checkpoint, config, precision);
        });
        // The same without the files.
        config.torch_dtype = dtype == DType::F32 ? "float32" : "bfloat16";
        EXPECT_EQ(checkpoint_weight_bytes(config, precision).total(), weights.total());
        EXPECT_EQ(weights.head == 0, tied && precision == Precision::F32);
      }
    }
  }
}

TEST(MemoryNeeds, OfAQuantisedFolderAreWhatIsAllocated) {
  const TempFolder folder;
  write_toy_model(folder / "toy", small_quantizable_model());
  for (const int group_size : {64, 128}) {
    PackedOptions how;
    how.group_size = group_size;
    const auto target = folder / std::to_string(group_size);
    quantize_for_test(folder / "toy", target, how);
    ModelConfig config = load_model_config(target);
    const PackedModel packed = PackedModel::open(target, config);
    for (const Precision precision : {Precision::Fp8, Precision::Int4}) {
      for (const HeadChoice head : {HeadChoice::Int8, HeadChoice::Bf16, HeadChoice::Int8Rescored}) {
        const WeightBytes weights = packed_weight_bytes(config, group_size, precision, head);
        EXPECT_EQ(weights.int4_copy > 0, precision == Precision::Int4);
        expect_planned(config, precision, weights, [&](Backend& backend) {
          return Model::load_packed(backend, packed, config, precision, head);
        });
        if (precision != Precision::Int4) continue;
        const WeightBytes expanding =
            packed_weight_bytes(config, group_size, precision, head, PrefillWeights::Int4);
        EXPECT_EQ(expanding.fp8_copy, 0U);
        EXPECT_LT(expanding.total(), weights.total());
        expect_planned(config, precision, expanding, [&](Backend& backend) {
          return Model::load_packed(backend, packed, config, precision, head, {}, {}, nullptr,
                                    PrefillWeights::Int4);
        });
      }
    }
  }
}

ModelConfig llama_8b() {
  return load_model_config_file(source_path("configs/llama-3.1-8b.json"));
}

TEST(MemoryNeeds, AGpuHasItsDriverBeside) {
  const ModelConfig config = llama_8b();
  const WeightBytes weights = packed_weight_bytes(config, 128, Precision::Int4, HeadChoice::Int8);
  const EngineOptions options = engine_of(config, Precision::Int4, 8192, 4);
  const MemoryNeeds on_cpu = memory_needs(weights, config, options, MemoryOwner::Cpu);
  const MemoryNeeds seen = memory_needs(weights, config, options, MemoryOwner::Gpu);
  const MemoryNeeds unseen = memory_needs(weights, config, options, MemoryOwner::UnseenGpu);
  EXPECT_EQ(on_cpu.driver + on_cpu.graphs, 0U);
  EXPECT_EQ(seen.total, on_cpu.total - on_cpu.engine.shared + seen.engine.history +
                            seen.engine.operands + seen.graphs + seen.driver);
  // A byte for each of 8192 tokens' inputs.
  EXPECT_EQ(seen.engine.operands, 8192U * 4096);
  // Keys and values of 8 heads of 128 dims, two bytes each, of 4 x 8192 tokens.
  EXPECT_EQ(seen.engine.history, 2U * 8 * 128 * 2 * 4 * 8192);
  EXPECT_GT(unseen.driver, seen.driver);
  // 8.03 billion weights: a byte and half a byte each, embedding and head apart.
  EXPECT_NEAR(static_cast<double>(weights.fp8_copy), 6.98e9, 0.02e9);
  EXPECT_NEAR(static_cast<double>(weights.int4_copy), 6.98e9 * 4.125 / 8, 0.02e9);
}

TEST(MemoryNeeds, SeventyBillionWeightsFitEightyGigabytesWithoutACopyForPrefill) {
  const ModelConfig config = load_model_config_file(source_path("configs/llama-3.1-70b.json"));
  const EngineOptions options = engine_of(config, Precision::Int4, 8192, 4);
  const auto total = [&](PrefillWeights prefill) {
    return memory_needs(
               packed_weight_bytes(config, 128, Precision::Int4, HeadChoice::Int8, prefill), config,
               options, MemoryOwner::UnseenGpu)
        .total;
  };
  EXPECT_LT(total(PrefillWeights::Int4), std::size_t{80'000'000'000});
  EXPECT_GT(total(PrefillWeights::Fp8), std::size_t{100'000'000'000});
}

TEST(MemoryNeeds, TheLargestThatFitIsTheLast) {
  const ModelConfig config = llama_8b();
  const WeightBytes weights = packed_weight_bytes(config, 128, Precision::Int4, HeadChoice::Int8);
  const EngineOptions options = engine_of(config, Precision::Int4, 4096, 2);
  const auto total = [&](int context, int sequences) {
    const EngineOptions changed = engine_of(config, Precision::Int4, context, sequences);
    return memory_needs(weights, config, changed, MemoryOwner::Gpu).total;
  };
  for (const std::size_t bytes :
       {total(4096, 2), total(4096, 2) - 1, total(3000, 2), total(40000, 2), total(4096, 17)}) {
    const LargestFit fit = largest_fit(weights, config, options, MemoryOwner::Gpu, bytes);
    EXPECT_LE(total(fit.context_tokens, 2), bytes);
    EXPECT_GT(total(fit.context_tokens + 1, 2), bytes);
    EXPECT_GT(total(4096, fit.sequences + 1), bytes);
    if (fit.sequences > 0) {
      EXPECT_LE(total(4096, fit.sequences), bytes);
    }
  }
  const LargestFit none = largest_fit(weights, config, options, MemoryOwner::Gpu, weights.total());
  EXPECT_EQ(none.context_tokens + none.sequences, 0);
  const LargestFit all =
      largest_fit(weights, config, options, MemoryOwner::Gpu, std::size_t{1} << 45);
  EXPECT_EQ(all.context_tokens, config.max_position_embeddings);
  EXPECT_EQ(all.sequences, kMostSequences);
  (void)error_message(ErrorKind::Usage, [&] {
    (void)memory_needs(weights, config,
                       engine_of(config, Precision::Int4, config.max_position_embeddings + 1, 1),
                       MemoryOwner::Gpu);
  });
}

TEST(Roofline, ReadsWhatTheBenchmarkReads) {
  const TempFolder folder;
  write_toy_model(folder / "toy", small_quantizable_model());
  const ModelConfig config = load_model_config(folder / "toy");
  for (const Precision precision : {Precision::Int4, Precision::Fp8, Precision::Bf16}) {
    const auto backend = cpu();
    const Model model = Model::make_random(*backend, config, precision);
    DecodeBenchOptions options;
    options.sequences = 3;
    options.depth_tokens = 640;
    options.kv_cache = resolve_kv_cache(config, precision, {});
    DecodeBench bench(*backend, model, options);
    const RooflineModel planned{config, precision, options.kv_cache,
                                is_quantized(precision)
                                    ? packed_weight_bytes(config, 128, precision, HeadChoice::Int8)
                                    : checkpoint_weight_bytes(config, precision)};
    // Tensors lie at multiples of 256 bytes; FP8 has the scales of attention's outputs beside.
    constexpr std::int64_t kAlignment = 256;
    const std::int64_t tensors = 2 + config.num_layers * 9;
    const std::int64_t bytes = decode_step_bytes(planned, 3, 640);
    EXPECT_GE(bytes, bench.bytes_per_step()) << precision_name(precision);
    EXPECT_LE(bytes, bench.bytes_per_step() + tensors * kAlignment) << precision_name(precision);
  }
}

TEST(RandomWeights, HaveTheLayersOfTheStepsAskedFor) {
  const TempFolder folder;
  write_toy_model(folder / "toy", small_quantizable_model());
  const ModelConfig config = load_model_config(folder / "toy");
  const auto backend = cpu();
  const Model both =
      Model::make_random(*backend, config, Precision::Int4, RandomFor::Both, PrefillWeights::Fp8);
  const int last = config.num_layers - 1;
  EXPECT_TRUE(std::holds_alternative<Int4Matrix>(both.layer(last, StepKind::Decode).o_proj));
  EXPECT_TRUE(std::holds_alternative<E4m3Matrix>(both.layer(last, StepKind::Prefill).o_proj));
  const Model decode = Model::make_random(*backend, config, Precision::Int4, RandomFor::Decode);
  const std::string message =
      error_message(ErrorKind::Runtime, [&] { (void)decode.layer(0, StepKind::Prefill); });
  EXPECT_NE(message.find("other steps"), std::string::npos) << message;
}

TEST(Roofline, PrefillIsBoundByArithmeticOrByItsWeights) {
  const ModelConfig config = llama_8b();
  const RooflineModel model{config, Precision::Int4, resolve_kv_cache(config, Precision::Int4, {}),
                            packed_weight_bytes(config, 128, Precision::Int4, HeadChoice::Int8)};
  const Roof roof{1e12, 1e15, 1e15};
  // One token reads the weights; 512 compute 2 operations for each weight, and attention's.
  EXPECT_DOUBLE_EQ(prefill_seconds(model, roof, 1),
                   static_cast<double>(model.weights.fp8_copy) / roof.bytes_per_second);
  const double products = 2.0 * 512 * 6.98e9 / roof.fp8_flops;
  const double attention = 4.0 * (512.0 * 513 / 2) * 32 * 128 * 32 / roof.bf16_flops;
  EXPECT_NEAR(prefill_seconds(model, Roof{1e15, 1e15, 1e15}, 512), products + attention,
              0.002 * products);
}

}  // namespace
}  // namespace fut::test
