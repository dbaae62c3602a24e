// Whole-file reading and JSON errors; see data_file.h.
#include "tokenizer/data_file.h"

#include <cerrno>
#include <fstream>
#include <system_error>

#include "kernels/error.h"
#include "tokenizer/utf8.h"

namespace fut {
namespace {

constexpr std::uintmax_t kLargestFile = std::uintmax_t{1} << 29;

// The parser's own sentence without its prefix and without the text it choked on.
std::string reason_of(std::string_view what) {
  const std::size_t begin = what.find("syntax error");
  if (begin != std::string_view::npos) what.remove_prefix(begin);
  what = what.substr(0, what.find("; last read"));
  return excerpt(what);
}

}  // namespace

bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  // A link that leads nowhere is there: reading it says what is wrong.
  const auto status = std::filesystem::symlink_status(path, error);
  if (status.type() == std::filesystem::file_type::none) {
    throw data_error("{}: cannot be looked at: {}", path.string(), error.message());
  }
  return std::filesystem::exists(status);
}

std::string read_data_file(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (error || !std::filesystem::exists(status)) {
    throw data_error("{}: cannot be opened: {}", path.string(),
                     error ? error.message() : "no such file");
  }
  if (!std::filesystem::is_regular_file(status)) {
    throw data_error("{}: is not a file", path.string());
  }
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (!error && size > kLargestFile) {
    throw data_error("{}: has {} bytes, more than the {} that any tokenizer file needs",
                     path.string(), size, kLargestFile);
  }
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  std::string content(error ? 0 : static_cast<std::size_t>(size), '\0');
  if (stream) stream.read(content.data(), static_cast<std::streamsize>(content.size()));
  if (stream.eof()) {
    throw data_error("{}: has {} bytes where it had {}: something shortened it meanwhile",
                     path.string(), stream.gcount(), size);
  }
  if (!stream) {
    throw data_error("{}: cannot be read: {}", path.string(),
                     std::generic_category().message(errno));
  }
  return content;
}

void refuse_nul(std::string_view text, const std::filesystem::path& path) {
  const std::size_t nul = text.find('\0');
  if (nul == std::string_view::npos) return;
  throw data_error("{}: not valid JSON at byte {} of {}: a NUL{}; get the file again",
                   path.string(), nul + 1, text.size(), content_hint(text));
}

nlohmann::json parse_json(std::string_view text, const std::filesystem::path& path) {
  refuse_nul(text, path);
  try {
    return nlohmann::json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::parse_error& error) {
    throw_json_error(error, error.byte, text, path);
  }
}

void throw_json_error(const nlohmann::json::exception& error, std::size_t byte,
                      std::string_view text, const std::filesystem::path& path) {
  throw data_error("{}: not valid JSON at byte {} of {}: {}{}; get the file again", path.string(),
                   byte, text.size(), reason_of(error.what()), content_hint(text));
}

std::string_view content_hint(std::string_view text) {
  if (text.empty()) return " (the file is empty)";
  if (text.starts_with("version https://git-lfs")) {
    return " (it is a Git LFS pointer: the real file was never fetched, try `git lfs pull`)";
  }
  if (text.starts_with("<!DOCTYPE") || text.starts_with("<!doctype") || text.starts_with("<html")) {
    return " (it is a web page saved under this name)";
  }
  return "";
}

std::string excerpt(std::string_view text) {
  constexpr std::size_t kMost = 80;
  std::string out;
  for (std::size_t pos = 0; pos < text.size();) {
    const std::size_t length = utf8::char_length(text, pos);
    const auto first = static_cast<unsigned char>(text[pos]);
    const std::size_t taken = length == 0 ? 1 : length;
    if (out.size() + taken > kMost) return out + "...";
    const bool prints = length > 0 && first >= 0x20 && first != 0x7F;
    out.append(prints ? text.substr(pos, length) : "?");
    pos += taken;
  }
  return out;
}

}  // namespace fut
