// The safetensors container, read as if its author were hostile. Format: 8 bytes little-endian
// header length, a JSON header {name: {dtype, shape, data_offsets}, "__metadata__": {string:
// string}}, then the tensors' bytes without holes or overlap up to the end of the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor.h"
#include "loader/file_reader.h"

namespace fut {

inline constexpr std::uint64_t kSafetensorsPrefixBytes = 8;  // the header length
// The limit of the format's own reader.
inline constexpr std::uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
// The file of a model that has one file, as a checkpoint and as a packed folder.
inline constexpr char kModelFileName[] = "model.safetensors";

// What the first kSafetensorsPrefixBytes bytes of a file claim. Not checked against anything.
[[nodiscard]] std::uint64_t claimed_header_bytes(
    std::span<const std::byte, kSafetensorsPrefixBytes> prefix);

// Where one tensor lies in its file. `offset` counts from the start of the file. U8 is bytes, not
// numbers.
struct TensorInfo {
  std::string name;
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// A tensor of a type that the format has and this program cannot compute with (F64, I32, F8_E4M3,
// ...). Its range is checked like any other; it cannot be read.
struct UnsupportedTensor {
  std::string name;
  std::string dtype;
  std::uint64_t bytes = 0;
};

class Safetensors {
 public:
  // Checks everything that the header claims against the file before anything is read. Throws Data
  // with file, size and claim; says what the file looks like (LFS pointer, web page, unfinished
  // download) where that can be told.
  static Safetensors open(const std::filesystem::path& path);
  // The same of a file that is open already.
  static Safetensors read_header(FileReader opened);

  [[nodiscard]] const FileReader& file() const { return file_; }
  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  [[nodiscard]] std::uint64_t header_bytes() const { return header_bytes_; }
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const { return tensors_; }  // by offset
  [[nodiscard]] const std::vector<UnsupportedTensor>& unsupported() const { return unsupported_; }
  [[nodiscard]] const TensorInfo* find(std::string_view name) const;  // nullptr: absent
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Copies the tensor's bytes. destination.size() == info.bytes. Throws Runtime when the file
  // became shorter meanwhile or a read failed.
  void read(const TensorInfo& info, std::span<std::byte> destination) const;
  // Copies destination.size() bytes of the tensor from its byte `begin` on, for callers that do not
  // hold a whole tensor.
  void read_part(const TensorInfo& info, std::uint64_t begin,
                 std::span<std::byte> destination) const;

 private:
  explicit Safetensors(FileReader file) : file_(std::move(file)) {}

  FileReader file_;
  std::uint64_t header_bytes_ = 0;
  std::vector<TensorInfo> tensors_;
  std::vector<UnsupportedTensor> unsupported_;
  std::map<std::string, std::size_t, std::less<>> index_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace fut
