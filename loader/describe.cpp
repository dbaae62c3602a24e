// Message helpers; see the header.
#include "loader/describe.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <fmt/format.h>

namespace fut {

std::string quote(std::string_view text) {
  constexpr std::size_t kLongest = 160;
  std::string_view shown = text;
  if (text.size() > kLongest) {
    std::size_t end = kLongest;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
    shown = text.substr(0, end);
  }
  std::string out = "'";
  for (const char c : shown) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02X}", byte);
    } else {
      out += c;
    }
  }
  out += "'";
  if (shown.size() < text.size()) out += fmt::format("... ({} bytes)", text.size());
  return out;
}

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string first_few(std::span<const std::string> items) {
  constexpr std::size_t kShown = 3;
  if (items.empty()) return "nothing";
  std::string out = fmt::format("{}", fmt::join(items.first(std::min(kShown, items.size())), ", "));
  if (items.size() > kShown) out += fmt::format(" and {} more", items.size() - kShown);
  return out;
}

std::string_view looks_like(std::string_view start) {
  struct Known {
    std::string_view first_bytes;
    std::string_view what;
  };
  constexpr std::string_view kPage =
      "a web page saved under this name (the download was refused or needs a login; download "
      "again)";
  constexpr std::array<Known, 8> kKnown = {{
      {"version https://git-lfs", "a Git LFS pointer, not the file itself (run `git lfs pull`)"},
      {"<!doctype", kPage},
      {"<html", kPage},
      {"<?xml", kPage},
      {"gguf", "a GGUF file, which is another format (get the safetensors files)"},
      {"pk\x03\x04", "a zip archive or PyTorch file (get the safetensors files)"},
      {"\x1f\x8b", "a gzip archive (unpack it)"},
      {"{\"error", "an error message of a download server (download again)"},
  }};
  std::string lower(start.substr(start.find_first_not_of(" \t\r\n") == std::string_view::npos
                                     ? start.size()
                                     : start.find_first_not_of(" \t\r\n"),
                                 64));
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const Known& known : kKnown) {
    if (lower.starts_with(known.first_bytes)) return known.what;
  }
  return {};
}

}  // namespace fut
