// See the header. Random numbers are a function of seed, tensor and place, whoever makes them.
#include "tests/support/shape_models.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <unistd.h>

#include "engine/parallel.h"
#include "kernels/numeric/formats.h"
#include "loader/checkpoint.h"
#include "loader/packed_writer.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/temp_folder.h"
#include "tokenizer/sha256.h"

namespace fut::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr int kGroup = 128;
constexpr int kSpecials = 256;
constexpr std::size_t kPieceBytes = std::size_t{8} << 20;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// ---- random bytes -------------------------------------------------------------------------------

std::uint64_t mixed(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

// Words of a stream, the first of them number `first`.
class Words {
 public:
  Words(std::uint64_t stream, std::uint64_t first) : state_(mixed(stream) + first) {}
  std::uint64_t next() { return mixed(state_++); }

 private:
  std::uint64_t state_;
};

void fill_words(Words words, std::span<std::byte> bytes) {
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(std::uint64_t)) {
    const std::uint64_t word = words.next();
    std::memcpy(bytes.data() + i, &word, std::min(sizeof(word), bytes.size() - i));
  }
}

// BF16 numbers of a normal distribution: draws from a table of draws.
class NormalTable {
 public:
  NormalTable(double mean, double deviation) : values_(1U << 16) {
    std::mt19937 engine(1);
    std::normal_distribution<double> normal(mean, deviation);
    for (std::uint16_t& value : values_) value = f32_to_bf16(static_cast<float>(normal(engine)));
  }
  void fill(Words words, std::span<std::byte> bytes) const {
    constexpr std::size_t kEach = 4;
    for (std::size_t i = 0; i < bytes.size(); i += sizeof(std::uint64_t)) {
      const std::uint64_t word = words.next();
      std::array<std::uint16_t, kEach> numbers = {};
      for (std::size_t n = 0; n < kEach; ++n) numbers[n] = values_[word >> (16 * n) & 0xFFFFU];
      std::memcpy(bytes.data() + i, numbers.data(), std::min(sizeof(numbers), bytes.size() - i));
    }
  }

 private:
  std::vector<std::uint16_t> values_;
};

// Fills bytes that begin at `offset` of a tensor, a multiple of kPieceBytes.
using Fill = std::function<void(std::uint64_t offset, std::span<std::byte> bytes)>;

// Deviations as trained models have them; what writes to the residual is smaller by its depth.
constexpr double kDeviation = 0.02;
Fill normal_fill(std::uint64_t stream, double mean, double deviation) {
  const auto table = std::make_shared<const NormalTable>(mean, deviation);
  return [=](std::uint64_t offset, std::span<std::byte> bytes) {
    table->fill(Words(stream, offset / sizeof(std::uint64_t)), bytes);
  };
}

// ---- the files around the weights ---------------------------------------------------------------

json shape_config(const ShapeModelOptions& options) {
  json config = json::parse(read_file(options.shape));
  if (options.num_layers > 0) config["num_hidden_layers"] = options.num_layers;
  return config;
}

void write_companions(const fs::path& folder, const json& config) {
  const ToyVocabulary vocabulary = llama3_like_vocabulary(config.at("vocab_size").get<int>());
  write_file(folder / "config.json", config.dump(2) + "\n");
  write_file(folder / "generation_config.json", json{{"do_sample", true},
                                                     {"temperature", 0.6},
                                                     {"top_p", 0.9},
                                                     {"bos_token_id", config.at("bos_token_id")},
                                                     {"eos_token_id", config.at("eos_token_id")}}
                                                        .dump(2) +
                                                    "\n");
  write_file(folder / "tokenizer.json", tokenizer_json(vocabulary).dump());
  write_file(folder / "tokenizer_config.json", tokenizer_config_json(vocabulary, true).dump(2));
}

// ---- a checkpoint -------------------------------------------------------------------------------

struct ShapeTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  Fill fill;

  [[nodiscard]] std::uint64_t bytes() const {
    std::uint64_t bytes = sizeof(std::uint16_t);
    for (const std::int64_t extent : shape) bytes *= static_cast<std::uint64_t>(extent);
    return bytes;
  }
};

constexpr std::array<const char*, kNumLayerTensors> kLayerNames = {
    "input_layernorm",  "self_attn.q_proj", "self_attn.k_proj",
    "self_attn.v_proj", "self_attn.o_proj", "post_attention_layernorm",
    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};

