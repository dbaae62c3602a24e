// What a packed folder is like on the disk, and that nothing else is left there: not by a writer that
// was killed, not by a full disk, not twice the same in different bytes.
#include "loader/packed_writer.h"

#include <algorithm>
#include <csignal>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "loader/packed_model.h"
#include "loader/report_card.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/packed_case.h"

namespace fut {
namespace {

using test::error_message;
using test::expect_mentions;
using test::packable_config;
using test::read_file;
using test::TempFolder;
using test::write_file;
using test::write_packed;

std::vector<std::string> entries(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<PackedTensor> small_tensors() {
  return packed_tensors(packable_config(), 128, true);
}

// Runs `action` in a process of its own and returns what waitpid says of it.
template <class Action>
int in_child(Action action) {
  const pid_t child = ::fork();
  if (child == 0) {
    action();
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

TEST(PackedWriter, WritesAFolderThatIsReadBackByteForByte) {
  const TempFolder folder;
  ModelConfig config = packable_config();
  write_packed(folder / "out", config);
  EXPECT_EQ(entries(folder.path()), std::vector<std::string>{"out"});
  EXPECT_EQ(entries(folder / "out"), std::vector<std::string>{"model.safetensors"});
  const Safetensors file = Safetensors::open(folder / "out" / "model.safetensors");
  EXPECT_EQ(file.tensors().back().name, kChecksumTensor);
  EXPECT_EQ((8 + file.header_bytes()) % 64, 0U);
  for (const auto& [name, bytes] : test::made_up_bytes(small_tensors())) {
    const TensorInfo* info = file.find(name);
    ASSERT_NE(info, nullptr) << name;
    std::vector<std::byte> found(bytes.size());
    file.read(*info, found);
    EXPECT_EQ(found, bytes) << name;
  }
}

TEST(PackedWriter, WritesTheSameBytesTwiceFromAnyPlaceInAnyPieces) {
  const TempFolder folder;
  const ModelConfig config = packable_config();
  write_packed(folder / "a", config);
  const std::string first = read_file(folder / "a" / "model.safetensors");
  write_packed(folder / "much" / "deeper" / "b", config, false, 77);
  EXPECT_EQ(read_file(folder / "much" / "deeper" / "b" / "model.safetensors"), first);

  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  write_packed("c/", config, false, 4096);
  std::filesystem::current_path(before);
  EXPECT_EQ(read_file(folder / "c" / "model.safetensors"), first);
  EXPECT_EQ(first.find(folder.path().string()), first.npos);
}

TEST(PackedWriter, TakesConfigurationAndTokenizerAlongAndNothingElse) {
  const TempFolder folder;
  const std::filesystem::path source = folder / "source";
  std::filesystem::create_directories(source / "tokenizer.model");  // a folder of that name
  std::filesystem::create_directories(folder / "blobs");
  const std::string binary("a\0b\n\xFF", 5);
  for (const char* name :
       {"config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json",
        "chat_template.jinja", "LICENSE.txt", "USE_POLICY.md", "README.md",
        "model.safetensors.index.json", "model-00001-of-00002.safetensors", "quantise.py"}) {
    write_file(source / name, binary + name);
  }
  write_file(folder / "blobs" / "0123", "linked");
  std::filesystem::create_symlink("../blobs/0123", source / "tokenizer.json");
  write_file(source / "merges.txt", "");

  const std::vector<PackedTensor> tensors = small_tensors();
  PackedWriter writer(folder / "out", test::packed_metadata(), tensors, false);
  writer.copy_companions(source);
  writer.add_file("source.json", "{}");
  test::append_all(writer, tensors);
  writer.finish("");
  EXPECT_EQ(entries(folder / "out"),
            (std::vector<std::string>{"LICENSE.txt", "USE_POLICY.md", "chat_template.jinja",
                                      "config.json", "generation_config.json", "merges.txt",
                                      "model.safetensors", "source.json", "special_tokens_map.json",
                                      "tokenizer.json", "tokenizer_config.json"}));
  EXPECT_EQ(read_file(folder / "out" / "config.json"), binary + "config.json");
  EXPECT_EQ(read_file(folder / "out" / "tokenizer.json"), "linked");
  EXPECT_FALSE(std::filesystem::is_symlink(folder / "out" / "tokenizer.json"));
}

TEST(PackedWriter, FollowsTheUsersMask) {
  const TempFolder folder;
  const mode_t before = ::umask(027);
  write_packed(folder / "out", packable_config());
  ::umask(before);
  struct stat status = {};
  ASSERT_EQ(::stat((folder / "out").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0750U);
  ASSERT_EQ(::stat((folder / "out" / "model.safetensors").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0640U);
}

TEST(PackedWriter, KeepsAReportAsLargeAsItsRoom) {
  const TempFolder folder;
  const std::vector<PackedTensor> tensors = small_tensors();
  ModelConfig config = packable_config();
  PackedWriter writer(folder / "out", test::packed_metadata(), tensors, false);
  test::append_all(writer, tensors);
  ASSERT_GT(writer.report_room(), 100U * tensors.size());
  const std::string report(writer.report_room(), 'r');
  EXPECT_THROW(writer.finish(report + "r"), Error);
  writer.finish(report);
  EXPECT_EQ(PackedModel::open(folder / "out", config).info().report, report);
}

TEST(PackedWriter, HasRoomForTheLongestReportCard) {
  const TempFolder folder;
  const std::vector<PackedTensor> tensors = small_tensors();
  ModelConfig config = packable_config();
  PackedWriter writer(folder / "out", test::packed_metadata(), tensors, false);
  test::append_all(writer, tensors);
  // Control characters take most bytes when they are escaped, in a string in a string.
  const std::string longest(100'000, '\x01');
  ReportCard card;
  card.notices.assign(1000, longest);
  for (int m = 0; m < kNumPackedMatrices; ++m) {
    card.matrices.push_back(
        {"layers.1000.gate_up_proj", 1.0 / 3e-200, 2.0 / 3e-200, 5.0 / 3e-200, longest});
  }
  writer.finish(report_card_json(card));
  const ReportCard back =
      parse_report_card(PackedModel::open(folder / "out", config).info().report);
  EXPECT_EQ(back.matrices.size(), card.matrices.size());
  EXPECT_EQ(back.matrices.back().rtn_loss, card.matrices.back().rtn_loss);
}

// ---- a writer that does not get to its end ------------------------------------------------------

TEST(UnfinishedWriter, LeavesNothing) {
  const TempFolder folder;
  {
    const std::vector<PackedTensor> tensors = small_tensors();
    PackedWriter writer(folder / "out", test::packed_metadata(), tensors, false);
    test::append_all(writer, tensors);
    EXPECT_FALSE(std::filesystem::exists(folder / "out"));
    EXPECT_EQ(entries(folder.path()).size(), 1U);
  }
  EXPECT_TRUE(entries(folder.path()).empty());
}

// Ends the process by SIGKILL at some point of writing.
void write_and_die(const std::filesystem::path& folder, int point) {
  const std::vector<PackedTensor> tensors = small_tensors();
  PackedWriter writer(folder, test::packed_metadata(), tensors, true);
  if (point == 1) writer.append(tensors[0].name, std::vector<std::byte>(100));
  if (point == 2) test::append_all(writer, tensors);
  (void)::raise(SIGKILL);
}

TEST(KilledWriter, LeavesNothingUnderTheNameAndIsTidiedUpByTheNext) {
  for (int point = 0; point < 3; ++point) {
    const TempFolder folder;
    const int status = in_child([&] { write_and_die(folder / "out", point); });
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    ASSERT_EQ(entries(folder.path()).size(), 1U);
    EXPECT_TRUE(entries(folder.path())[0].starts_with("out.partial-"));
    write_packed(folder / "out", packable_config());
    EXPECT_EQ(entries(folder.path()), std::vector<std::string>{"out"});
  }
}

TEST(KilledWriter, LeavesAnOlderFolderAsItWas) {
  const TempFolder folder;
  write_packed(folder / "out", packable_config());
  const std::string before = read_file(folder / "out" / "model.safetensors");
  const int status = in_child([&] { write_and_die(folder / "out", 2); });
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(read_file(folder / "out" / "model.safetensors"), before);
}

TEST(PartialFolders, OfLivingProcessesAndOfOthersNamesStay) {
  const TempFolder folder;
  const std::vector<std::string> kept = {"other.partial-999999999-0a0b0c0d",
                                         "out.partial-",
                                         "out.partial-12x-y",
                                         "out.partial-x-12",
                                         "out.partial-999999999-notes",
                                         "out.partial-999999999-0a0b0c0d-old",
                                         "out.partial-999999999-0a0b0c0",
                                         "out.partial-999999999-0a0b0c0d1",
                                         "out.partial-999999999-0A0B0C0D",
                                         "out.partial-999999999_0a0b0c0d",
                                         "out.replaced-999999999-0a0b0c0d",
                                         "out.partial-" + std::to_string(::getpid()) + "-00000000"};
  for (const std::string& name : kept) std::filesystem::create_directory(folder / name);
  std::filesystem::create_directory(folder / "out");  // or the replaced one would get its name back
  // A number that no process has: Linux gives out at most 2^22.
  std::filesystem::create_directory(folder / "out.partial-999999999-0a0b0c0d");
  write_packed(folder / "out", packable_config());
  std::vector<std::string> expected = kept;
  expected.emplace_back("out");
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(entries(folder.path()), expected);
}

TEST(ReplacedFolder, GetsItsNameBackWhereTheSwapWasCutShort) {
  const TempFolder folder;
  const std::filesystem::path replaced = folder / "out.replaced-999999999-0a0b0c0d";
  write_packed(replaced, packable_config());
  const std::string before = read_file(replaced / "model.safetensors");
  // Refused at once, as an existing folder is.
  expect_mentions(
      error_message(ErrorKind::Data, [&] { write_packed(folder / "out", packable_config()); }),
      {(folder / "out").string(), "holds a quantised model"});
  EXPECT_EQ(entries(folder.path()), std::vector<std::string>{"out"});
  EXPECT_EQ(read_file(folder / "out" / "model.safetensors"), before);
}

TEST(ReplacedFolder, OfALivingProcessOrOfAnotherNameStays) {
  const TempFolder folder;
  std::vector<std::string> expected = {"out.replaced-" + std::to_string(::getpid()) + "-00000000",
                                       "out.replaced-999999999-notes"};
  for (const std::string& name : expected) std::filesystem::create_directory(folder / name);
  restore_replaced(folder / "out");
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(entries(folder.path()), expected);
  EXPECT_NO_THROW(restore_replaced(folder / "no such folder" / "out"));
}

void make_folder_with(const std::filesystem::path& folder, const char* file) {
  std::filesystem::create_directory(folder);
  write_file(folder / file, "x");
}

TEST(SwapByRenaming, LeavesBothFoldersUnderEachOthersNames) {
  const TempFolder folder;
  make_folder_with(folder / "out", "old");
  make_folder_with(folder / "new", "new");
  EXPECT_EQ(exchange_by_renaming(folder / "new", folder / "out"), 0);
  EXPECT_EQ(entries(folder.path()), (std::vector<std::string>{"new", "out"}));
  EXPECT_EQ(entries(folder / "out"), std::vector<std::string>{"new"});
  EXPECT_EQ(entries(folder / "new"), std::vector<std::string>{"old"});
}

TEST(SwapByRenaming, ThatFailsChangesNothing) {
  const TempFolder folder;
  make_folder_with(folder / "out", "old");
  EXPECT_EQ(exchange_by_renaming(folder / "missing", folder / "out"), ENOENT);
  EXPECT_EQ(exchange_by_renaming(folder / "out", folder / "missing"), ENOENT);
  EXPECT_EQ(entries(folder.path()), std::vector<std::string>{"out"});
  EXPECT_EQ(entries(folder / "out"), std::vector<std::string>{"old"});
}

// ---- disks that are full or closed --------------------------------------------------------------

// In a child process: a limit on the size of files stands for a full disk. Returns its message.
template <class Action>
std::string message_under_limit(const std::filesystem::path& note, Action action) {
  const int status = in_child([&] {
    (void)::signal(SIGXFSZ, SIG_IGN);
    std::string message;
    try {
      action([](std::uint64_t bytes) {
        const rlimit limit = {bytes, bytes};
        (void)::setrlimit(RLIMIT_FSIZE, &limit);
      });
    } catch (const Error& error) {
      message = fmt::format("{} {}", static_cast<int>(error.kind()), error.what());
    }
    const int out = ::open(note.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const bool is_written =
        ::write(out, message.data(), message.size()) == std::ssize(message) && ::close(out) == 0;
    ::_exit(is_written ? 0 : 1);
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return read_file(note);
}

TEST(FullDisk, IsNoticedBeforeAnythingIsComputed) {
  const TempFolder folder;
  const TempFolder aside;
  const std::string message = message_under_limit(aside / "note", [&](auto set_limit) {
    set_limit(65536);
    const PackedWriter writer(folder / "out", test::packed_metadata(), small_tensors(), false);
  });
  EXPECT_TRUE(message.starts_with("1 ")) << message;
  expect_mentions(message,
                  {(folder / "out").string(), "bytes are needed", "are free", "ulimit -f"});
  EXPECT_TRUE(entries(folder.path()).empty());
}

TEST(FullDisk, InTheMiddleLeavesNothing) {
  const TempFolder folder;
  const TempFolder aside;
  const std::string message = message_under_limit(aside / "note", [&](auto set_limit) {
    const std::vector<PackedTensor> tensors = small_tensors();
    PackedWriter writer(folder / "out", test::packed_metadata(), tensors, false);
    set_limit(65536);
    test::append_all(writer, tensors);
    writer.finish("");
  });
  EXPECT_TRUE(message.starts_with("1 ")) << message;
  expect_mentions(message, {"model.safetensors", "File too large", "bytes are needed", "are free"});
  EXPECT_TRUE(entries(folder.path()).empty());
}

// The superuser may do everything, so become somebody else for as long as `action` takes.
template <class Action>
auto as_nobody(Action action) {
  const bool is_root = ::geteuid() == 0;
  if (is_root) {
    EXPECT_EQ(::seteuid(65534), 0);
  }
  auto result = action();
  if (is_root) {
    EXPECT_EQ(::seteuid(0), 0);
  }
  return result;
}

TEST(ClosedFolder, IsNamedWithTheReason) {
  const TempFolder folder;
  write_file(folder / "file", "x");
  const auto message_for = [&](const std::filesystem::path& target) {
    return error_message(ErrorKind::Runtime, [&] {
      const PackedWriter writer(target, test::packed_metadata(), small_tensors(), false);
    });
  };
  expect_mentions(message_for(folder / "file" / "out"),
                  {(folder / "file").string(), "Not a directory"});

  std::filesystem::create_directory(folder / "closed");
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
  ASSERT_EQ(::chmod((folder / "closed").c_str(), 0555), 0);
  expect_mentions(as_nobody([&] { return message_for(folder / "closed" / "out"); }),
                  {(folder / "closed" / "out").string(), "Permission denied", "choose a folder"});
}

TEST(ClosedFolder, ThatCannotBeLookedAtIsNamedWithAWayOut) {
  const TempFolder folder;
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
  std::filesystem::create_directory(folder / "out");
  ASSERT_EQ(::chmod((folder / "out").c_str(), 0), 0);
  const std::string message = as_nobody([&] {
    return error_message(ErrorKind::Data, [&] { write_packed(folder / "out", packable_config()); });
  });
  expect_mentions(message, {(folder / "out").string(), "Permission denied",
                            "choose a folder that can be read and written"});
  ASSERT_EQ(::chmod((folder / "out").c_str(), 0700), 0);
}

// ---- folders that exist -------------------------------------------------------------------------

TEST(ExistingFolder, IsFilledWhereItIsEmpty) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "out");
  write_packed(folder / "out", packable_config());
  EXPECT_EQ(entries(folder.path()), std::vector<std::string>{"out"});
  EXPECT_TRUE(PackedModel::is_packed(folder / "out"));
}

TEST(ExistingFolder, IsRefusedUnlessItMayBeReplaced) {
  const TempFolder folder;
  write_packed(folder / "out", packable_config());
  const std::string before = read_file(folder / "out" / "model.safetensors");
  ModelConfig config = packable_config();
  config.vocab_size = 9;
  expect_mentions(error_message(ErrorKind::Data, [&] { write_packed(folder / "out", config); }),
                  {(folder / "out").string(), "holds a quantised model"});
  EXPECT_EQ(read_file(folder / "out" / "model.safetensors"), before);

  write_packed(folder / "out", config, true);
  EXPECT_EQ(entries(folder.path()), std::vector<std::string>{"out"});
  EXPECT_EQ(entries(folder / "out"), std::vector<std::string>{"model.safetensors"});
  EXPECT_NO_THROW((void)PackedModel::open(folder / "out", config));
}

TEST(ExistingFolder, IsNotReplacedWhereAUserPutSomethingIntoIt) {
  const TempFolder folder;
  write_packed(folder / "out", packable_config());
  write_file(folder / "out" / "config.json", "{}");  // these are ours
  write_file(folder / "out" / "source.json.partial", "{");
  write_packed(folder / "out", packable_config(), true);
  write_file(folder / "out" / "notes.txt", "mine");
  expect_mentions(error_message(ErrorKind::Data,
                                [&] { write_packed(folder / "out", packable_config(), true); }),
                  {(folder / "out").string(), "notes.txt", "would be lost"});
  EXPECT_EQ(read_file(folder / "out" / "notes.txt"), "mine");
}

TEST(ExistingFolder, ThatWeDidNotWriteIsNeverReplaced) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "source");
  write_file(folder / "source" / "model.safetensors", std::string(8, '\0') + "{}");
  expect_mentions(error_message(ErrorKind::Data,
                                [&] { write_packed(folder / "source", packable_config(), true); }),
                  {(folder / "source").string(), "did not write"});
  write_file(folder / "file", "x");
  expect_mentions(error_message(ErrorKind::Data,
                                [&] { write_packed(folder / "file", packable_config(), true); }),
                  {(folder / "file").string(), "is a file"});
  EXPECT_EQ(entries(folder.path()), (std::vector<std::string>{"file", "source"}));
}

TEST(ExistingFolder, BehindALinkIsTheOneThatIsReplaced) {
  const TempFolder folder;
  write_packed(folder / "real", packable_config());
  std::filesystem::create_directory_symlink(folder / "real", folder / "link");
  ModelConfig config = packable_config();
  config.vocab_size = 9;
  write_packed(folder / "link", config, true);
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_NO_THROW((void)PackedModel::open(folder / "real", config));
}

TEST(ExistingFolder, MadeByAnotherProcessMeanwhileIsNotTouched) {
  const TempFolder folder;
  const std::vector<PackedTensor> tensors = small_tensors();
  PackedWriter writer(folder / "out", test::packed_metadata(), tensors, false);
  test::append_all(writer, tensors);
  std::filesystem::create_directory(folder / "out");
  write_file(folder / "out" / "mine", "x");
  EXPECT_THROW(writer.finish(""), Error);
  EXPECT_EQ(read_file(folder / "out" / "mine"), "x");
}

TEST(Order, OfTensorsAndTheirSizesIsWatched) {
  const TempFolder folder;
  const std::vector<PackedTensor> tensors = small_tensors();
  PackedWriter writer(folder / "out", test::packed_metadata(), tensors, false);
  const std::vector<std::byte> too_many(static_cast<std::size_t>(tensor_bytes(tensors[0])) + 1);
  EXPECT_THROW(writer.append(tensors[1].name, {}), Error);
  EXPECT_THROW(writer.append(tensors[0].name, too_many), Error);
  EXPECT_THROW(writer.finish(""), Error);
}

}  // namespace
}  // namespace fut
