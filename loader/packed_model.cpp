// Opening goes from what says most about a damaged file to what says least: container, checksum of
// the header, version, options, tensors.
#include "loader/packed_model.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <string_view>

#include "kernels/check.h"
#include "loader/crc32c.h"
#include "loader/describe.h"
#include "loader/packed_checksums.h"
#include "loader/packed_writer.h"

namespace fut {
namespace {

constexpr std::int64_t kMaxVocabSize = std::int64_t{1} << 24;
constexpr std::string_view kAgain = "run fut quantize again";

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::span<const std::byte> bytes_of(const std::vector<std::byte>& bytes) {
  return bytes;
}

// What the file says under a key that every packed file has.
const std::string& metadata_of(const Safetensors& file, const std::string& key) {
  const auto it = file.metadata().find(key);
  if (it != file.metadata().end()) return it->second;
  throw data_error("{}: __metadata__ has no key {}; {}", file.path().string(), key, kAgain);
}

void check_tensor(const Safetensors& file, const TensorInfo& info, const PackedTensor& expected) {
  if (info.dtype == expected.dtype && info.shape == expected.shape) return;
  throw data_error(
      "{}: tensor {} is {} {}, config.json and the group size ask for {} {}; config.json belongs "
      "to "
      "another model, {}",
      file.path().string(), quote(info.name), dtype_name(info.dtype), shape_text(info.shape),
      dtype_name(expected.dtype), shape_text(expected.shape), kAgain);
}

}  // namespace

bool PackedModel::is_packed(const std::filesystem::path& folder) {
  // Not by parsing: a header with a flipped byte is to be recognised, too. Either text is among the
  // first keys of the header.
  constexpr std::uint64_t kLookedAt = 1U << 20;
  const std::filesystem::path path = folder / kModelFileName;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  try {
    const FileReader file = FileReader::open(path);
    std::vector<std::byte> start(static_cast<std::size_t>(std::min(file.size(), kLookedAt)));
    file.read(0, start);
    const std::string_view text = text_of(start);
    return text.find(fmt::format(R"("format":"{}")", kPackedFormat)) != text.npos ||
           text.find(fmt::format(R"("{}":)", kChecksumTensor)) != text.npos;
  } catch (const Error&) {
    return false;  // who opens it as a checkpoint is told why it cannot be read
  }
}

PackedModel PackedModel::open(const std::filesystem::path& folder, ModelConfig& config) {
  const auto open_file = [&] {
    try {
      return Safetensors::open(folder / kModelFileName);
    } catch (const Error& error) {
      throw Error(error.kind(), fmt::format("{}; this is the file of a quantised model, cut short "
                                            "or damaged: {}",
                                            error.what(), kAgain));
    }
  };
  PackedModel model(open_file());
  model.read_checksums();
  model.read_metadata();
  check_packable(config, model.info_.options.group_size);
  model.follow_embedding_rows(config);
  model.find_tensors(config);
  return model;
}

void PackedModel::read_checksums() {
  const std::string path = file_.path().string();
  const TensorInfo* table = file_.find(kChecksumTensor);
  data_begin_ = kSafetensorsPrefixBytes + file_.header_bytes();
  if (table == nullptr || table->dtype != DType::U8 ||
      table->offset + table->bytes != file_.file().size() || table->offset < data_begin_) {
    throw data_error("{}: the tensor {} is not at the end of the file; {}", path, kChecksumTensor,
                     kAgain);
  }
  data_end_ = table->offset;
  const std::uint64_t expected_bytes = checksum_table_bytes(data_end_ - data_begin_);
  if (table->bytes != expected_bytes) {
    throw data_error("{}: {} has {} bytes, {} bytes of data ask for {}; {}", path, kChecksumTensor,
                     table->bytes, data_end_ - data_begin_, expected_bytes, kAgain);
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(table->bytes));
  file_.read(*table, bytes);
  const std::optional<ChecksumTable> checksums = decode_checksums(bytes);
  if (!checksums) {
    throw data_error(
        "{}: the checksums at bytes {} to {} do not meet their own checksum: the file is damaged; "
        "{}",
        path, table->offset, table->offset + table->bytes, kAgain);
  }
  std::vector<std::byte> header(static_cast<std::size_t>(data_begin_));
  file_.file().read(0, header);
  const std::uint32_t found = crc32c(bytes_of(header));
  if (found != checksums->header) {
    throw data_error(
        "{}: the header, bytes 0 to {}, has the checksum {:08x}, it was written with {:08x}: the "
        "file is damaged; {}",
        path, data_begin_, found, checksums->header, kAgain);
  }
  checksums_ = checksums->chunks;
  checked_ = std::make_unique<std::atomic<bool>[]>(checksums_.size());
}

void PackedModel::read_metadata() {
  const std::filesystem::path& path = file_.path();
  const std::string& format = metadata_of(file_, "format");
  const std::string& version = metadata_of(file_, "version");
  const char* end = version.data() + version.size();
  const auto parsed = std::from_chars(version.data(), end, info_.version);
  if (format != kPackedFormat || parsed.ec != std::errc() || parsed.ptr != end ||
      info_.version != kPackedVersion) {
    throw data_error(
        "{}: is of format {}, version {}; this program reads {}, version {}: quantise the source "
        "again with this program",
        path.string(), quote(format), quote(version), quote(kPackedFormat), kPackedVersion);
  }
  info_.options = parse_options(path, metadata_of(file_, "options"));
  info_.source = parse_identity(path, metadata_of(file_, "source"));
  info_.report = metadata_of(file_, "report");
  info_.file_bytes = file_.file().size();
}

void PackedModel::follow_embedding_rows(ModelConfig& config) {
  const std::string name = packed_global_tensor(config, PackedGlobalTensor::EmbedTokens).name;
  const TensorInfo* embedding = file_.find(name);
  if (embedding == nullptr || embedding->shape.size() != 2) return;  // find_tensors will say so
  const std::int64_t rows = embedding->shape.front();
  if (rows == config.vocab_size || rows < 1 || rows > kMaxVocabSize) return;
  notices_.push_back(fmt::format("config.json says vocab_size is {}, {} has {} rows; using {}",
                                 config.vocab_size, quote(name), rows, rows));
  config.vocab_size = static_cast<int>(rows);
}

void PackedModel::find_tensors(const ModelConfig& config) {
  const std::string head_name = packed_global_tensor(config, PackedGlobalTensor::LmHead).name;
  const bool has_head = file_.find(head_name) != nullptr;
  const std::vector<PackedTensor> expected =
      packed_tensors(config, info_.options.group_size, has_head);
  std::set<std::string_view> known = {kChecksumTensor};
  std::vector<std::string> missing;
  std::vector<const TensorInfo*> found;
  for (const PackedTensor& tensor : expected) {
    const TensorInfo* info = file_.find(tensor.name);
    known.insert(tensor.name);
    found.push_back(info);
    if (info == nullptr) {
      missing.push_back(quote(tensor.name));
    } else {
      check_tensor(file_, *info, tensor);
    }
  }
  std::vector<std::string> unknown;
  for (const TensorInfo& info : file_.tensors()) {
    if (!known.contains(info.name)) unknown.push_back(quote(info.name));
  }
  for (const UnsupportedTensor& tensor : file_.unsupported()) unknown.push_back(quote(tensor.name));
  if (!missing.empty() || !unknown.empty()) {
    throw data_error(
        "{}: of the {} tensors that config.json asks for {} are missing ({}), and {} are there "
        "that "
        "do not belong to it ({}); config.json belongs to another model, {}",
        file_.path().string(), expected.size(), missing.size(), first_few(missing), unknown.size(),
        first_few(unknown), kAgain);
  }
  // In the order of packed_tensors: embedding, layers, head.
  const auto layers = found.begin() + 1;
  const auto head = layers + std::ptrdiff_t{config.num_layers} * kNumPackedLayerTensors;
  layer_tensors_.assign(layers, head);
  global_tensors_ = {found.front()};
  global_tensors_.insert(global_tensors_.end(), head, found.end());
  global_tensors_.resize(kNumPackedGlobalTensors, nullptr);
}

const TensorInfo& PackedModel::layer(int layer, PackedLayerTensor which) const {
  const std::size_t i =
      static_cast<std::size_t>(layer) * kNumPackedLayerTensors + static_cast<std::size_t>(which);
  FUT_CHECK(layer >= 0 && i < layer_tensors_.size(), "layer {} of {}", layer,
            layer_tensors_.size() / kNumPackedLayerTensors);
  return *layer_tensors_[i];
}

bool PackedModel::has(PackedGlobalTensor which) const {
  return global_tensors_[static_cast<std::size_t>(which)] != nullptr;
}

const TensorInfo& PackedModel::global(PackedGlobalTensor which) const {
  FUT_CHECK(has(which), "{} has no BF16 head", file_.path().string());
  return *global_tensors_[static_cast<std::size_t>(which)];
}

// ---- reading ------------------------------------------------------------------------------------

PackedModel::Range PackedModel::chunk(std::uint64_t index) const {
  const std::uint64_t begin = data_begin_ + index * kChecksumChunk;
  return {begin, std::min(begin + kChecksumChunk, data_end_)};
}

std::string PackedModel::damage(std::uint64_t index, std::uint32_t found) const {
  const std::uint32_t expected = checksums_[index];
  if (found == expected) return {};
  const Range range = chunk(index);
  std::vector<std::string> touched;
  for (const TensorInfo& info : file_.tensors()) {
    if (info.offset < range.end && info.offset + info.bytes > range.begin) {
      touched.push_back(quote(info.name));
    }
  }
  return fmt::format("bytes {} to {} ({}) have the checksum {:08x}, they were written with {:08x}",
                     range.begin, range.end, first_few(touched), found, expected);
}

void PackedModel::read_in_chunk(std::uint64_t index, Range wanted, std::byte* destination) const {
  const Range whole = chunk(index);
  const auto size = static_cast<std::size_t>(wanted.end - wanted.begin);
  const std::span<std::byte> target(destination, size);
  if (checked_[index].load(std::memory_order_acquire)) {
    file_.file().read(wanted.begin, target);
    return;
  }
  std::uint32_t found = 0;
  if (wanted.begin == whole.begin && wanted.end == whole.end) {
    file_.file().read(wanted.begin, target);
    found = crc32c(target);
  } else {
    std::vector<std::byte> bytes(static_cast<std::size_t>(whole.end - whole.begin));
    file_.file().read(whole.begin, bytes);
    found = crc32c(bytes_of(bytes));
    const auto from = bytes.begin() + static_cast<std::ptrdiff_t>(wanted.begin - whole.begin);
    std::copy_n(from, size, destination);
  }
  settle(index, found);
}

void PackedModel::settle(std::uint64_t index, std::uint32_t found) const {
  const std::string problem = damage(index, found);
  if (!problem.empty()) {
    throw data_error("{}: {}: the file is damaged; {}", file_.path().string(), problem, kAgain);
  }
  checked_[index].store(true, std::memory_order_release);
}

PackedModel::Range PackedModel::chunks_of(const TensorInfo& info) const {
  FUT_CHECK(info.offset >= data_begin_ && info.offset + info.bytes <= data_end_,
            "tensor {} is not of {}", info.name, file_.path().string());
  const std::uint64_t begin = info.offset - data_begin_;
  return {begin / kChecksumChunk, (begin + info.bytes + kChecksumChunk - 1) / kChecksumChunk};
}

std::uint64_t PackedModel::chunk_bytes(std::uint64_t index) const {
  const Range range = chunk(index);
  return range.end - range.begin;
}

PackedModel::ChunkTimes PackedModel::read_chunk(std::uint64_t index, ChunkReader& reader) const {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  };
  const Range whole = chunk(index);
  const bool is_known = checked_[index].load(std::memory_order_acquire);
  ChunkTimes times;
  std::uint32_t found = 0;
  file_.file().will_read(whole.begin, whole.end - whole.begin);
  for (std::uint64_t begin = whole.begin; begin < whole.end;) {
    std::span<std::byte> piece = reader.buffer();
    piece = piece.first(
        static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), whole.end - begin)));
    const Clock::time_point start = Clock::now();
    file_.file().read(begin, piece);
    const Clock::time_point middle = Clock::now();
    if (!is_known) found = crc32c(piece, found);
    times.read_seconds += seconds(start, middle);
    times.checksum_seconds += seconds(middle, Clock::now());
    reader.take(begin, piece);
    begin += piece.size();
  }
  if (!is_known) settle(index, found);
  return times;
}