std::vector<ShapeTensor> checkpoint_tensors(const ModelConfig& config, std::uint64_t seed) {
  std::vector<ShapeTensor> tensors;
  const auto add = [&](std::string name, std::vector<std::int64_t> shape, double mean,
                       double deviation) {
    const std::uint64_t stream = seed << 32 | tensors.size();
    tensors.push_back({std::move(name), std::move(shape), normal_fill(stream, mean, deviation)});
  };
  add("model.embed_tokens.weight", checkpoint_shape(config, GlobalTensor::EmbedTokens), 0,
      kDeviation);
  const double depth = std::sqrt(2.0 * config.num_layers);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (int t = 0; t < kNumLayerTensors; ++t) {
      const auto which = static_cast<LayerTensor>(t);
      const std::vector<std::int64_t> shape = checkpoint_shape(config, which);
      const bool is_gain = shape.size() == 1;
      const bool to_residual = which == LayerTensor::OProj || which == LayerTensor::DownProj;
      add(fmt::format("model.layers.{}.{}.weight", layer, kLayerNames[static_cast<std::size_t>(t)]),
          shape, is_gain ? 1 : 0, to_residual ? kDeviation / depth : kDeviation);
    }
  }
  add("model.norm.weight", checkpoint_shape(config, GlobalTensor::FinalNorm), 1, kDeviation);
  if (!config.tie_word_embeddings) {
    add("lm_head.weight", checkpoint_shape(config, GlobalTensor::LmHead), 0, kDeviation);
  }
  return tensors;
}

// A file that threads write to at any place.
class ShardFile {
 public:
  ShardFile(const fs::path& path, std::uint64_t bytes)
      : path_(path), descriptor_(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0666)) {
    if (descriptor_ < 0 || ::posix_fallocate(descriptor_, 0, static_cast<off_t>(bytes)) != 0) {
      fail("cannot be made with its size");
    }
  }
  ShardFile(const ShardFile&) = delete;
  ShardFile& operator=(const ShardFile&) = delete;
  ~ShardFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  void write(std::uint64_t offset, std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      const ssize_t written =
          ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (written <= 0) fail("cannot be written");
      bytes = bytes.subspan(static_cast<std::size_t>(written));
      offset += static_cast<std::uint64_t>(written);
    }
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw std::runtime_error(fmt::format("{}: {}: {}", path_.string(), what, strerror(errno)));
  }
  fs::path path_;
  int descriptor_;
};

