// From files to the tensors that a model needs. The order of the checks decides which message a
// user gets first: what cannot be run at all, then what is missing, then what is too much, then
// shapes.
#include "loader/checkpoint.h"

#include <algorithm>
#include <functional>
#include <set>

#include "kernels/check.h"
#include "loader/describe.h"
#include "loader/expected_tensors.h"
#include "loader/tensor_catalog.h"
#include "loader/weight_files.h"

namespace fut {
namespace {

constexpr std::int64_t kMaxVocabSize = std::int64_t{1} << 24;
constexpr std::string_view kNothingElse =
    "a Llama model has nothing else, so this is another kind of model or the files of two are "
    "mixed";

// The tensors that serve as embedding and as output head.
struct HeadChoice {
  bool tied = false;
  bool has_embedding = false;
  bool has_head = false;
  std::string embedding_name;
  std::string head_name;
};

HeadChoice choose_head(const ModelConfig& config, const TensorCatalog& catalog) {
  HeadChoice choice;
  choice.embedding_name = expected_global_tensor(config, GlobalTensor::EmbedTokens).name;
  choice.head_name = expected_global_tensor(config, GlobalTensor::LmHead).name;
  choice.has_embedding = catalog.find(choice.embedding_name) != nullptr;
  choice.has_head = catalog.find(choice.head_name) != nullptr;
  choice.tied = config.tie_word_embeddings;
  if (choice.tied && !choice.has_embedding && choice.has_head) {
    choice.embedding_name = choice.head_name;
  } else if (choice.tied) {
    choice.head_name = choice.embedding_name;
  }
  return choice;
}

// All tensors that the model needs, in the order of LayerTensor, then EmbedTokens, FinalNorm and,
// where it is a tensor of its own, LmHead.
std::vector<ExpectedTensor> list_expected(const ModelConfig& config, const HeadChoice& head) {
  std::vector<ExpectedTensor> expected;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (int which = 0; which < kNumLayerTensors; ++which) {
      expected.push_back(expected_layer_tensor(config, layer, static_cast<LayerTensor>(which)));
    }
  }
  expected.push_back(expected_global_tensor(config, GlobalTensor::EmbedTokens));
  expected.back().name = head.embedding_name;
  expected.push_back(expected_global_tensor(config, GlobalTensor::FinalNorm));
  if (!head.tied) expected.push_back(expected_global_tensor(config, GlobalTensor::LmHead));
  return expected;
}

void check_features(const TensorCatalog& catalog) {
  for (const auto& [name, entry] : catalog.entries()) {
    if (const auto reason = unsupported_feature(name)) {
      throw data_error("{}: has the tensor {}: {}", entry.file->path().string(), quote(name),
                       *reason);
    }
  }
}

void check_missing(const std::filesystem::path& folder, const TensorCatalog& catalog,
                   const HeadChoice& head, const std::vector<ExpectedTensor>& expected) {
  std::vector<std::string> missing;
  bool is_unlisted = false;
  for (const ExpectedTensor& tensor : expected) {
    if (catalog.find(tensor.name) != nullptr) continue;
    missing.push_back(quote(tensor.name));
    const auto unlisted = catalog.unlisted().find(tensor.name);
    if (unlisted == catalog.unlisted().end()) continue;
    is_unlisted = true;
    missing.back() += fmt::format(" (in {}, but {} does not list it)",
                                  unlisted->second.file->path().filename().string(), kIndexName);
  }
  if (missing.empty()) return;
  if (missing.size() == 1 && !head.tied && !head.has_head && !is_unlisted) {
    throw data_error(
        "{}: there is no tensor '{}', and tie_word_embeddings in config.json is false "
        "or absent, so that the embedding cannot serve as the output head; set "
        "tie_word_embeddings to true if the model is tied, else download the weights "
        "again",
        folder.string(), head.head_name);
  }
  std::string_view hint = is_unlisted ? "download the index again"
                                      : "the download is unfinished, or config.json belongs to "
                                        "another model";
  for (const auto& [name, entry] : catalog.entries()) {
    const std::string_view convention = naming_convention(name);
    if (!convention.empty()) hint = convention;
  }
  throw data_error("{}: {} of the {} tensors that config.json asks for are missing: {}; {}",
                   folder.string(), missing.size(), expected.size(), first_few(missing), hint);
}

void check_unknown(const std::filesystem::path& folder, const ModelConfig& config,
                   const TensorCatalog& catalog, const std::vector<ExpectedTensor>& expected) {
  std::set<std::string_view> known;
  for (const ExpectedTensor& tensor : expected) known.insert(tensor.name);
  const std::string head = expected_global_tensor(config, GlobalTensor::LmHead).name;
  known.insert(head);  // beside a tied embedding it is ignored with a notice
  const std::string next_layer = fmt::format("model.layers.{}.", config.num_layers);
  bool more_layers = false;
  std::vector<std::string> unknown;
  for (const auto& [name, entry] : catalog.entries()) {
    if (known.contains(name) || is_harmless_leftover(name)) continue;
    unknown.push_back(quote(name));
    more_layers = more_layers || name.starts_with(next_layer);
  }
  if (unknown.empty()) return;
  throw data_error("{}: unknown tensors ({}): {}; {}", folder.string(), unknown.size(),
                   first_few(unknown),
                   more_layers ? fmt::format("config.json says num_hidden_layers is {}, the files "
                                             "have more",
                                             config.num_layers)
                               : std::string(kNothingElse));
}

// The tensor's info once its type and shape are what they must be. Throws Data.
const TensorInfo* checked(const TensorCatalog& catalog, const ExpectedTensor& expected) {
  const CatalogEntry& entry = *catalog.find(expected.name);
  const std::string file = entry.file->path().string();
  if (entry.info == nullptr) {
    throw data_error("{}: tensor {} has the type {}; only F32, F16 and BF16 can be used", file,
                     quote(expected.name), entry.dtype);
  }
  if (entry.info->shape != expected.shape) {
    throw data_error(
        "{}: tensor {} has the shape {}, config.json asks for {} ({}); config.json "
        "belongs to another model",
        file, quote(expected.name), shape_text(entry.info->shape), shape_text(expected.shape),
        expected.decided_by);
  }
  return entry.info;
}

// The embedding decides how many tokens there are: fine-tuning adds rows and often forgets to say
// so.
void follow_embedding_rows(const TensorCatalog& catalog, const std::string& embedding_name,
                           ModelConfig& config, std::vector<std::string>& notices) {
  const TensorInfo* embedding = catalog.find(embedding_name)->info;
  if (embedding == nullptr || embedding->shape.size() != 2) return;  // checked() will say so
  const std::int64_t rows = embedding->shape.front();
  if (rows == config.vocab_size || rows < 1 || rows > kMaxVocabSize) return;
  notices.push_back(fmt::format("config.json says vocab_size is {}, {} has {} rows; using {}",
                                config.vocab_size, quote(embedding_name), rows, rows));
  config.vocab_size = static_cast<int>(rows);
}

bool same_bytes(const CatalogEntry& a, const CatalogEntry& b) {
  if (a.info == nullptr || b.info == nullptr || a.info->dtype != b.info->dtype ||
      a.info->shape != b.info->shape) {
    return false;
  }
  constexpr std::uint64_t kChunk = 1U << 20;
  std::vector<std::byte> left(kChunk);
  std::vector<std::byte> right(kChunk);
  for (std::uint64_t begin = 0; begin < a.info->bytes; begin += kChunk) {
    const auto count = static_cast<std::size_t>(std::min(kChunk, a.info->bytes - begin));
    a.file->read_part(*a.info, begin, std::span(left).first(count));
    b.file->read_part(*b.info, begin, std::span(right).first(count));
    if (!std::equal(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(count),
                    right.begin())) {
      return false;
    }
  }
  return true;
}

void note_ignored_head(const TensorCatalog& catalog, const ModelConfig& config,
                       std::vector<std::string>& notices) {
  const std::string embedding = expected_global_tensor(config, GlobalTensor::EmbedTokens).name;
  const std::string head = expected_global_tensor(config, GlobalTensor::LmHead).name;
  if (same_bytes(*catalog.find(embedding), *catalog.find(head))) return;
  notices.push_back(
      fmt::format("tie_word_embeddings is true, so '{}' is ignored although it "
                  "differs from '{}'",
                  head, embedding));
}

void note_index(const WeightFiles& weights, const std::vector<Safetensors>& files,
                const TensorCatalog& catalog, std::vector<std::string>& notices) {
  if (!catalog.unlisted().empty()) {
    std::vector<std::string> names;
    for (const auto& [name, entry] : catalog.unlisted()) names.push_back(quote(name));
    notices.push_back(fmt::format("tensors that {} does not list are ignored ({}): {}", kIndexName,
                                  names.size(), first_few(names)));
  }
  std::uint64_t total = 0;
  for (const Safetensors& file : files) {
    for (const TensorInfo& info : file.tensors()) total += info.bytes;
    for (const UnsupportedTensor& tensor : file.unsupported()) total += tensor.bytes;
  }
  if (weights.total_size && *weights.total_size != static_cast<double>(total)) {
    notices.push_back(fmt::format("{} says total_size is {}, the tensors have {} bytes", kIndexName,
                                  *weights.total_size, total));
  }
}

}  // namespace