void PackedModel::read(const TensorInfo& info, std::span<std::byte> destination,
                       const ParallelFor& parallel_for) const {
  FUT_CHECK(destination.size() == info.bytes, "tensor {} has {} bytes, destination {}", info.name,
            info.bytes, destination.size());
  read_part(info, 0, destination, parallel_for);
}

void PackedModel::read_part(const TensorInfo& info, std::uint64_t begin,
                            std::span<std::byte> destination,
                            const ParallelFor& parallel_for) const {
  FUT_CHECK(begin <= info.bytes && destination.size() <= info.bytes - begin,
            "tensor {} has {} bytes, asked for {} from {}", info.name, info.bytes,
            destination.size(), begin);
  if (destination.empty()) return;
  const Range all = {info.offset + begin, info.offset + begin + destination.size()};
  FUT_CHECK(all.begin >= data_begin_ && all.end <= data_end_, "tensor {} is not of {}", info.name,
            file_.path().string());
  const std::uint64_t first = (all.begin - data_begin_) / kChecksumChunk;
  const std::uint64_t last = (all.end - 1 - data_begin_) / kChecksumChunk;
  run_parallel(
      parallel_for, static_cast<std::int64_t>(last - first + 1),
      [&](std::int64_t from, std::int64_t to) {
        for (std::int64_t i = from; i < to; ++i) {
          const std::uint64_t index = first + static_cast<std::uint64_t>(i);
          const Range whole = chunk(index);
          const Range part = {std::max(all.begin, whole.begin), std::min(all.end, whole.end)};
          read_in_chunk(index, part, destination.data() + (part.begin - all.begin));
        }
      });
}