void write_shard(const fs::path& path, std::span<const ShapeTensor> tensors,
                 const ParallelFor& parallel_for) {
  json header = json::object();
  struct Piece {
    const ShapeTensor* tensor;
    std::uint64_t begin;  // of the tensor
    std::uint64_t place;  // of the tensor in the file, without the header
  };
  std::vector<Piece> pieces;
  std::uint64_t end = 0;
  for (const ShapeTensor& tensor : tensors) {
    const std::uint64_t begin = end;
    end += tensor.bytes();
    header[tensor.name] = {
        {"dtype", "BF16"}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
    for (std::uint64_t b = 0; b < tensor.bytes(); b += kPieceBytes) {
      pieces.push_back({&tensor, b, begin});
    }
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::string image = safetensors_image(text, "");
  const ShardFile file(path, image.size() + end);
  file.write(0, std::as_bytes(std::span(image)));
  run_parallel(parallel_for, std::ssize(pieces), [&](std::int64_t from, std::int64_t to) {
    std::vector<std::byte> bytes(kPieceBytes);
    for (std::int64_t i = from; i < to; ++i) {
      const Piece& piece = pieces[static_cast<std::size_t>(i)];
      const auto count = static_cast<std::size_t>(
          std::min<std::uint64_t>(kPieceBytes, piece.tensor->bytes() - piece.begin));
      piece.tensor->fill(piece.begin, std::span(bytes).first(count));
      file.write(image.size() + piece.place + piece.begin, std::span(bytes).first(count));
    }
  });
}

// ---- a quantised folder -------------------------------------------------------------------------

// Codes have a standard deviation of some 4.6 (INT4), 73 (INT8), 0.6 (E4M3 below 2); with these scales
// a product of inputs of size 1 has a size of about 1/2.
float scale_for(std::int64_t cols, double deviation) {
  return static_cast<float>(0.5 / (deviation * std::sqrt(static_cast<double>(cols))));
}

Fill constant_fill(float value) {
  return [value](std::uint64_t, std::span<std::byte> bytes) {
    for (std::size_t i = 0; i < bytes.size(); i += sizeof(value)) {
      std::memcpy(bytes.data() + i, &value, sizeof(value));
    }
  };
}

// Random bytes, each of them changed by `change`.
template <class Change>
Fill bytes_fill(std::uint64_t stream, const Change& change) {
  return [=](std::uint64_t offset, std::span<std::byte> bytes) {
    fill_words(Words(stream, offset / sizeof(std::uint64_t)), bytes);
    for (std::byte& byte : bytes) byte = change(byte);
  };
}

Fill int4_fill(std::uint64_t stream, const layout::Int4Tile& tile, float scale) {
  const std::uint16_t bits = f32_to_bf16(scale);
  const auto record = static_cast<std::uint64_t>(tile.record_bytes());
  constexpr std::uint64_t kScales = layout::Int4Tile::kScaleBytes;
  return [=](std::uint64_t offset, std::span<std::byte> bytes) {
    fill_words(Words(stream, offset / sizeof(std::uint64_t)), bytes);
    // The scales at the end of each record that lies here, wholly or in part.
    for (std::uint64_t at = offset / record * record + record - kScales; at < offset + bytes.size();
         at += record) {
      for (std::uint64_t i = at; i < at + kScales; i += sizeof(bits)) {
        if (i < offset || i + sizeof(bits) > offset + bytes.size()) continue;
        std::memcpy(bytes.data() + (i - offset), &bits, sizeof(bits));
      }
    }
  };
}

Fill packed_fill(const ModelConfig& config, const PackedTensor& tensor, std::uint64_t stream) {
  const std::string& name = tensor.name;
  const std::int64_t hidden = config.hidden_size;
  for (int m = 0; m < kNumPackedMatrices; ++m) {
    const PackedMatrixShape shape = packed_matrix_shape(config, static_cast<PackedMatrix>(m));
    if (name.ends_with(fmt::format(".{}.int4", shape.name))) {
      return int4_fill(stream, shape.tile(kGroup), scale_for(shape.cols, 4.6));
    }
    if (name.ends_with(fmt::format(".{}.e4m3_scale", shape.name))) {
      return constant_fill(scale_for(shape.cols, 0.6));
    }
  }
  if (name.ends_with(".e4m3")) {
    return bytes_fill(stream, [](std::byte code) { return code & std::byte{0xBF}; });
  }
  if (name.ends_with("_output_scale")) return constant_fill(16);
  if (name == "lm_head.int8") {
    return bytes_fill(stream,
                      [](std::byte code) { return code == std::byte{0x80} ? std::byte{0} : code; });
  }
  if (name == "lm_head.int8_scale") return constant_fill(scale_for(hidden, 73));
  if (tensor.dtype == DType::BF16) return normal_fill(stream, 0, kDeviation);
  return constant_fill(1);  // statistics
}

void append_tensor(PackedWriter& writer, const PackedTensor& tensor, const Fill& fill,
                   const ParallelFor& parallel_for) {
  constexpr std::uint64_t kBlock = 16 * kPieceBytes;
  const std::uint64_t size = tensor_bytes(tensor);
  for (std::uint64_t begin = 0; begin < size; begin += kBlock) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(std::min(kBlock, size - begin)));
    const auto pieces = static_cast<std::int64_t>((bytes.size() + kPieceBytes - 1) / kPieceBytes);
    run_parallel(parallel_for, pieces, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t i = from; i < to; ++i) {
        const std::size_t at = static_cast<std::size_t>(i) * kPieceBytes;
        fill(begin + at, std::span(bytes).subspan(at, std::min(kPieceBytes, bytes.size() - at)));
      }
    });
    writer.append(tensor.name, bytes);
  }
}

}  // namespace

