// See the header.
#include "apps/compare/columns.h"

#include <cwchar>
#include <vector>

#include "apps/escape.h"
#include "apps/wide_text.h"

namespace fut::app {
namespace {

std::size_t cells_of(wchar_t c) {
  const int cells = ::wcwidth(c);
  return cells > 0 ? static_cast<std::size_t>(cells) : cells == 0 ? 0 : 1;
}

std::size_t cells_of(std::wstring_view text) {
  std::size_t cells = 0;
  for (const wchar_t c : text) cells += cells_of(c);
  return cells;
}

std::vector<std::wstring> broken(std::string_view text, std::size_t width) {
  std::vector<std::wstring> lines(1);
  const auto end_line = [&] { lines.emplace_back(); };
  for (const wchar_t c : to_wide(text)) {
    if (c == L'\n') {
      end_line();
      continue;
    }
    const std::wstring shown = to_wide(escape_controls(to_utf8({&c, 1})));
    if (cells_of(lines.back()) + cells_of(shown) > width) {
      // The word that was begun goes along, where it began in this line.
      const std::size_t blank = lines.back().rfind(L' ');
      std::wstring rest;
      if (blank != std::wstring::npos && c != L' ') {
        rest = lines.back().substr(blank + 1);
        lines.back().resize(blank);
      }
      end_line();
      lines.back() = rest;
      if (c == L' ' && rest.empty()) continue;
    }
    lines.back() += shown;
  }
  return lines;
}

}  // namespace

std::string side_by_side(std::string_view left, std::string_view right, std::size_t width) {
  const std::vector<std::wstring> a = broken(left, width), b = broken(right, width);
  std::string text;
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const std::wstring mine = i < a.size() ? a[i] : L"";
    const std::wstring others = i < b.size() ? b[i] : L"";
    std::string line = to_utf8(mine) + std::string(width - std::min(width, cells_of(mine)), ' ') +
                       " | " + to_utf8(others);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace fut::app
