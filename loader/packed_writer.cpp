// The header first, with room for what is known last; then tensors as they come; then the header
// again, checksums, and the folder's name.
#include "loader/packed_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "kernels/check.h"
#include "loader/crc32c.h"
#include "loader/file_reader.h"
#include "loader/packed_model.h"
#include "loader/packed_progress.h"
#include "loader/safetensors.h"

namespace fut {
namespace {

using nlohmann::json;

constexpr std::uint64_t kDataAlignment = 64;  // of the first byte of data
// What a report may take; report_card.cpp counts on it.
constexpr std::uint64_t kReportBase = 16U << 10;
constexpr std::uint64_t kReportPerTensor = 512;

// Bytes begin .. end - 1 of a file, as many at a time as are well held.
template <class Body>
void for_each_piece(const FileReader& file, std::uint64_t begin, std::uint64_t end,
                    const Body& body) {
  constexpr std::uint64_t kPieceBytes = 1U << 20;
  std::vector<std::byte> bytes(kPieceBytes);
  for (; begin < end; begin += kPieceBytes) {
    const auto piece =
        std::span(bytes).first(static_cast<std::size_t>(std::min(kPieceBytes, end - begin)));
    file.read(begin, piece);
    body(piece);
  }
}

// Of the first `count` tensors.
std::uint64_t first_bytes(const std::vector<PackedTensor>& tensors, std::size_t count) {
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < count; ++i) total += tensor_bytes(tensors[i]);
  return total;
}

std::uint64_t data_bytes(const std::vector<PackedTensor>& tensors) {
  return first_bytes(tensors, tensors.size());
}

PackedTensor checksum_tensor(const std::vector<PackedTensor>& tensors) {
  return {std::string(kChecksumTensor),
          DType::U8,
          {static_cast<std::int64_t>(checksum_table_bytes(data_bytes(tensors)))}};
}

// The first entry of a quantised folder that is none of ours: somebody put it there. Empty: none.
std::string foreign_entry(const std::filesystem::path& folder) {
  std::vector<std::string> ours = list_companions(folder);
  ours.insert(ours.end(), {std::string(kModelFileName), kSourceNoteName, kSourceNotePartialName});
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (std::ranges::find(ours, name) == ours.end()) return name;
  }
  return {};
}

// An automatic copy whose weights are gone or cut: it has the note of its source still, and nothing of others.
bool is_damaged_copy(const std::filesystem::path& folder) {
  return has_source_note(folder) && foreign_entry(folder).empty();
}

// Throws Data where `folder` is in use for something that must not be replaced.
void check_target(const std::filesystem::path& folder, bool overwrite) {
  std::error_code error;
  const auto status = std::filesystem::status(folder, error);
  if (status.type() == std::filesystem::file_type::not_found) return;
  if (std::filesystem::exists(status) && !std::filesystem::is_directory(status)) {
    throw data_error("{}: is a file, a folder is to be written; choose another name",
                     folder.string());
  }
  const bool is_empty = std::filesystem::is_empty(folder, error);
  if (error) {
    throw data_error("{}: cannot be looked at: {}; choose a folder that can be read and written",
                     folder.string(), error.message());
  }
  if (is_empty) return;
  if (!PackedModel::is_packed(folder)) {
    if (overwrite && is_damaged_copy(folder)) return;
    throw data_error(
        "{}: exists and holds something that fut quantize did not write; choose another folder",
        folder.string());
  }
  if (!overwrite) {
    throw data_error(
        "{}: exists and holds a quantised model; choose another folder, or have it replaced with "
        "--overwrite",
        folder.string());
  }
  if (const std::string foreign = foreign_entry(folder); !foreign.empty()) {
    throw data_error(
        "{}: holds {}, which fut quantize did not write and which would be lost; move it elsewhere "
        "or choose another folder",
        folder.string(), foreign);
  }
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace

PackedWriter::PackedWriter(const std::filesystem::path& folder, const PackedMetadata& metadata,
                           std::vector<PackedTensor> tensors, bool overwrite,
                           std::string_view resume_key)
    : folder_(resolved_target(folder)),
      overwrite_(overwrite),
      metadata_(metadata),
      tensors_(std::move(tensors)) {
  restore_replaced(folder_);
  check_target(folder_, overwrite_);
  const std::uint64_t room = kReportBase + kReportPerTensor * tensors_.size();
  tensors_.push_back(checksum_tensor(tensors_));
  const std::uint64_t least = kSafetensorsPrefixBytes + header_json("").size() + room;
  const std::uint64_t data_begin = (least + kDataAlignment - 1) / kDataAlignment * kDataAlignment;
  header_bytes_ = data_begin - kSafetensorsPrefixBytes;

  if (!resume_key.empty()) {
    resume_key_ = fmt::format("{} {} {} {}", kPackedVersion, resume_key,
                              options_json(metadata_.options), identity_json(metadata_.source));
  }
  partial_ = std::make_unique<PartialFolder>(
      folder_, [this](const std::filesystem::path& abandoned) { return take_up(abandoned); });
  const std::filesystem::path file = partial_->path() / kModelFileName;
  const std::uint64_t size = data_begin + data_bytes(tensors_);
  if (partial_->was_taken_up()) {
    current_ = resumed_tensors_;
    saved_tensors_ = resumed_tensors_;
    file_ = std::make_unique<OutputFile>(file, size, data_begin + first_bytes(tensors_, current_));
    return;
  }
  resumed_tensors_ = 0;
  resumed_state_.clear();
  checksums_ = {};
  file_ = std::make_unique<OutputFile>(file, size);
  // Blanks for now: until the end this is no safetensors file.
  const std::string blanks(static_cast<std::size_t>(data_begin), ' ');
  file_->write(bytes_of(blanks));
}

bool PackedWriter::take_up(const std::filesystem::path& abandoned) {
  if (resume_key_.empty()) return false;
  std::optional<FoundProgress> found = read_progress(abandoned);
  if (!found || found->progress.key != resume_key_ ||
      found->progress.tensors >= tensors_.size() - 1) {
    return false;
  }
  resumed_tensors_ = static_cast<std::size_t>(found->progress.tensors);
  try {
    const FileReader file = FileReader::open(abandoned / kModelFileName);
    const std::uint64_t begin = kSafetensorsPrefixBytes + header_bytes_;
    const std::uint64_t end = begin + first_bytes(tensors_, resumed_tensors_);
    if (file.size() < end) return false;
    checksums_ = {};
    for_each_piece(file, begin, end,
                   [&](std::span<const std::byte> piece) { checksums_.add(piece); });
  } catch (const Error&) {  // it goes the way of what cannot be gone on with
    return false;
  }
  if (checksums_.chunks() != found->progress.chunks) return false;
  // What comes after the tensors is written once more.
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(abandoned, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name != kModelFileName && name != kProgressName) {
      std::filesystem::remove(entry.path(), ignored);
    }
  }
  resumed_state_ = std::move(found->state);
  return true;
}

