// Files as the loader opens them: what they hold, and what is said when they cannot be read.
#include "loader/file_reader.h"

#include <chrono>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace fut {
namespace {

using test::error_message;
using test::expect_mentions;
using test::TempFolder;
using test::write_file;

std::string open_error(const std::filesystem::path& path) {
  return error_message(ErrorKind::Data, [&] { (void)FileReader::open(path); });
}

std::string read_text(const FileReader& file, std::uint64_t offset, std::size_t count) {
  std::string text(count, '?');
  file.read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

TEST(FileReader, ShowsTheBytesOfAFile) {
  const TempFolder folder;
  write_file(folder / "a", "hello world");
  const FileReader file = FileReader::open(folder / "a");
  EXPECT_EQ(file.size(), 11U);
  EXPECT_EQ(read_text(file, 6, 5), "world");
  EXPECT_EQ(read_text(file, 11, 0), "");
}

TEST(FileReader, AnEmptyFileHasNoBytes) {
  const TempFolder folder;
  write_file(folder / "a", "");
  const FileReader file = FileReader::open(folder / "a");
  EXPECT_EQ(file.size(), 0U);
  EXPECT_EQ(read_text(file, 0, 0), "");
}

TEST(FileReader, CanBeMovedAndAssigned) {
  const TempFolder folder;
  write_file(folder / "a", "aaaa");
  write_file(folder / "b", "bb");
  FileReader a = FileReader::open(folder / "a");
  FileReader b = std::move(a);
  EXPECT_EQ(read_text(b, 0, 4), "aaaa");
  b = FileReader::open(folder / "b");
  EXPECT_EQ(read_text(b, 0, 2), "bb");
  EXPECT_EQ(b.path(), folder / "b");
}

TEST(FileReader, NamesWhatCannotBeOpenedAndWhy) {
  const TempFolder folder;
  expect_mentions(open_error(folder / "nothing"), {(folder / "nothing").string(), "No such file"});
  expect_mentions(open_error(folder.path()), {folder.path().string(), "is a folder"});
  std::filesystem::create_symlink("../blobs/0123", folder / "link");
  expect_mentions(open_error(folder / "link"), {"link", "../blobs/0123", "does not exist"});
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_mentions(open_error(folder / "pipe"), {"pipe", "regular file"});
}

TEST(FileReader, SaysWhenPermissionIsDenied) {
  const TempFolder folder;
  write_file(folder / "secret", "x");
  ASSERT_EQ(::chmod((folder / "secret").c_str(), 0), 0);
  // The superuser may read everything, so become somebody else for the attempt.
  const bool is_root = ::geteuid() == 0;
  constexpr uid_t kNobody = 65534;
  if (is_root) {
    ASSERT_EQ(::seteuid(kNobody), 0);
  }
  const std::string message = open_error(folder / "secret");
  if (is_root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  expect_mentions(message, {"secret", "Permission denied"});
}

TEST(FileReader, AFileThatShrinksIsAnError) {
  const TempFolder folder;
  write_file(folder / "a", std::string(100'000, 'x'));
  const FileReader file = FileReader::open(folder / "a");
  std::filesystem::resize_file(folder / "a", 50'000);
  std::string text(100'000, '?');
  const std::string message = error_message(
      ErrorKind::Runtime, [&] { file.read(0, std::as_writable_bytes(std::span(text))); });
  expect_mentions(message, {(folder / "a").string(), "50000", "100000"});
}

TEST(FileReader, TellsWhetherItWasWrittenToMeanwhile) {
  const TempFolder folder;
  const std::filesystem::path path = folder / "a";
  write_file(path, "aaaa");
  // Long ago: a change is a change of time, too, however coarse the system's clock of files is.
  std::filesystem::last_write_time(path,
                                   std::filesystem::last_write_time(path) - std::chrono::hours(1));
  const FileReader file = FileReader::open(path);
  file.require_unchanged();
  // Another file under the name is another matter: the one that is open stays as it was.
  write_file(folder / "b", "bbbb");
  std::filesystem::rename(folder / "b", path);
  file.require_unchanged();
  EXPECT_EQ(read_text(file, 0, 4), "aaaa");
  const FileReader other = FileReader::open(path);
  write_file(path, "cc");
  expect_mentions(error_message(ErrorKind::Runtime, [&] { other.require_unchanged(); }),
                  {path.string(), "4 bytes then, 2 now"});
}

}  // namespace
}  // namespace fut
