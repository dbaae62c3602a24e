// Which chat template a folder has, for any tokenizer_config.json and any chat_template.jinja: a known one,
// none, or a refusal. A text that is known stays so with other line ends and is told in both files alike.
#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "tests/fuzz/fuzz_bytes.h"
#include "tests/support/temp_folder.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer_config.h"

namespace {

using namespace fut;
using test::require;

// A folder whose files are in memory.
class Folder {
 public:
  [[nodiscard]] std::filesystem::path path() const { return folder_.path(); }
  void put(const char* name, std::string_view content) {
    require(::lseek(memory_, 0, SEEK_SET) == 0 && ::ftruncate(memory_, 0) == 0, "memory is lost");
    require(::write(memory_, content.data(), content.size()) == std::ssize(content),
            "memory is full");
    std::filesystem::remove(folder_ / last_);
    std::filesystem::create_symlink(fmt::format("/proc/self/fd/{}", memory_), folder_ / name);
    last_ = name;
  }

 private:
  test::TempFolder folder_;
  int memory_ = ::memfd_create("fuzz", MFD_CLOEXEC);
  std::string last_ = "nothing";
};

struct Answer {
  bool refused = false;
  std::optional<ChatTemplate> known;
  bool operator==(const Answer&) const = default;
};

Answer ask(Folder& folder, const char* name, std::string_view content) {
  folder.put(name, content);
  Answer answer;
  answer.refused = !test::accepted([&] { answer.known = find_chat_template(folder.path()); });
  return answer;
}

std::string with_line_ends(std::string_view text, std::string_view end) {
  std::string out;
  for (const char c : text) out += c == '\n' ? std::string(end) : std::string(1, c);
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Folder folder;
  constexpr const char* kConfig = "tokenizer_config.json";
  constexpr const char* kJinja = "chat_template.jinja";
  const std::string_view content = test::as_text(data, size);

  const Answer as_file = ask(folder, kJinja, content);
  require(as_file.refused != as_file.known.has_value(), "a template that is neither");

  const Answer of_config = ask(folder, kConfig, content);
  (void)test::accepted([&] { (void)read_tokenizer_config(folder.path()); });
  std::optional<std::string> text;
  const bool readable = test::accepted([&] { text = read_config_chat_template(folder.path()); });
  require(readable || of_config.refused, "a template of a file that cannot be read");
  if (!text) return 0;
  require(ask(folder, kJinja, *text) == of_config, "two files with one text and two answers");
  if (!of_config.known || text->find('\r') != text->npos) return 0;
  for (const char* end : {"\r\n", "\r"}) {
    require(ask(folder, kJinja, with_line_ends(*text, end)) == of_config, "other line ends");
  }
  require(chat_template_from_name(chat_template_name(*of_config.known)) == *of_config.known,
          "a template without a name");
  std::string changed = *text;
  changed.front() = static_cast<char>(changed.front() ^ 1);
  require(ask(folder, kJinja, changed).refused, "another text that is known too");
  return 0;
}