void PackedWriter::save_progress(const SavedState& state) {
  FUT_CHECK(partial_ != nullptr && appended_ == 0, "{} bytes of {} are there", appended_,
            tensors_[current_].name);
  if (resume_key_.empty()) return;
  try {
    write_progress(partial_->path(), {resume_key_, current_, checksums_.chunks()}, state);
    saved_tensors_ = current_;
  } catch (const Error&) {  // no room: a kill costs what is done from now on
    resume_key_.clear();
  }
}

std::size_t PackedWriter::keep_progress() {
  FUT_CHECK(partial_ != nullptr, "{}: is finished already", folder_.string());
  if (saved_tensors_ > 0) partial_->keep();
  return saved_tensors_;
}

PackedWriter::~PackedWriter() = default;

std::string PackedWriter::header_json(std::string_view report) const {
  json header;
  header["__metadata__"] = {{"format", kPackedFormat},
                            {"version", fmt::format("{}", kPackedVersion)},
                            {"options", options_json(metadata_.options)},
                            {"source", identity_json(metadata_.source)},
                            {"report", report}};
  std::uint64_t offset = 0;
  for (const PackedTensor& tensor : tensors_) {
    const std::uint64_t end = offset + tensor_bytes(tensor);
    header[tensor.name] = {{"dtype", dtype_name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {offset, end}}};
    offset = end;
  }
  FUT_CHECK(header.size() == tensors_.size() + 1, "{} tensors have {} names", tensors_.size(),
            header.size() - 1);
  // Keys in alphabetical order: the format is among the first bytes of the file.
  return header.dump(-1, ' ', false, json::error_handler_t::replace);
}

void PackedWriter::append(std::string_view tensor, std::span<const std::byte> bytes) {
  FUT_CHECK(partial_ != nullptr && current_ + 1 < tensors_.size(), "{} comes after the last tensor",
            tensor);
  const PackedTensor& expected = tensors_[current_];
  const std::uint64_t size = tensor_bytes(expected);
  FUT_CHECK(tensor == expected.name, "{} comes where {} is due, of which {} bytes of {} are there",
            tensor, expected.name, appended_, size);
  FUT_CHECK(bytes.size() <= size - appended_, "{} has {} bytes, {} come after {}", tensor, size,
            bytes.size(), appended_);
  file_->write(bytes);
  checksums_.add(bytes);
  appended_ += bytes.size();
  if (appended_ < size) return;
  ++current_;
  appended_ = 0;
}

void PackedWriter::copy_companions(const std::filesystem::path& source) {
  for (const std::string& name : list_companions(source)) {
    const FileReader from = FileReader::open(source / name);
    OutputFile to(partial_->path() / name, from.size());
    for_each_piece(from, 0, from.size(),
                   [&](std::span<const std::byte> piece) { to.write(piece); });
    to.close();
  }
}

void PackedWriter::add_file(std::string_view name, std::string_view text) {
  FUT_CHECK(!name.empty() && name.find('/') == name.npos, "{} is not the name of a file", name);
  OutputFile to(partial_->path() / name, text.size());
  to.write(bytes_of(text));
  to.close();
}

std::uint64_t PackedWriter::report_room() const {
  return header_bytes_ - header_json("").size();
}

void PackedWriter::finish(std::string_view report_json) {
  FUT_CHECK(partial_ != nullptr, "{}: is finished already", folder_.string());
  FUT_CHECK(current_ + 1 == tensors_.size(), "{} is missing: {} of {} tensors are there",
            tensors_[current_].name, current_, tensors_.size() - 1);
  std::string header(kSafetensorsPrefixBytes, '\0');
  for (std::size_t i = 0; i < kSafetensorsPrefixBytes; ++i) {
    header[i] = static_cast<char>(header_bytes_ >> (8 * i) & 0xFFU);
  }
  header += header_json(report_json);
  FUT_CHECK(header.size() <= kSafetensorsPrefixBytes + header_bytes_,
            "a report of {} bytes has room for {}", report_json.size(), report_room());
  header.resize(static_cast<std::size_t>(kSafetensorsPrefixBytes + header_bytes_), ' ');

  file_->write(encode_checksums({checksums_.chunks(), crc32c(bytes_of(header))}));
  file_->write_at(0, bytes_of(header));
  file_->close();
  std::error_code ignored;  // there may be none
  std::filesystem::remove(partial_->path() / kProgressName, ignored);
  check_target(folder_, overwrite_);
  partial_->publish(overwrite_);
  partial_.reset();
}

}  // namespace fut
