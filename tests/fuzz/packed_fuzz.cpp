// What a packed folder says of itself. The first byte says which part the rest is:
//   H  the header of model.safetensors; made-up data and checksums that fit are put behind it
//   F  the whole of model.safetensors
//   K  the table of checksums      O  options         I  identity of the source
//   R  report card                 P  progress, without its own checksum
//   N  source.json
// A reader refuses, or says what its writer would write again.
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "loader/crc32c.h"
#include "loader/packed_checksums.h"
#include "loader/packed_model.h"
#include "loader/packed_progress.h"
#include "loader/report_card.h"
#include "tests/fuzz/memory_folder.h"

namespace {

using namespace fut;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

void append_number(std::string& out, std::uint64_t number, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(number >> (8 * i) & 0xFFU);
}

// The least model that can be packed.
ModelConfig packable() {
  ModelConfig config;
  config.hidden_size = config.intermediate_size = 128;
  config.num_layers = 1;
  config.num_q_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 64;
  config.vocab_size = 3;
  return config;
}

// Bytes of all its tensors but the checksums.
std::uint64_t data_bytes() {
  static const std::uint64_t sum = [] {
    std::uint64_t bytes = 0;
    for (const PackedTensor& tensor : packed_tensors(packable(), 128, false)) {
      bytes += tensor_bytes(tensor);
    }
    return bytes;
  }();
  return sum;
}

std::string file_around(std::string_view header) {
  std::string file;
  append_number(file, header.size(), 8);
  file += header;
  const std::string data(data_bytes(), '\1');
  ChecksumTable table;
  table.chunks = {crc32c(bytes_of(data))};
  table.header = crc32c(bytes_of(file));
  file += data;
  for (const std::byte byte : encode_checksums(table)) file += static_cast<char>(byte);
  return file;
}

void check_model(const std::filesystem::path& folder) {
  ModelConfig config = packable();
  const PackedModel model = PackedModel::open(folder, config);
  std::vector<std::byte> bytes;
  for (int i = 0; i < kNumPackedLayerTensors; ++i) {
    const auto which = static_cast<PackedLayerTensor>(i);
    const TensorInfo& info = model.layer(0, which);
    const PackedTensor expected =
        packed_layer_tensor(config, model.info().options.group_size, 0, which);
    test::require(info.bytes == tensor_bytes(expected), "a tensor of another size");
    bytes.resize(info.bytes);
    model.read(info, bytes, {});
  }
  test::require(model.global(PackedGlobalTensor::EmbedTokens).shape.front() == config.vocab_size,
                "an embedding of another vocabulary");
  model.verify({}, {});
}

void read_file(std::string_view content) {
  static test::MemoryFolder folder;
  folder.put(kModelFileName, content);
  static_cast<void>(PackedModel::is_packed(folder.path()));
  test::accepted([&] { check_model(folder.path()); });
}

void read_progress_file(std::string_view content) {
  static test::MemoryFolder folder;
  std::string file(content);
  const std::uint32_t checksum = crc32c(bytes_of(file));
  append_number(file, 1, 8);
  append_number(file, checksum, 4);
  folder.put(kProgressName, file);
  const auto found = read_progress(folder.path());
  if (!found) return;
  // Key, complete tensors, chunks, the number of the state's parts; each has its length in front.
  std::size_t sizes =
      found->progress.key.size() + 8 + 4 * found->progress.chunks.size() + 8 + 4 * 8;
  for (const auto& part : found->state) sizes += 8 + part.size();
  test::require(sizes == content.size(), "a progress of another size");
}

void read_text(char part, std::string_view text) {
  if (part == 'K') {
    const auto table = decode_checksums(bytes_of(text));
    const bool is_same = !table || std::ranges::equal(encode_checksums(*table), bytes_of(text));
    test::require(is_same, "checksums that are written otherwise");
  } else if (part == 'O') {
    const PackedOptions options = parse_options("file", text);
    test::require(parse_options("file", options_json(options)) == options, "other options");
  } else if (part == 'I') {
    const SourceIdentity identity = parse_identity("file", text);
    SourceIdentity again = parse_identity("file", identity_json(identity));
    for (std::size_t i = 0; i < again.files.size() && i < identity.files.size(); ++i) {
      again.files[i].modified_ns = identity.files[i].modified_ns;  // not written
    }
    test::require(again == identity, "another identity");
  } else if (part == 'R') {
    const ReportCard card = parse_report_card(text);
    const ReportCard again = parse_report_card(report_card_json(card));
    test::require(again.matrices.size() == card.matrices.size(), "another report card");
  } else if (part == 'N') {
    static test::MemoryFolder folder;
    folder.put(kSourceNoteName, text);
    const auto note = read_source_note(folder.path());
    test::require(note.has_value(), "a source note that is not there");
    folder.put(kSourceNoteName, source_note_json(*note));
    test::require(read_source_note(folder.path())->identity == note->identity, "another source");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto part = static_cast<char>(data[0]);
  const std::string_view content = test::as_text(data + 1, size - 1);
  if (part == 'H') {
    read_file(file_around(content));
  } else if (part == 'F') {
    read_file(content);
  } else if (part == 'P') {
    read_progress_file(content);
  } else {
    test::accepted([&] { read_text(part, content); });
  }
  return 0;
}