WrittenBytes write_shape_checkpoint(const fs::path& folder, const ShapeModelOptions& options) {
  fs::create_directories(folder);
  write_companions(folder, shape_config(options));
  const ModelConfig config = load_model_config(folder);
  const std::vector<ShapeTensor> tensors = checkpoint_tensors(config, options.seed);
  const ParallelFor parallel_for = parallel_for_on_threads(options.threads);
  const Clock::time_point start = Clock::now();
  WrittenBytes written;
  for (const ShapeTensor& tensor : tensors) written.bytes += tensor.bytes();
  json index = {{"metadata", {{"total_size", written.bytes}}}, {"weight_map", json::object()}};
  std::size_t begin = 0;
  std::uint64_t done = 0;
  for (int shard = 0; shard < options.num_shards; ++shard) {
    const std::uint64_t share = written.bytes * static_cast<std::uint64_t>(shard + 1) /
                                static_cast<std::uint64_t>(options.num_shards);
    const std::string name = shard_name(shard, options.num_shards);
    std::size_t end = begin;
    const bool is_last = shard + 1 == options.num_shards;
    while (end < tensors.size() && (is_last || done + tensors[end].bytes() / 2 <= share)) {
      index["weight_map"][tensors[end].name] = name;
      done += tensors[end++].bytes();
    }
    write_shard(folder / name, std::span(tensors).subspan(begin, end - begin), parallel_for);
    begin = end;
  }
  write_file(folder / "model.safetensors.index.json", index.dump(2));
  written.seconds = seconds_since(start);
  return written;
}

WrittenBytes write_shape_packed(const fs::path& folder, const ShapeModelOptions& options) {
  const TempFolder source;
  write_companions(source.path(), shape_config(options));
  const ModelConfig config = load_model_config(source.path());
  const std::string config_text = read_file(source / "config.json");
  PackedMetadata metadata;
  metadata.source.files = {{.name = "config.json",
                            .size = config_text.size(),
                            .head = sha256_hex(config_text),
                            .content = {}}};
  const std::vector<PackedTensor> tensors = packed_tensors(config, kGroup, true);
  const ParallelFor parallel_for = parallel_for_on_threads(options.threads);
  const Clock::time_point start = Clock::now();
  WrittenBytes written;
  PackedWriter writer(folder, metadata, tensors, false);
  for (const PackedTensor& tensor : tensors) {
    const auto number = static_cast<std::uint64_t>(&tensor - tensors.data());
    const std::uint64_t stream = options.seed << 32 | number;
    append_tensor(writer, tensor, packed_fill(config, tensor, stream), parallel_for);
    written.bytes += tensor_bytes(tensor);
  }
  writer.copy_companions(source.path());
  writer.finish("");
  written.seconds = seconds_since(start);
  return written;
}

ToyVocabulary llama3_like_vocabulary(int size) {
  ToyVocabulary vocabulary;
  constexpr std::array<const char*, 11> kFirst = {"<|begin_of_text|>",
                                                  "<|end_of_text|>",
                                                  "<|reserved_special_token_0|>",
                                                  "<|reserved_special_token_1|>",
                                                  "<|finetune_right_pad_id|>",
                                                  "<|reserved_special_token_2|>",
                                                  "<|start_header_id|>",
                                                  "<|end_header_id|>",
                                                  "<|eom_id|>",
                                                  "<|eot_id|>",
                                                  "<|python_tag|>"};
  vocabulary.specials.assign(kFirst.begin(), kFirst.end());
  for (int n = 3; std::ssize(vocabulary.specials) < kSpecials; ++n) {
    vocabulary.specials.push_back(fmt::format("<|reserved_special_token_{}|>", n));
  }
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.pieces.emplace_back(1, static_cast<char>(byte));
  }
  // Words grow out of small letters, with or without a blank in front.
  constexpr std::size_t kLongestHead = 5;
  constexpr std::size_t kLongestTail = 4;
  std::vector<std::string> tails;
  for (char c = 'a'; c <= 'z'; ++c) tails.emplace_back(1, c);
  std::vector<std::string> heads = tails;
  heads.emplace_back(" ");
  std::set<std::string> known(vocabulary.pieces.begin(), vocabulary.pieces.end());
  Words words(1, 0);
  while (std::ssize(vocabulary.pieces) < size - kSpecials) {
    const std::string& head = heads[words.next() % heads.size()];
    const std::string& tail = tails[words.next() % tails.size()];
    std::string word = head + tail;
    if (!known.insert(word).second) continue;
    if (word.size() <= kLongestHead) heads.push_back(word);
    if (word.size() <= kLongestTail && word.front() != ' ') tails.push_back(word);
    vocabulary.pieces.push_back(word);
  }
  // Every way to make a piece from two others, as the file of the real one lists them.
  for (const std::string& piece : vocabulary.pieces) {
    for (std::size_t cut = 1; cut < piece.size(); ++cut) {
      std::string head = piece.substr(0, cut);
      std::string tail = piece.substr(cut);
      if (!known.contains(head) || !known.contains(tail)) continue;
      vocabulary.merges.emplace_back(std::move(head), std::move(tail));
    }
  }
  return vocabulary;
}

}  // namespace fut::test