Checkpoint Checkpoint::open(const std::filesystem::path& folder, ModelConfig& config) {
  Checkpoint result;
  const WeightFiles weights = find_weight_files(folder, result.notices_);
  for (const std::string& name : weights.names) {
    result.files_.push_back(Safetensors::open(folder / name));
  }
  const TensorCatalog catalog(folder, weights, result.files_);
  check_features(catalog);
  const HeadChoice head = choose_head(config, catalog);
  std::vector<ExpectedTensor> expected = list_expected(config, head);
  check_missing(folder, catalog, head, expected);
  check_unknown(folder, config, catalog, expected);

  follow_embedding_rows(catalog, head.embedding_name, config, result.notices_);
  expected = list_expected(config, head);  // now with the vocabulary that the embedding has
  std::vector<const TensorInfo*> found;
  for (const ExpectedTensor& tensor : expected) found.push_back(checked(catalog, tensor));
  const auto num_layer_tensors =
      found.begin() + std::ptrdiff_t{config.num_layers} * kNumLayerTensors;
  result.layer_tensors_.assign(found.begin(), num_layer_tensors);
  result.global_tensors_.assign(num_layer_tensors, found.end());
  result.head_is_tied_ = head.tied;
  if (head.tied) {
    result.global_tensors_.push_back(result.global_tensors_.front());
    if (head.has_embedding && head.has_head) note_ignored_head(catalog, config, result.notices_);
  }
  note_index(weights, result.files_, catalog, result.notices_);
  return result;
}

