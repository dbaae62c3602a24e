// Whole-file reading and JSON errors; see data_file.h.
#include "tokenizer/data_file.h"

#include <cerrno>
#include <fstream>
#include <system_error>

#include "kernels/error.h"
#include "tokenizer/utf8.h"

namespace fut {
namespace {

// The largest that are in use have 35 MB.
constexpr std::uintmax_t kLargestFile = std::uintmax_t{1} << 27;
constexpr std::size_t kLargestTree = std::size_t{1} << 24;

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
  using nlohmann::json;
  if (text.size() > kLargestTree) {
    throw data_error("{}: has {} bytes, a file of this name has at most {}", path.string(),
                     text.size(), kLargestTree);
  }
  refuse_nul(text, path);
  const auto check_depth = [&](int depth, json::parse_event_t event, const json&) {
    const bool opens =
        event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    if (opens && depth >= kMaxJsonDepth) throw_too_deep(path);
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), check_depth);
  } catch (const json::parse_error& error) {
    throw_json_error(error, error.byte, text, path);
  } catch (const json::out_of_range&) {
    throw data_error("{}: holds a number that is too large for a float64", path.string());
  }
}

void throw_too_deep(const std::filesystem::path& path) {
  throw data_error("{}: is nested more than {} levels deep; get the file again", path.string(),
                   kMaxJsonDepth);
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
