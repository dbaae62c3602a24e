// The safetensors reader on any bytes: it refuses, or every tensor that it names lies within the file.
#include <vector>

#include "loader/safetensors.h"
#include "tests/fuzz/fuzz_case.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace fut;
  const test::MemoryFile file(test::as_text(data, size));
  test::accepted([&] {
    const Safetensors opened = Safetensors::open(file.path());
    std::vector<std::byte> bytes;
    for (const TensorInfo& tensor : opened.tensors()) {
      test::require(tensor.bytes <= size && tensor.offset <= size - tensor.bytes,
                    "a tensor outside its file");
      test::require(opened.find(tensor.name) == &tensor, "a tensor that its name does not find");
      bytes.resize(tensor.bytes);
      opened.read(tensor, bytes);
    }
  });
  return 0;
}
