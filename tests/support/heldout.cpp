// See the header.
#include "tests/support/heldout.h"

#include <fstream>
#include <iterator>

#include "kernels/check.h"

namespace fut::test {
namespace {

constexpr std::size_t kFileWindow = 1024;

}  // namespace

TokenWindows heldout_windows(const std::filesystem::path& folder, int count, int window_tokens) {
  const std::filesystem::path path = folder / "heldout_ids.bin";
  std::ifstream in(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
  FUT_CHECK(bytes.size() >= 2 * kFileWindow * static_cast<std::size_t>(count),
            "{} holds {} bytes, {} windows of {} ids were asked for", path.string(), bytes.size(),
            count, kFileWindow);
  const auto id = [&](std::size_t i) {
    return static_cast<std::int32_t>(static_cast<unsigned char>(bytes[2 * i]) |
                                     static_cast<unsigned char>(bytes[2 * i + 1]) << 8);
  };
  TokenWindows windows(static_cast<std::size_t>(count));
  for (std::size_t w = 0; w < windows.size(); ++w) {
    for (int t = 0; t < window_tokens; ++t) {
      windows[w].push_back(id(w * kFileWindow + static_cast<std::size_t>(t)));
    }
  }
  return windows;
}

}  // namespace fut::test
