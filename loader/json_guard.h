// What JSON from anybody may not be: the parser neither recurses nor limits what it is given, but copying and
// printing recurse, and of two keys alike one would be lost.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fut {

// How deeply JSON from anybody may be nested.
inline constexpr int kMaxJsonLevels = 32;

// Watches nlohmann's parser, as its callback. Throws Data, beginning with `what` ("prompts.jsonl:7: the line"): more
// than kMaxJsonLevels levels, an object with the same key twice.
class JsonGuard {
 public:
  explicit JsonGuard(std::string what) : what_(std::move(what)) {}

  // Either kind of tree, with its keys in order or not.
  template <class Json>
  bool operator()(int depth, nlohmann::json::parse_event_t event, Json& parsed) {
    constexpr auto kKey = nlohmann::json::parse_event_t::key;
    std::string_view key;
    if (event == kKey) key = parsed.template get_ref<const std::string&>();
    look(depth, event, key);
    return true;
  }

 private:
  void look(int depth, nlohmann::json::parse_event_t event, std::string_view key);

  std::string what_;
  std::vector<std::set<std::string>> keys_;  // of each object that is open
};

}  // namespace fut
