// The safetensors reader on any bytes: it refuses, or the tensors that it names fill the file behind its
// header without hole or overlap, each has the bytes that type and shape say, and is found by its name.
#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "loader/safetensors.h"
#include "tests/fuzz/fuzz_case.h"

namespace {

using namespace fut;

void check(const Safetensors& opened, std::string_view input) {
  const std::uint64_t begin = kSafetensorsPrefixBytes + opened.header_bytes();
  test::require(begin <= input.size(), "a header longer than its file");
  std::vector<std::byte> bytes;
  std::set<std::string> names;
  std::uint64_t covered = 0;
  std::uint64_t end = begin;
  for (const TensorInfo& tensor : opened.tensors()) {
    test::require(tensor.bytes <= input.size() && tensor.offset <= input.size() - tensor.bytes,
                  "a tensor outside its file");
    test::require(tensor.offset >= end, "a tensor that overlaps the one before it");
    end = tensor.offset + tensor.bytes;
    covered += tensor.bytes;
    test::require(opened.find(tensor.name) == &tensor, "a tensor that its name does not find");
    test::require(names.insert(tensor.name).second, "a name given twice");
    // As float128 would be: no product of extents can wrap around here.
    long double product = dtype_bytes(tensor.dtype);
    for (const std::int64_t extent : tensor.shape) {
      test::require(extent >= 0, "a negative extent");
      product *= static_cast<long double>(extent);
    }
    test::require(product == static_cast<long double>(tensor.bytes), "bytes that its shape lacks");
    bytes.resize(tensor.bytes);
    opened.read(tensor, bytes);
    const auto* wanted = reinterpret_cast<const std::byte*>(input.data()) + tensor.offset;
    test::require(std::equal(bytes.begin(), bytes.end(), wanted), "bytes of another place");
  }
  for (const UnsupportedTensor& tensor : opened.unsupported()) {
    covered += tensor.bytes;
    test::require(names.insert(tensor.name).second, "a name given twice");
    test::require(opened.find(tensor.name) == nullptr, "a tensor that cannot be read is found");
  }
  test::require(covered == input.size() - begin, "bytes that belong to no tensor");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = test::as_text(data, size);
  const test::MemoryFile file(input);
  test::accepted([&] { check(Safetensors::open(file.path()), input); });
  return 0;
}
