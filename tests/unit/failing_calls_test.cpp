// Disks that fail, reads that come in pieces, files that change under a reader: this program's own pread,
// read, pwrite and fsync stand in front of the system's and answer as such a disk would.
#include <array>
#include <atomic>
#include <cerrno>
#include <fcntl.h>
#include <functional>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/model.h"
#include "engine/model_folder.h"
#include "kernels/backend.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"
#include "tests/support/toy_models.h"
#include "tests/unit/packed_case.h"

namespace fut::test {
namespace {

struct Faults {
  long failing = 0;   // the call that fails, the first being 1, and all that follow; 0: none
  bool once = false;  // no other than that one
  int error = EIO;
  std::size_t most_bytes = SIZE_MAX;      // that one call takes
  bool interrupts = false;                // every second call
  std::function<void(long)> before = {};  // each call, with its number
};

// Of the calls in question, while they are watched.
struct Watch {
  Faults faults;
  std::atomic<long> calls{0};
};
std::atomic<Watch*> reads{nullptr}, writes{nullptr};

class Watching {
 public:
  Watching(std::atomic<Watch*>& where, Faults faults) : where_(where) {
    watch_.faults = std::move(faults);
    where_ = &watch_;
  }
  Watching(const Watching&) = delete;
  Watching& operator=(const Watching&) = delete;
  ~Watching() { where_ = nullptr; }
  [[nodiscard]] long calls() const { return watch_.calls; }

 private:
  std::atomic<Watch*>& where_;
  Watch watch_;
};

// Whether the call may be made, of at most `bytes`; errno is set where not.
bool may_go_on(const std::atomic<Watch*>& where, std::size_t& bytes) {
  Watch* watch = where;
  if (watch == nullptr) return true;
  const Faults& faults = watch->faults;
  const long number = ++watch->calls;
  if (faults.before) faults.before(number);
  const bool fails =
      faults.failing > 0 && (faults.once ? number == faults.failing : number >= faults.failing);
  if (fails || (faults.interrupts && number % 2 == 1)) {
    errno = fails ? faults.error : EINTR;
    return false;
  }
  bytes = std::min(bytes, faults.most_bytes);
  return true;
}

}  // namespace
}  // namespace fut::test

extern "C" {
ssize_t pread(int descriptor, void* to, std::size_t bytes, off_t offset) {
  if (!fut::test::may_go_on(fut::test::reads, bytes)) return -1;
  return ::syscall(SYS_pread64, descriptor, to, bytes, offset);
}
ssize_t read(int descriptor, void* to, std::size_t bytes) {
  if (!fut::test::may_go_on(fut::test::reads, bytes)) return -1;
  return ::syscall(SYS_read, descriptor, to, bytes);
}
ssize_t pwrite(int descriptor, const void* from, std::size_t bytes, off_t offset) {
  if (!fut::test::may_go_on(fut::test::writes, bytes)) return -1;
  return ::syscall(SYS_pwrite64, descriptor, from, bytes, offset);
}
int fsync(int descriptor) {
  std::size_t none = 0;
  if (!fut::test::may_go_on(fut::test::writes, none)) return -1;
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}
}

