// Opens a safetensors file: length, header, then every tensor's claim against the file's size, in
// that order, so that a wrong number is refused before anything of that size is touched.
#include "loader/safetensors.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "kernels/check.h"
#include "loader/describe.h"
#include "loader/safetensors_header.h"

namespace fut {
namespace {

struct FormatType {
  std::string_view name;
  std::uint64_t bits;
  std::optional<DType> dtype;  // set for those that can be computed with
};
constexpr std::array<FormatType, 20> kFormatTypes = {{
    {"F32", 32, DType::F32},      {"F16", 16, DType::F16},      {"BF16", 16, DType::BF16},
    {"F64", 64, std::nullopt},    {"I64", 64, std::nullopt},    {"U64", 64, std::nullopt},
    {"C64", 64, std::nullopt},    {"I32", 32, std::nullopt},    {"U32", 32, std::nullopt},
    {"I16", 16, std::nullopt},    {"U16", 16, std::nullopt},    {"I8", 8, std::nullopt},
    {"U8", 8, DType::U8},         {"BOOL", 8, std::nullopt},    {"F8_E4M3", 8, std::nullopt},
    {"F8_E5M2", 8, std::nullopt}, {"F8_E8M0", 8, std::nullopt}, {"F6_E2M3", 6, std::nullopt},
    {"F6_E3M2", 6, std::nullopt}, {"F4", 4, std::nullopt},
}};

std::string read_text(const FileReader& file, std::uint64_t begin, std::uint64_t count) {
  std::string text(static_cast<std::size_t>(count), '\0');
  file.read(begin, std::as_writable_bytes(std::span(text)));
  return text;
}

// The header's length, checked against the file. Throws Data.
std::uint64_t header_length(const FileReader& file) {
  const std::string path = file.path().string();
  if (file.size() == 0) {
    throw data_error(
        "{}: is empty (0 bytes, no header); the download did not start, download it "
        "again",
        path);
  }
  const std::string start = read_text(file, 0, std::min<std::uint64_t>(file.size(), 256));
  const std::string_view known = looks_like(start);
  if (file.size() < kSafetensorsPrefixBytes) {
    throw data_error("{}: has {} bytes, the header length alone takes {}; {}", path, file.size(),
                     kSafetensorsPrefixBytes, known.empty() ? "the download is unfinished" : known);
  }
  const std::uint64_t length =
      claimed_header_bytes(std::as_bytes(std::span(start)).first<kSafetensorsPrefixBytes>());
  const std::uint64_t room = file.size() - kSafetensorsPrefixBytes;
  if (length <= kMaxSafetensorsHeaderBytes && length <= room && length >= 2) return length;

  const bool zeros = std::all_of(start.begin(), start.end(), [](char c) { return c == 0; });
  throw data_error(
      "{}: the file has {} bytes and claims a header of {} bytes; {}{}", path, file.size(), length,
      known.empty() ? "" : "it looks like ",
      !known.empty() ? known
      : zeros        ? "it holds zeros, the download was prepared and never finished"
      : length < 2   ? "no header is that short, this is not a safetensors file"
      : length > kMaxSafetensorsHeaderBytes
          ? fmt::format("headers have at most {} bytes, this is not a safetensors file",
                        kMaxSafetensorsHeaderBytes)
          : "the download is unfinished or this is not a safetensors file");
}

// "X: ... (file of N bytes, header of M bytes)": every complaint about a header ends like this.
[[nodiscard]] Error bad_header(const FileReader& file, std::uint64_t header_bytes,
                               std::string_view problem) {
  return data_error("{}: {} (the file has {} bytes and claims a header of {} bytes)",
                    file.path().string(), problem, file.size(), header_bytes);
}

const FormatType* find_type(std::string_view name) {
  const auto it = std::find_if(kFormatTypes.begin(), kFormatTypes.end(),
                               [&](const FormatType& type) { return type.name == name; });
  return it == kFormatTypes.end() ? nullptr : &*it;
}

// Bits that a tensor of `shape` takes; nullopt where that is beyond 64-bit arithmetic.
std::optional<std::uint64_t> tensor_bits(std::span<const std::uint64_t> shape, std::uint64_t bits) {
  constexpr auto kLargest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  // A zero makes the product zero, whatever stands beside it; extents have to be int64 all the
  // same.
  const bool representable =
      std::all_of(shape.begin(), shape.end(), [](std::uint64_t n) { return n <= kLargest; });
  if (!representable) return std::nullopt;
  if (std::find(shape.begin(), shape.end(), 0U) != shape.end()) return 0;
  std::uint64_t product = bits;
  for (const std::uint64_t extent : shape) {
    if (product > kLargest / extent) return std::nullopt;
    product *= extent;
  }
  return product;
}

// Says what is wrong with a tensor taken alone; empty when nothing is.
std::string check_tensor(const HeaderTensor& tensor) {
  const FormatType* type = find_type(tensor.dtype);
  if (type == nullptr) {
    return fmt::format("tensor {}: the dtype {} is unknown", quote(tensor.name),
                       quote(tensor.dtype));
  }
  const std::string shape = fmt::format("[{}]", fmt::join(tensor.shape, ", "));
  const std::optional<std::uint64_t> bits = tensor_bits(tensor.shape, type->bits);
  if (!bits) {
    return fmt::format("tensor {}: the shape {} is too large for any file", quote(tensor.name),
                       shape);
  }
  if (tensor.begin > tensor.end) {
    return fmt::format("tensor {}: its data_offsets [{}, {}] run backwards", quote(tensor.name),
                       tensor.begin, tensor.end);
  }
  const std::uint64_t bytes = tensor.end - tensor.begin;
  if (*bits % 8 != 0 || *bits / 8 != bytes) {
    return fmt::format(
        "tensor {}: {} of shape {} takes {} bytes, its data_offsets [{}, {}] span "
        "{} bytes",
        quote(tensor.name), tensor.dtype, shape, (*bits + 7) / 8, tensor.begin, tensor.end, bytes);
  }
  return {};
}

// Says where sorted tensors leave a hole, overlap, or miss the end of the file at `payload` bytes.
std::string check_layout(std::span<const HeaderTensor> sorted, std::uint64_t payload,
                         std::uint64_t payload_begin) {
  std::uint64_t next = 0;
  for (const HeaderTensor& tensor : sorted) {
    if (tensor.begin != next) {
      return fmt::format("tensor {} begins at byte {} of the data, {} byte {}", quote(tensor.name),
                         tensor.begin,
                         tensor.begin < next ? "it overlaps the one before, which ends at"
                                             : "there is a hole since",
                         next);
    }
    if (tensor.end > payload) {
      return fmt::format(
          "cut short: tensor {} ends at byte {}, the file ends at byte {}; download "
          "it again",
          quote(tensor.name), payload_begin + tensor.end, payload_begin + payload);
    }
    next = tensor.end;
  }
  if (next != payload) {
    return fmt::format("the tensors end at byte {}, the file ends at byte {}: {} bytes too many",
                       payload_begin + next, payload_begin + payload, payload - next);
  }
  return {};
}

}  // namespace

std::uint64_t claimed_header_bytes(std::span<const std::byte, kSafetensorsPrefixBytes> prefix) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < prefix.size(); ++i) {
    value |= static_cast<std::uint64_t>(prefix[i]) << (8 * i);
  }
  return value;
}