const TensorInfo& Checkpoint::layer(int layer, LayerTensor which) const {
  const std::size_t i =
      static_cast<std::size_t>(layer) * kNumLayerTensors + static_cast<std::size_t>(which);
  FUT_CHECK(layer >= 0 && i < layer_tensors_.size(), "layer {} of {}", layer,
            layer_tensors_.size() / kNumLayerTensors);
  return *layer_tensors_[i];
}

const TensorInfo& Checkpoint::global(GlobalTensor which) const {
  return *global_tensors_[static_cast<std::size_t>(which)];
}

void Checkpoint::read(const TensorInfo& info, std::span<std::byte> destination) const {
  const auto owns = [&](const Safetensors& file) { return file.find(info.name) == &info; };
  const auto file = std::find_if(files_.begin(), files_.end(), owns);
  FUT_CHECK(file != files_.end(), "tensor {} is not of this checkpoint", info.name);
  file->read(info, destination);
}

void Checkpoint::require_unchanged() const {
  for (const Safetensors& file : files_) file.file().require_unchanged();
}

std::uint64_t Checkpoint::total_bytes() const {
  std::set<const TensorInfo*> in_use(layer_tensors_.begin(), layer_tensors_.end());
  in_use.insert(global_tensors_.begin(), global_tensors_.end());
  std::uint64_t total = 0;
  for (const TensorInfo* info : in_use) total += info->bytes;
  return total;
}

}  // namespace fut
