// A handler for nlohmann's event parser: a state for each place of the grammar.
#include "loader/safetensors_header.h"

#include <fmt/format.h>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "loader/describe.h"

namespace fut {
namespace {

using nlohmann::json;

// More dimensions than any tensor has; keeps a hostile shape from filling the memory.
constexpr std::size_t kMaxRank = 16;

class HeaderHandler final : public nlohmann::json_sax<json> {
 public:
  explicit HeaderHandler(SafetensorsHeader& header) : header_(header) {}

  [[nodiscard]] const std::string& problem() const { return problem_; }

  bool key(string_t& text) override {
    switch (place_) {
      case Place::Top:
        return start_entry(text);
      case Place::Metadata:
        metadata_key_ = text;
        if (header_.metadata.contains(text)) {
          return fail("__metadata__ has the key {} twice", quote(text));
        }
        return true;
      case Place::Tensor:
        return start_field(text);
      default:
        return fail("there is a key where none may be: {}", quote(text));
    }
  }

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::Start:
        place_ = Place::Top;
        return true;
      case Place::Top:
        place_ = in_metadata_ ? Place::Metadata : Place::Tensor;
        return true;
      default:
        return refuse("an object");
    }
  }

  bool end_object() override {
    switch (place_) {
      case Place::Tensor:
        place_ = Place::Top;
        return end_tensor();
      case Place::Metadata:
        place_ = Place::Top;
        return true;
      default:
        place_ = Place::Done;
        return true;  // the parser has matched the braces
    }
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::Tensor && field_ == Field::Shape) {
      place_ = Place::Shape;
      return true;
    }
    if (place_ == Place::Tensor && field_ == Field::Offsets) {
      place_ = Place::Offsets;
      return true;
    }
    return refuse("an array");
  }

  bool end_array() override {
    if (place_ == Place::Offsets && num_offsets_ != 2) {
      return fail("tensor {}: data_offsets has {} numbers, it must have 2", quote(tensor_.name),
                  num_offsets_);
    }
    place_ = Place::Tensor;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::Shape) {
      if (tensor_.shape.size() == kMaxRank) {
        return fail("tensor {}: shape has more than {} dimensions", quote(tensor_.name), kMaxRank);
      }
      tensor_.shape.push_back(value);
      return true;
    }
    if (place_ == Place::Offsets) {
      (num_offsets_ == 0 ? tensor_.begin : tensor_.end) = value;
      ++num_offsets_;
      return num_offsets_ <= 2 ||
             fail("tensor {}: data_offsets has more than 2 numbers", quote(tensor_.name));
    }
    return refuse(fmt::format("the number {}", value));
  }

  bool string(string_t& text) override {
    if (place_ == Place::Metadata) {
      header_.metadata.emplace(std::exchange(metadata_key_, {}), text);
      return true;
    }
    if (place_ == Place::Tensor && field_ == Field::Dtype) {
      tensor_.dtype = text;
      return true;
    }
    return refuse("the string " + quote(text));
  }

  bool null() override { return refuse("null"); }
  bool boolean(bool value) override { return refuse(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override {
    return refuse(fmt::format("the number {}", value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return refuse("the number " + quote(text));
  }
  bool binary(binary_t&) override { return refuse("binary data"); }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return fail("the header is not valid JSON at its byte {}", position);
  }

 private:
  enum class Place { Start, Top, Metadata, Tensor, Shape, Offsets, Done };
  enum class Field { None, Dtype, Shape, Offsets };

  template <class... Args>
  bool fail(fmt::format_string<Args...> format, Args&&... args) {
    problem_ = fmt::format(format, std::forward<Args>(args)...);
    return false;
  }

  // A value that may not stand here.
  bool refuse(std::string_view what) {
    switch (place_) {
      case Place::Start:
      case Place::Done:
        return fail("the header is {}, it must be an object", what);
      case Place::Top:
        return fail("entry {} is {}, it must be an object",
                    quote(in_metadata_ ? "__metadata__" : tensor_.name), what);
      case Place::Metadata:
        return fail("__metadata__ key {} is {}, it must be a string", quote(metadata_key_), what);
      case Place::Tensor:
        return fail("tensor {}: {} is {}, it must be {}", quote(tensor_.name), field_name(), what,
                    field_ == Field::Dtype ? "a string" : "an array");
      case Place::Shape:
      case Place::Offsets:
        break;
    }
    return fail("tensor {}: {} holds {}, it must hold integers from 0 to {}", quote(tensor_.name),
                field_name(), what, std::numeric_limits<std::uint64_t>::max());
  }

  [[nodiscard]] std::string_view field_name() const {
    switch (field_) {
      case Field::Dtype:
        return "dtype";
      case Field::Shape:
        return "shape";
      case Field::Offsets:
        return "data_offsets";
      case Field::None:
        break;
    }
    return "the entry";
  }

  bool start_entry(const std::string& name) {
    in_metadata_ = name == "__metadata__";
    if (!names_.insert(name).second) return fail("the header has the name {} twice", quote(name));
    tensor_ = {};
    tensor_.name = name;
    field_ = Field::None;
    has_dtype_ = has_shape_ = has_offsets_ = false;
    num_offsets_ = 0;
    return true;
  }

  bool start_field(std::string_view name) {
    bool* seen = nullptr;
    if (name == "dtype") {
      field_ = Field::Dtype;
      seen = &has_dtype_;
    } else if (name == "shape") {
      field_ = Field::Shape;
      seen = &has_shape_;
    } else if (name == "data_offsets") {
      field_ = Field::Offsets;
      seen = &has_offsets_;
    } else {
      return fail("tensor {}: the key {} is not of this format", quote(tensor_.name), quote(name));
    }
    if (std::exchange(*seen, true)) {
      return fail("tensor {}: has {} twice", quote(tensor_.name), name);
    }
    return true;
  }

  bool end_tensor() {
    if (!has_dtype_ || !has_shape_ || !has_offsets_) {
      return fail("tensor {}: {} is missing", quote(tensor_.name),
                  !has_dtype_   ? "dtype"
                  : !has_shape_ ? "shape"
                                : "data_offsets");
    }
    header_.tensors.push_back(std::exchange(tensor_, {}));
    return true;
  }

  SafetensorsHeader& header_;
  std::string problem_;
  Place place_ = Place::Start;
  Field field_ = Field::None;
  std::set<std::string> names_;  // not hashed: names could be made to share a hash
  bool in_metadata_ = false;
  std::string metadata_key_;
  HeaderTensor tensor_;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  int num_offsets_ = 0;
};

}  // namespace

std::string parse_safetensors_header(std::string_view json_text, SafetensorsHeader& header) {
  HeaderHandler handler(header);
  json::sax_parse(json_text.begin(), json_text.end(), &handler);
  return handler.problem();
}

}  // namespace fut