Safetensors Safetensors::open(const std::filesystem::path& path) {
  return read_header(FileReader::open(path));
}

Safetensors Safetensors::read_header(FileReader opened) {
  Safetensors result(std::move(opened));
  const FileReader& file = result.file_;
  result.header_bytes_ = header_length(file);
  const std::uint64_t payload_begin = kSafetensorsPrefixBytes + result.header_bytes_;
  const std::string text = read_text(file, kSafetensorsPrefixBytes, result.header_bytes_);

  SafetensorsHeader header;
  std::string problem;
  if (text.front() != '{') {
    problem = fmt::format("the header must begin with '{{', it begins with {}",
                          quote(std::string_view(text).substr(0, 1)));
  }
  // The JSON parser takes a NUL for the end of the text and would not look at what follows it.
  if (const std::size_t nul = text.find('\0'); problem.empty() && nul != text.npos) {
    problem = fmt::format("the header is not valid JSON: byte {} of it is zero", nul + 1);
  }
  if (problem.empty()) problem = parse_safetensors_header(text, header);
  std::vector<HeaderTensor>& tensors = header.tensors;
  for (auto it = tensors.begin(); problem.empty() && it != tensors.end(); ++it) {
    problem = check_tensor(*it);
  }
  if (problem.empty()) {
    std::sort(tensors.begin(), tensors.end(), [](const HeaderTensor& a, const HeaderTensor& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    problem = check_layout(tensors, file.size() - payload_begin, payload_begin);
  }
  if (!problem.empty()) throw bad_header(file, result.header_bytes_, problem);

  result.metadata_ = std::move(header.metadata);
  for (HeaderTensor& tensor : tensors) {
    const std::uint64_t bytes = tensor.end - tensor.begin;
    const std::optional<DType> dtype = find_type(tensor.dtype)->dtype;
    if (!dtype) {
      result.unsupported_.push_back({std::move(tensor.name), std::move(tensor.dtype), bytes});
      continue;
    }
    result.index_.emplace(tensor.name, result.tensors_.size());
    result.tensors_.push_back({std::move(tensor.name),
                               *dtype,
                               {tensor.shape.begin(), tensor.shape.end()},
                               payload_begin + tensor.begin,
                               bytes});
  }
  return result;
}

const TensorInfo* Safetensors::find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

void Safetensors::read(const TensorInfo& info, std::span<std::byte> destination) const {
  FUT_CHECK(destination.size() == info.bytes, "tensor {} has {} bytes, destination {}", info.name,
            info.bytes, destination.size());
  read_part(info, 0, destination);
}

void Safetensors::read_part(const TensorInfo& info, std::uint64_t begin,
                            std::span<std::byte> destination) const {
  FUT_CHECK(begin <= info.bytes && destination.size() <= info.bytes - begin,
            "tensor {} has {} bytes, asked for {} from {}", info.name, info.bytes,
            destination.size(), begin);
  file_.read(info.offset + begin, destination);
}

}  // namespace fut
