// Writes a model of a real shape with random weights, to quantise, load and run where no real one can be
// had, and puts files into the page cache or out of it, to start with a warm one or a cold one.
//
//   make_model checkpoint SHAPE.json FOLDER [SHARDS [LAYERS]]   BF16, as Hugging Face serves it
//   make_model packed SHAPE.json FOLDER [LAYERS]                as fut quantize leaves it
//   make_model cold FILE...                                     no page of it stays in memory
//   make_model warm FILE...                                     all of it is read once
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <string>
#include <unistd.h>
#include <vector>

#include "tests/support/shape_models.h"

namespace fut::test {
namespace {

int use() {
  std::fputs(
      "make_model checkpoint SHAPE.json FOLDER [SHARDS [LAYERS]]\n"
      "make_model packed SHAPE.json FOLDER [LAYERS]\n"
      "make_model cold|warm FILE...\n",
      stderr);
  return 2;
}

void tell(const WrittenBytes& written) {
  std::printf("%.2f GB in %.2f s, %.2f GB/s\n", static_cast<double>(written.bytes) / 1e9,
              written.seconds, static_cast<double>(written.bytes) / 1e9 / written.seconds);
}

bool touch(const std::string& path, bool warm) {
  const int file = ::open(path.c_str(), O_RDONLY);
  if (file < 0) {
    std::perror(path.c_str());
    return false;
  }
  bool good = true;
  if (warm) {
    std::vector<char> bytes(std::size_t{16} << 20);
    ssize_t count = 0;
    do {
      count = ::read(file, bytes.data(), bytes.size());
    } while (count > 0);
    good = count == 0;
  } else {
    // Pages that are not on the disk yet would stay.
    good = ::fsync(file) == 0 && ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0;
  }
  ::close(file);
  return good;
}

int main_of(const std::vector<std::string>& words) {
  if (words.size() < 2) return use();
  const std::string& what = words[0];
  if (what == "cold" || what == "warm") {
    bool good = true;
    for (std::size_t i = 1; i < words.size(); ++i) good &= touch(words[i], what == "warm");
    return good ? 0 : 1;
  }
  if (words.size() < 3) return use();
  ShapeModelOptions options;
  options.shape = words[1];
  const auto number = [&](std::size_t i, int otherwise) {
    return i < words.size() ? std::stoi(words[i]) : otherwise;
  };
  if (what == "checkpoint") {
    options.num_shards = number(3, 4);
    options.num_layers = number(4, 0);
    tell(write_shape_checkpoint(words[2], options));
  } else if (what == "packed") {
    options.num_layers = number(3, 0);
    tell(write_shape_packed(words[2], options));
  } else {
    return use();
  }
  return 0;
}

}  // namespace
}  // namespace fut::test

int main(int argc, char** argv) {
  try {
    return fut::test::main_of(std::vector<std::string>(argv + 1, argv + argc));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