void PackedModel::verify(const ParallelFor& parallel_for, const Progress& progress) const {
  std::mutex mutex;
  std::uint64_t done = 0;
  std::map<std::uint64_t, std::string> problems;  // by chunk
  const auto check = [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::byte> bytes;
    for (auto i = static_cast<std::uint64_t>(begin); i < static_cast<std::uint64_t>(end); ++i) {
      const Range range = chunk(i);
      bytes.resize(static_cast<std::size_t>(range.end - range.begin));
      file_.file().read(range.begin, bytes);
      std::string problem = damage(i, crc32c(bytes_of(bytes)));
      if (problem.empty()) checked_[i].store(true, std::memory_order_release);
      const std::lock_guard lock(mutex);
      if (!problem.empty()) problems.emplace(i, std::move(problem));
      done += range.end - range.begin;
      if (progress) progress(done, data_end_ - data_begin_);
    }
  };
  run_parallel(parallel_for, std::ssize(checksums_), check);
  if (problems.empty()) return;
  std::vector<std::string> words;
  for (const auto& [index, problem] : problems) words.push_back(problem);
  throw data_error("{}: {} of {} checksums are not met: {}: the file is damaged; {}",
                   file_.path().string(), problems.size(), checksums_.size(), first_few(words),
                   kAgain);
}

}  // namespace fut
