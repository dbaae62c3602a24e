// A folder that appears under its name complete or not at all, and the files that are written into
// it. Knows nothing of what they hold. Internal to loader/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

namespace fut {

// A new file, written once from front to back (and overwritten in place where write_at says so).
// Every error is one of kind Runtime with path, bytes wanted, bytes free and reason.
class OutputFile {
 public:
  // Takes the space for `expected_bytes` at once where the file system can.
  OutputFile(const std::filesystem::path& path, std::uint64_t expected_bytes);
  // A file that another process began: its first `written` bytes stay.
  OutputFile(const std::filesystem::path& path, std::uint64_t expected_bytes,
             std::uint64_t written);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  void write(std::span<const std::byte> bytes);
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  // Onto the disk. Nothing can be written afterwards.
  void close();

 private:
  [[noreturn]] void fail(const char* what, std::uint64_t bytes, int error_number) const;

  std::filesystem::path path_;
  std::uint64_t expected_bytes_;
  std::uint64_t written_ = 0;
  int descriptor_ = -1;
};

class PartialFolder {
 public:
  // Makes NAME.partial-PID-RANDOM beside `final_path`, and the folders above it where they are
  // missing; or takes up one that a dead process left, of which `serves` says that it can go on.
  // Removes the others that dead processes left beside it, and nothing that has another name than
  // they. Throws Runtime.
  using Serves = std::function<bool(const std::filesystem::path& abandoned)>;
  explicit PartialFolder(const std::filesystem::path& final_path, const Serves& serves = {});
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;
  // Removes it with all its files unless it was published or is kept.
  ~PartialFolder();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] bool was_taken_up() const { return was_taken_up_; }

  // Gives the folder its name, in one step. What has the name already must be an empty folder, or
  // is put aside in the same step and removed where `replace` is set. Its files must be closed.
  // Throws Runtime.
  void publish(bool replace);
  // Leaves it as a process that dies would: for the next one to take up.
  void keep() { is_kept_ = true; }

 private:
  // Gives an abandoned folder a name of this process. False: another one was faster.
  bool take_up(const std::filesystem::path& abandoned);
  void make();

  std::filesystem::path final_path_;
  std::filesystem::path path_;
  bool was_taken_up_ = false;
  bool is_kept_ = false;
  int lock_ = -1;  // held as long as the process lives: says that the folder is in use
};

// What publish(true) does where the file system cannot swap two names in one step: `final_path` is
// called NAME.replaced-PID-RANDOM for an instant; afterwards the two have each other's names.
// Returns 0 or an error number, and has changed nothing then.
[[nodiscard]] int exchange_by_renaming(const std::filesystem::path& partial,
                                       const std::filesystem::path& final_path);

// Where `final_path` is missing and a process died in that instant: gives the replaced folder its
// name back. Replaced folders are never removed.
void restore_replaced(const std::filesystem::path& final_path);

// `folder` as an absolute path whose last part is a name, links resolved: what a folder can be put
// beside.
[[nodiscard]] std::filesystem::path resolved_target(const std::filesystem::path& folder);

}  // namespace fut
