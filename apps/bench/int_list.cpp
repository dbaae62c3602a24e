// See the header.
#include "apps/bench/int_list.h"

#include "kernels/error.h"

namespace fut::app {
namespace {

constexpr std::size_t kMostNumbers = 100;

class ListParser {
 public:
  ListParser(const Argument& argument, int least, int most)
      : argument_(argument), least_(least), most_(most) {}

  std::vector<int> parse() {
    const std::string text = argument_.text + ",";
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = text.find(',', at);
      add_part(text.substr(at, end - at));
      at = end + 1;
    }
    return numbers_;
  }

 private:
  [[noreturn]] void refuse(const std::string& part) const {
    throw usage_error(
        "{}: '{}' is neither a number from {} to {} nor a range of them; allowed: 128, 8k, lists "
        "16,32 and ranges 16-256*2 or 100-500+100",
        argument_.source, part, least_, most_);
  }

  int number(const std::string& text, const std::string& part) const {
    const bool thousands = text.ends_with('k');
    Argument digits = argument_;
    digits.text = thousands ? text.substr(0, text.size() - 1) : text;
    constexpr std::int64_t kThousand = 1024;  // as contexts are counted
    try {
      const std::int64_t value = parse_integer(digits, 0, most_) * (thousands ? kThousand : 1);
      if (value >= least_ && value <= most_) return static_cast<int>(value);
    } catch (const Error&) {
      refuse(part);
    }
    refuse(part);
  }

  void add(int value) {
    if (numbers_.size() == kMostNumbers) {
      throw usage_error("{}: more than {} numbers", argument_.source, kMostNumbers);
    }
    numbers_.push_back(value);
  }

  void add_part(const std::string& part) {
    const std::size_t dash = part.find('-', 1);
    if (dash == part.npos) return add(number(part, part));
    const std::size_t step_at = part.find_first_of("*+", dash);
    const int first = number(part.substr(0, dash), part);
    const int last = number(part.substr(dash + 1, step_at - dash - 1), part);
    const bool times = step_at == part.npos || part[step_at] == '*';
    Argument step_text = argument_;
    step_text.text = step_at == part.npos ? "2" : part.substr(step_at + 1);
    std::int64_t step = 0;
    try {
      step = parse_integer(step_text, times ? 2 : 1, most_);
    } catch (const Error&) {
      refuse(part);
    }
    if (last < first || (times && first == 0)) refuse(part);
    for (std::int64_t v = first; v <= last; v = times ? v * step : v + step) {
      add(static_cast<int>(v));
    }
  }

  const Argument& argument_;
  int least_, most_;
  std::vector<int> numbers_;
};

}  // namespace

std::vector<int> parse_int_list(const Argument& argument, int least, int most) {
  return ListParser(argument, least, most).parse();
}

}  // namespace fut::app
