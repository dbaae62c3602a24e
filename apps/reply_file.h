// The file that a batch's replies go into, a line each, in the order of the prompts. A process that is
// killed leaves whole lines and at most the beginning of one more, so that another can go on.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fut::app {

class ReplyFile {
 public:
  enum class Existing { Refuse, Resume, Overwrite };

  // Opens the file and locks it for as long as it is open; what Overwrite does away with stays until the
  // first line is written. `keys` has the key of each row, see
  // row_key. With Resume the lines that are there have to be the replies to the first rows; a line
  // that was cut off is removed. Throws Usage for a file that holds something and may not be touched
  // (how many replies), Data where its lines belong to other prompts or settings, Runtime where it
  // cannot be opened or another process has it.
  ReplyFile(const std::string& path, Existing existing, const std::vector<std::string>& keys);
  ReplyFile(const ReplyFile&) = delete;
  ReplyFile& operator=(const ReplyFile&) = delete;
  ~ReplyFile();

  // Replies that are there from before.
  [[nodiscard]] std::size_t num_kept() const { return num_kept_; }
  // Whether one of those is an error: its exit code, 0: none.
  [[nodiscard]] int first_error_code() const { return first_error_code_; }

  // Appends a whole line, its newline included. Throws Runtime where it was lost; what was written of
  // it is taken back.
  void write(std::string_view line);
  // Nothing follows. Throws Runtime where the system reports a lost write now.
  void finish();

 private:
  void lock();
  void look_at(std::string_view content, Existing existing, const std::vector<std::string>& keys);
  void cut(std::uint64_t bytes);
  [[noreturn]] void fail(std::string_view act, int error) const;

  std::string path_;
  int descriptor_ = -1;
  bool is_regular_ = false;
  bool is_stale_ = false;  // holds what is to be overwritten
  std::uint64_t bytes_ = 0;
  std::size_t num_kept_ = 0;
  int first_error_code_ = 0;
};

// What a reply depends on, in 16 digits: the settings of the run and the row as it stands in the file.
[[nodiscard]] std::string row_key(std::string_view settings, std::string_view row);

}  // namespace fut::app
