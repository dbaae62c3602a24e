// One pass over tokenizer.json; see hf_json_reader.h. A Llama-3 file has 128,000 vocabulary entries
// and 280,147 merges: as events they cost a quarter of what a tree of them would.
#include "tokenizer/hf_json_reader.h"

#include "kernels/error.h"
#include "tokenizer/data_file.h"

namespace fut {
namespace {

using nlohmann::json;

// Far beyond any tokenizer: what a hostile file may make the lists and the tree grow to.
constexpr std::size_t kMostTokens = std::size_t{1} << 21;
constexpr std::size_t kMostMerges = std::size_t{1} << 21;
constexpr std::size_t kMostValues = std::size_t{1} << 20;  // of the tree

// Receives the parser's events. Inside model.vocab and model.merges they go to the lists, elsewhere
// to the tree.
class Reader final : public nlohmann::json_sax<json> {
 public:
  Reader(std::string_view text, const std::filesystem::path& path) : text_(text), path_(path) {}

  HfTokenizerJson take() { return std::move(result_); }

  bool null() override { return value(json(nullptr)); }
  bool boolean(bool flag) override { return value(json(flag)); }
  bool number_float(double number, const std::string&) override { return value(json(number)); }
  bool number_integer(std::int64_t number) override {
    return place_ == Place::Vocabulary ? token_id(number) : value(json(number));
  }
  bool number_unsigned(std::uint64_t number) override {
    if (place_ != Place::Vocabulary) return value(json(number));
    return token_id(number > INT64_MAX ? -1 : static_cast<std::int64_t>(number));
  }
  bool string(std::string& text) override {
    if (place_ == Place::Merges) return merge_text(text);
    if (place_ == Place::MergePair) return merge_part(text);
    return value(json(std::move(text)));
  }
  bool binary(json::binary_t&) override { return false; }

  bool start_object(std::size_t) override {
    if (place_ != Place::Tree) fail_entry();
    if (in_model("vocab")) {
      open_list(has_vocabulary_);
      place_ = Place::Vocabulary;
      return true;
    }
    return open(json::object());
  }
  bool key(std::string& name) override {
    key_ = std::move(name);
    return true;
  }
  bool end_object() override {
    if (place_ == Place::Vocabulary) {
      place_ = Place::Tree;
      return true;
    }
    return close();
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::Merges) {
      place_ = Place::MergePair;
      pair_parts_ = 0;
      result_.merges.emplace_back();
      check_count(result_.merges.size(), kMostMerges, "merges");
      return true;
    }
    if (place_ != Place::Tree) fail_entry();
    if (in_model("merges")) {
      open_list(has_merges_);
      place_ = Place::Merges;
      return true;
    }
    return open(json::array());
  }
  bool end_array() override {
    if (place_ == Place::MergePair) {
      if (pair_parts_ != 2) fail_entry();
      place_ = Place::Merges;
      return true;
    }
    if (place_ == Place::Merges) {
      place_ = Place::Tree;
      return true;
    }
    return close();
  }

  bool parse_error(std::size_t byte, const std::string&, const json::exception& error) override {
    throw_json_error(error, byte, text_, path_);
  }

 private:
  enum class Place { Tree, Vocabulary, Merges, MergePair };

  // Whether the value that starts now is `name` of the top-level object "model".
  [[nodiscard]] bool in_model(std::string_view name) const {
    return open_.size() == 2 && model_open_ && open_.back()->is_object() && key_ == name;
  }

  json* add(json&& element) {
    if (open_.empty()) {
      result_.rest = std::move(element);
      return &result_.rest;
    }
    json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(element));
      return &parent.back();
    }
    json& member = parent[key_];
    member = std::move(element);
    return &member;
  }

  // One of the two lists of "model" begins, for which there is one place.
  void open_list(bool& is_there) const {
    if (is_there) throw data_error("{}: model has '{}' twice", path_.string(), excerpt(key_));
    is_there = true;
  }

  void check_count(std::size_t count, std::size_t most, std::string_view what) const {
    if (count <= most) return;
    throw data_error("{}: has more than {} {}, which no tokenizer has; get the file again",
                     path_.string(), most, what);
  }

  bool value(json&& element) {
    if (place_ != Place::Tree) fail_entry();
    check_count(++num_values_, kMostValues, "values beside vocabulary and merges");
    add(std::move(element));
    return true;
  }

  bool open(json&& element) {
    if (open_.size() >= static_cast<std::size_t>(kMaxJsonDepth)) throw_too_deep(path_);
    check_count(++num_values_, kMostValues, "values beside vocabulary and merges");
    const bool is_model = open_.size() == 1 && open_.back()->is_object() && key_ == "model";
    open_.push_back(add(std::move(element)));
    if (is_model) model_open_ = true;
    return true;
  }

  bool close() {
    open_.pop_back();
    if (open_.size() < 2) model_open_ = false;
    return true;
  }

  bool token_id(std::int64_t id) {
    result_.vocabulary.emplace_back(std::move(key_), id);
    check_count(result_.vocabulary.size(), kMostTokens, "tokens");
    return true;
  }

  // "left right": exactly one blank, which no token of either kind contains.
  bool merge_text(std::string_view text) {
    const std::size_t blank = text.find(' ');
    if (blank == 0 || blank == std::string_view::npos || blank + 1 == text.size()) fail_entry();
    const std::string_view right = text.substr(blank + 1);
    if (right.find(' ') != std::string_view::npos) fail_entry();
    result_.merges.emplace_back(text.substr(0, blank), right);
    check_count(result_.merges.size(), kMostMerges, "merges");
    return true;
  }

  bool merge_part(std::string& text) {
    if (pair_parts_ == 2) fail_entry();
    auto& [left, right] = result_.merges.back();
    (pair_parts_++ == 0 ? left : right) = std::move(text);
    return true;
  }

  [[noreturn]] void fail_entry() const {
    if (place_ == Place::Vocabulary) {
      throw data_error("{}: model.vocab: token '{}' (entry {}) has no whole number for an id",
                       path_.string(), excerpt(key_), result_.vocabulary.size() + 1);
    }
    const std::size_t entry = result_.merges.size() + (place_ == Place::Merges ? 1 : 0);
    throw data_error("{}: model.merges: entry {} is not a pair of tokens", path_.string(), entry);
  }

  std::string_view text_;
  const std::filesystem::path& path_;
  HfTokenizerJson result_;
  std::vector<json*> open_;  // from the root down; stable, a parent grows only when it is the last
  std::string key_;
  Place place_ = Place::Tree;
  bool model_open_ = false;
  bool has_vocabulary_ = false;
  bool has_merges_ = false;
  std::size_t num_values_ = 0;  // of the tree
  int pair_parts_ = 0;
};

}  // namespace

HfTokenizerJson read_hf_tokenizer_json(std::string_view text, const std::filesystem::path& path) {
  refuse_nul(text, path);
  Reader reader(text, path);
  json::sax_parse(text.begin(), text.end(), &reader);
  return reader.take();
}

}  // namespace fut
