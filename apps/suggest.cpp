// Edit distance, with a swap of two neighbours counted as one edit.
#include "apps/suggest.h"

#include <algorithm>

namespace fut::app {
namespace {

std::string_view without_dashes(std::string_view name) {
  const std::size_t first = name.find_first_not_of('-');
  return first == std::string_view::npos ? std::string_view() : name.substr(first);
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last;
  std::vector<std::size_t> last(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::vector<std::size_t> row(b.size() + 1);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
    before_last = std::move(last);
    last = std::move(row);
  }
  return last[b.size()];
}

}  // namespace

std::optional<std::string> nearest_name(std::string_view word,
                                        const std::vector<std::string>& names) {
  const std::string_view wanted = without_dashes(word);
  // Quadratic in the lengths: a word that long is no mistyped name.
  constexpr std::size_t kLongestWord = 64;
  if (wanted.empty() || wanted.size() > kLongestWord) return std::nullopt;
  std::optional<std::string> best;
  std::size_t best_distance = (wanted.size() + 1) / 2 + 1;
  for (const std::string& name : names) {
    const std::size_t distance = edit_distance(wanted, without_dashes(name));
    if (distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace fut::app
