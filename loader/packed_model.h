// Reads a packed folder. Every tensor of packed_tensors.h is there with exactly its type and shape
// and nothing else is; every byte that is handed out has met its checksum. Not what the bytes mean:
// kernels/layout and kernels/numeric.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "loader/model_config.h"
#include "loader/packed_options.h"
#include "loader/packed_tensors.h"
#include "loader/quantized_matrix.h"
#include "loader/safetensors.h"
#include "loader/source_identity.h"

namespace fut {

struct PackedInfo {
  int version = 0;
  PackedOptions options;
  SourceIdentity source;  // without times
  std::string report;     // JSON as it was given to the writer; may be empty
  std::uint64_t file_bytes = 0;
};

class PackedModel {
 public:
  // Whether the folder's model.safetensors was written by PackedWriter, by a look at its header; a
  // damaged one counts, so that open() can say what is wrong with it. Never throws for what is in a
  // file.
  [[nodiscard]] static bool is_packed(const std::filesystem::path& folder);

  // Checks header, version, options and every tensor's claim; payloads are checked as they are
  // read. `config` is the folder's; vocab_size follows the embedding's rows, with a notice. Throws
  // Data naming file, tensor, both values, and what to do.
  static PackedModel open(const std::filesystem::path& folder, ModelConfig& config);

  [[nodiscard]] const std::filesystem::path& path() const { return file_.path(); }
  [[nodiscard]] const PackedInfo& info() const { return info_; }
  [[nodiscard]] const std::vector<std::string>& notices() const { return notices_; }

  [[nodiscard]] const TensorInfo& layer(int layer, PackedLayerTensor which) const;
  [[nodiscard]] const TensorInfo& layer(int layer, PackedMatrix matrix, PackedPart part) const {
    return this->layer(layer, packed_part(matrix, part));
  }
  // LmHead alone can be absent.
  [[nodiscard]] bool has(PackedGlobalTensor which) const;
  [[nodiscard]] const TensorInfo& global(PackedGlobalTensor which) const;

  // Copies the tensor's bytes, or those from `begin` on; destination lies inside the tensor. A chunk
  // of 16 MiB is checked when the first byte of it is read, in the copy itself where that holds the
  // whole chunk. Threads may read at the same time. Throws Data for a chunk that does not meet its
  // checksum (see verify), Runtime for a read that failed.
  void read(const TensorInfo& info, std::span<std::byte> destination,
            const ParallelFor& parallel_for) const;
  void read_part(const TensorInfo& info, std::uint64_t begin, std::span<std::byte> destination,
                 const ParallelFor& parallel_for) const;

  // The chunks that hold a tensor: [begin, end).
  struct Range {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  [[nodiscard]] Range chunks_of(const TensorInfo& info) const;
  [[nodiscard]] std::uint64_t chunk_bytes(std::uint64_t index) const;

  // Who gets a chunk in pieces, in order: each is read into what buffer() gives, and is as long.
  class ChunkReader {
   public:
    virtual ~ChunkReader() = default;
    [[nodiscard]] virtual std::span<std::byte> buffer() = 0;
    // Bytes of the file from `offset` on.
    virtual void take(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  };
  struct ChunkTimes {
    double read_seconds = 0;
    double checksum_seconds = 0;
  };
  // Reads a whole chunk. Throws as read(), after the last piece: what was taken does not count then.
  ChunkTimes read_chunk(std::uint64_t index, ChunkReader& reader) const;

  // Checks every chunk of the file anew. `progress` (may be empty) is told bytes done and bytes in
  // all, one call at a time, from any thread. Throws Data that names the damaged chunks: bytes of
  // the file, tensors they touch, both checksums.
  using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;
  void verify(const ParallelFor& parallel_for, const Progress& progress) const;

 private:
  explicit PackedModel(Safetensors file) : file_(std::move(file)) {}
  void read_checksums();
  void read_metadata();
  void follow_embedding_rows(ModelConfig& config);
  void find_tensors(const ModelConfig& config);
  [[nodiscard]] Range chunk(std::uint64_t index) const;  // bytes of the file
  // The part of `wanted` that lies in a chunk, which is checked as a whole unless it was before.
  void read_in_chunk(std::uint64_t index, Range wanted, std::byte* destination) const;
  // Words for a chunk whose bytes have the checksum `found`; empty: as they should.
  [[nodiscard]] std::string damage(std::uint64_t index, std::uint32_t found) const;
  // Throws Data where there are such words; else the chunk is known to be good.
  void settle(std::uint64_t index, std::uint32_t found) const;

  Safetensors file_;
  PackedInfo info_;
  std::vector<std::string> notices_;
  std::uint64_t data_begin_ = 0;
  std::uint64_t data_end_ = 0;                     // where the checksums begin
  std::vector<std::uint32_t> checksums_;           // of each chunk
  std::unique_ptr<std::atomic<bool>[]> checked_;   // of each chunk
  std::vector<const TensorInfo*> layer_tensors_;   // [layer][PackedLayerTensor], into file_
  std::vector<const TensorInfo*> global_tensors_;  // [PackedGlobalTensor]; nullptr: absent
};

}  // namespace fut