namespace fut::test {
namespace {

namespace fs = std::filesystem;

std::size_t num_entries(const fs::path& folder) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

void load_weights(const Checkpoint& checkpoint, const ModelConfig& config) {
  std::string notice;
  const std::unique_ptr<Backend> backend =
      make_backend({.kind = DeviceRequest::Kind::Cpu, .cpu_threads = 1}, notice);
  (void)Model::load(*backend, checkpoint, config);
}

// Everything that a run reads of a checkpoint; the bytes of its weights.
std::vector<std::byte> load(const fs::path& path) {
  ModelFolder folder = read_model_folder(path);
  const Checkpoint checkpoint = Checkpoint::open(path, folder.config);
  std::vector<std::byte> bytes;
  for (int i = 0; i < folder.config.num_layers; ++i) {
    for (int which = 0; which < kNumLayerTensors; ++which) {
      const TensorInfo& info = checkpoint.layer(i, static_cast<LayerTensor>(which));
      std::vector<std::byte> tensor(info.bytes);
      checkpoint.read(info, tensor);
      bytes.insert(bytes.end(), tensor.begin(), tensor.end());
    }
  }
  load_weights(checkpoint, folder.config);
  return bytes;
}

class FailingReads : public ::testing::Test {
 protected:
  FailingReads() {
    ToyModelOptions options;
    options.files.num_shards = 2;
    path_ = write_toy_model(folder_ / "model", options);
    // So that a change is a change of time, too, however coarse the system's clock of files is.
    for (const auto& entry : fs::directory_iterator(path_)) {
      fs::last_write_time(entry.path(), entry.last_write_time() - std::chrono::hours(1));
    }
  }
  TempFolder folder_;
  fs::path path_;
};

TEST_F(FailingReads, InPiecesAndWithInterruptionsGiveTheSameBytes) {
  const std::vector<std::byte> whole = load(path_);
  const Watching watching(reads, {.most_bytes = 1021});
  EXPECT_EQ(load(path_), whole);
  EXPECT_GT(watching.calls(), 400);
  ModelConfig config = load_model_config(path_);
  const Watching interrupted(reads, {.most_bytes = 7, .interrupts = true});
  const Checkpoint checkpoint = Checkpoint::open(path_, config);
  const TensorInfo& norm = checkpoint.global(GlobalTensor::FinalNorm);
  std::vector<std::byte> slowly(norm.bytes), at_once(norm.bytes);
  checkpoint.read(norm, slowly);
  reads = nullptr;
  checkpoint.read(norm, at_once);
  EXPECT_EQ(slowly, at_once);
}

TEST_F(FailingReads, AtAnyPlaceAreErrorsThatNameFileAndReason) {
  long calls = 0;
  {
    const Watching counting(reads, {});
    (void)load(path_);
    calls = counting.calls();
  }
  EXPECT_GE(calls, 40);
  for (long failing = 1; failing <= calls; ++failing) {
    SCOPED_TRACE(failing);
    const Watching watching(reads, {.failing = failing});
    try {
      (void)load(path_);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_TRUE(error.kind() == ErrorKind::Runtime || error.kind() == ErrorKind::Data);
      expect_mentions(error.what(), {path_.string() + "/", "Input/output error"});
    }
  }
}

TEST_F(FailingReads, OfAPackedFolderAreNoDamage) {
  // The same of a folder with checksums: a disk that fails is told from bytes that are wrong.
  const fs::path packed = folder_ / "packed";
  write_packed(packed, packable_config());
  const auto read_all = [&] {
    ModelConfig config = packable_config();
    PackedModel::open(packed, config).verify({}, {});
  };
  long calls = 0;
  {
    const Watching counting(reads, {.most_bytes = 4096});
    read_all();
    calls = counting.calls();
  }
  for (long failing = 1; failing <= calls; ++failing) {
    SCOPED_TRACE(failing);
    const Watching watching(reads, {.failing = failing, .most_bytes = 4096});
    expect_mentions(error_message(ErrorKind::Runtime, read_all),
                    {"model.safetensors", "Input/output error"});
  }
}

TEST_F(FailingReads, OfAProcessesMemoryAreOnesOfTheSystemItself) {
  // The first page of this process: the system's own EIO, without any stand-in.
  const FileReader memory = FileReader::open("/proc/self/mem");
  std::array<std::byte, 8> bytes = {};
  expect_mentions(error_message(ErrorKind::Runtime, [&] { memory.read(0, bytes); }),
                  {"/proc/self/mem", "8 bytes at byte 0", "Input/output error"});
}

// ---- files that change meanwhile ---------------------------------------------------------------

TEST_F(FailingReads, OfAFileThatShrinksAfterAnyReadAreErrors) {
  const fs::path shard = path_ / shard_name(1, 2);
  const std::string whole = read_file(shard);
  const auto time = fs::last_write_time(shard);
  ModelConfig config = load_model_config(path_);
  const auto read_all = [&](std::function<void(long)> before) {
    const Watching watching(reads, {.before = std::move(before)});
    const Checkpoint checkpoint = Checkpoint::open(path_, config);
    load_weights(checkpoint, config);
    return watching.calls();
  };
  const long calls = read_all({});
  for (long at = 1; at <= calls; ++at) {
    SCOPED_TRACE(at);
    try {
      (void)read_all([&](long number) {
        if (number == at) fs::resize_file(shard, 4);
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      expect_mentions(error.what(), {shard.string()});
    }
    write_file(shard, whole);
    fs::last_write_time(shard, time);
  }
}

TEST_F(FailingReads, OfAFileThatIsWrittenToAreErrorsThoughItsSizeStays) {
  const fs::path shard = path_ / shard_name(0, 2);
  ModelConfig config = load_model_config(path_);
  const Checkpoint checkpoint = Checkpoint::open(path_, config);
  checkpoint.require_unchanged();
  load_weights(checkpoint, config);
  std::string content = read_file(shard);
  content.back() = static_cast<char>(content.back() + 1);
  write_file(shard, content);
  expect_mentions(error_message(ErrorKind::Runtime, [&] { load_weights(checkpoint, config); }),
                  {shard.string(), "was written to while it was read"});
}

TEST_F(FailingReads, OfATokenizerThatShrinksSayHowMuchIsLeft) {
  const fs::path file = path_ / "tokenizer.json";
  const std::string whole = read_file(file);
  const Watching watching(reads, {.before = [&](long) {
                            // Of the file, once it is open.
                            for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
                              std::error_code ignored;
                              if (fs::read_symlink(entry.path(), ignored) == file) {
                                fs::resize_file(file, 10);
                              }
                            }
                          }});
  expect_mentions(error_message(ErrorKind::Data, [&] { (void)Tokenizer::load(path_); }),
                  {file.string(), "10 bytes", std::to_string(whole.size()), "shortened"});
}

// ---- writes ------------------------------------------------------------------------------------

TEST(FailingWrites, AtAnyPlaceLeaveNothingOfANewFolder) {
  const TempFolder folder;
  long calls = 0;
  {
    const Watching counting(writes, {});
    write_packed(folder / "q", packable_config());
    calls = counting.calls();
  }
  fs::remove_all(folder / "q");
  for (const int error : {EIO, ENOSPC}) {
    for (long failing = 1; failing <= calls; ++failing) {
      SCOPED_TRACE(failing);
      const Watching watching(writes, {.failing = failing, .error = error});
      expect_mentions(
          error_message(ErrorKind::Runtime, [&] { write_packed(folder / "q", packable_config()); }),
          {folder.path().string(), std::generic_category().message(error)});
      // The last call is after the folder has its name: whether the name outlasts a power failure.
      if (failing == calls) {
        ModelConfig config = packable_config();
        PackedModel::open(folder / "q", config).verify({}, {});
        fs::remove_all(folder / "q");
      }
      EXPECT_EQ(num_entries(folder.path()), 0U);
    }
  }
}

TEST(FailingWrites, LeaveAnOlderFolderAsItWasOrReplaceItWhole) {
  const TempFolder folder;
  ModelConfig other = packable_config();
  other.vocab_size = 9;
  const fs::path file = folder / "q" / "model.safetensors";
  write_packed(folder / "q", other);
  const std::string older = read_file(file);
  write_packed(folder / "q", packable_config(), true);
  const std::string newer = read_file(file);
  long failing = 0, replaced = 0;
  for (bool done = false; !done;) {
    ASSERT_LT(++failing, 1000);
    write_packed(folder / "q", other, true);
    const Watching watching(writes, {.failing = failing, .once = true});
    try {
      write_packed(folder / "q", packable_config(), true);
      done = true;
    } catch (const Error&) {
      const std::string left = read_file(file);
      EXPECT_TRUE(left == older || left == newer) << failing;
      if (left == newer) replaced = failing;
      EXPECT_EQ(num_entries(folder.path()), 1U) << failing;
    }
  }
  // The call after the folder has its name, and no other.
  EXPECT_EQ(replaced, failing - 1);
}

TEST(FailingWrites, InPiecesAndWithInterruptionsGiveTheSameFile) {
  const TempFolder folder;
  write_packed(folder / "whole", packable_config());
  const Watching watching(writes, {.most_bytes = 1021, .interrupts = true});
  write_packed(folder / "pieces", packable_config());
  EXPECT_GT(watching.calls(), 50);
  EXPECT_EQ(read_file(folder / "pieces" / "model.safetensors"),
            read_file(folder / "whole" / "model.safetensors"));
}

}  // namespace
}  // namespace fut::test
