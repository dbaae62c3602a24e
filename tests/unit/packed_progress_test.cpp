// The file that lets a killed quantisation go on: what is read is what was written, and one that was damaged
// or made up is as good as none, without memory for what it claims and without an index that it made up.
#include "loader/packed_progress.h"

#include <cstring>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "loader/safetensors.h"
#include "tests/support/counted_memory.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/packed_case.h"

namespace fut::test {
namespace {

PackedProgress some_progress() {
  return {.key = "key", .tensors = 7, .chunks = {1, 2}};
}
SavedState some_state() {
  return {std::vector<std::byte>(5, std::byte{3}), {}, {std::byte{0xFF}}};
}

TEST(PackedProgress, IsReadAsItWasWritten) {
  const TempFolder folder;
  EXPECT_FALSE(read_progress(folder.path()).has_value());
  for (const SavedState& state : {some_state(), SavedState(), SavedState(1)}) {
    write_progress(folder.path(), some_progress(), state);
    const auto read = read_progress(folder.path());
    ASSERT_TRUE(read.has_value());
    EXPECT_EQ(read->progress.key, "key");
    EXPECT_EQ(read->progress.tensors, 7U);
    EXPECT_EQ(read->progress.chunks, some_progress().chunks);
    EXPECT_EQ(read->state, state);
  }
}

TEST(PackedProgress, EveryByteCounts) {
  const TempFolder folder;
  write_progress(folder.path(), some_progress(), some_state());
  const std::string good = read_file(folder / kProgressName);
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x40);
    write_file(folder / kProgressName, bad);
    EXPECT_FALSE(read_progress(folder.path()).has_value()) << "byte " << i;
    write_file(folder / kProgressName, good.substr(0, i));
    EXPECT_FALSE(read_progress(folder.path()).has_value()) << i << " bytes";
  }
  write_file(folder / kProgressName, good + '\0');
  EXPECT_FALSE(read_progress(folder.path()).has_value());
}

TEST(PackedProgress, LengthsAreComparedBeforeAnythingIsAllocated) {
  const TempFolder folder;
  const std::string wraps = "\xF8\xFF\xFF\xFF\xFF\xFF\xFF\xFF";  // 2^64 - 8
  write_file(folder / kProgressName, wraps + std::string(92, '\0'));
  const MemoryPeak peak;
  EXPECT_FALSE(read_progress(folder.path()).has_value());
  std::filesystem::resize_file(folder / kProgressName, std::uintmax_t{1} << 36U);  // holes
  EXPECT_FALSE(read_progress(folder.path()).has_value());
  write_file(folder / kProgressName, "");
  std::filesystem::resize_file(folder / kProgressName, std::uintmax_t{1} << 36U);
  EXPECT_FALSE(read_progress(folder.path()).has_value());
  EXPECT_LT(peak.bytes(), std::size_t{1} << 20U);
}

// A process that is gone.
pid_t ended_process() {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(0);
  ::waitpid(pid, nullptr, 0);
  return pid;
}

// How many tensors a writer takes up where a dead one left a progress that says `tensors`.
std::size_t taken_up(std::uint64_t tensors) {
  const TempFolder folder;
  const PackedMetadata metadata = packed_metadata();
  const auto abandoned =
      folder / fmt::format("out.partial-{}-00000000", static_cast<int>(ended_process()));
  std::filesystem::create_directories(abandoned);
  write_file(abandoned / kModelFileName, std::string(std::size_t{1} << 20U, ' '));
  PackedProgress progress;
  progress.key = fmt::format("{} key {} {}", kPackedVersion, options_json(metadata.options),
                             identity_json(metadata.source));
  progress.tensors = tensors;
  write_progress(abandoned, progress, {});
  const PackedWriter writer(folder / "out", metadata, packed_tensors(packable_config(), 128, false),
                            false, "key");
  return writer.resumed_tensors();
}

TEST(PackedProgress, CountsBeyondTheTableAreNotTakenUp) {
  const std::size_t all = packed_tensors(packable_config(), 128, false).size();
  for (const std::uint64_t tensors :
       {~std::uint64_t{0}, ~std::uint64_t{0} - 1, std::uint64_t{1} << 63U, std::uint64_t{1} << 32U,
        std::uint64_t{all} + 1}) {
    EXPECT_EQ(taken_up(tensors), 0U) << tensors;
  }
}

}  // namespace
}  // namespace fut::test
