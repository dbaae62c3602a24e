// Reading of the parts around the model; see hf_pipeline.h. Each reader goes over the steps of its
// part, takes what it knows, and refuses the first that it does not know.
#include "tokenizer/hf_pipeline.h"

#include <string_view>
#include <vector>

#include "kernels/error.h"
#include "tokenizer/byte_fallback_bpe.h"
#include "tokenizer/data_file.h"
#include "tokenizer/split_pattern.h"
#include "tokenizer/tokenizer_config.h"

namespace fut {
namespace {

using nlohmann::json;

// One step of a part: its settings, its type, and "FILE: PART" for messages.
struct Step {
  const json* settings;
  std::string type;
  std::string where;
};

Error unsupported(const Step& step, std::string_view what) {
  return data_error("{}: {} of type {} is not supported", step.where, what, step.type);
}

Error unsupported_type(const Step& step) {
  return data_error("{}: type {} is not supported", step.where, step.type);
}

Step read_step(const json& settings, const std::string& where) {
  if (!settings.is_object()) {
    throw data_error("{}: must be an object, not {}", where, settings.type_name());
  }
  return {&settings, excerpt(string_field(settings, "type", where).value_or("(none given)")),
          where};
}

// The steps of `file[part]`: none where it is absent or null, those of a Sequence, or the one.
std::vector<Step> steps_of(const json& file, const char* part, const char* list_key,
                           const std::filesystem::path& path) {
  const std::string where = path.string() + ": " + part;
  const auto found = file.find(part);
  if (found == file.end() || found->is_null()) return {};
  const Step step = read_step(*found, where);
  if (step.type != "Sequence") return {step};
  const auto list = found->find(list_key);
  if (list == found->end() || !list->is_array()) {
    throw data_error("{}: a Sequence without its list '{}'", where, list_key);
  }
  std::vector<Step> steps;
  for (const json& settings : *list) steps.push_back(read_step(settings, where));
  return steps;
}

bool flag(const Step& step, const char* key, bool otherwise) {
  return bool_field(*step.settings, key, step.where).value_or(otherwise);
}

std::string text(const Step& step, const char* key) {
  return string_field(*step.settings, key, step.where).value_or("");
}

// pattern: {"String": ...} or {"Regex": ...}
std::optional<std::string> pattern(const Step& step, const char* form) {
  const auto found = step.settings->find("pattern");
  if (found == step.settings->end() || !found->is_object()) return std::nullopt;
  return string_field(*found, form, step.where);
}

void read_pre_tokenizer(const std::vector<Step>& steps, HfPipeline& pipeline) {
  if (steps.empty()) {
    pipeline.kind = HfPipeline::Kind::ByteFallback;
    return;
  }
  bool byte_level = false;
  for (const Step& step : steps) {
    if (byte_level) throw unsupported(step, "a step behind ByteLevel");
    if (step.type == "Split") {
      if (pipeline.split_regex) throw unsupported(step, "a second step");
      pipeline.split_regex = pattern(step, "Regex");
      if (!pipeline.split_regex) throw unsupported(step, "a step without a Regex");
      if (text(step, "behavior") != "Isolated") {
        throw unsupported(step, "behavior '" + excerpt(text(step, "behavior")) + "'");
      }
      if (flag(step, "invert", false)) throw unsupported(step, "an inverted step");
    } else if (step.type == "ByteLevel") {
      byte_level = true;
      if (flag(step, "add_prefix_space", true)) throw unsupported(step, "add_prefix_space");
      if (!flag(step, "use_regex", true)) continue;
      if (pipeline.split_regex) throw unsupported(step, "use_regex behind another pattern");
      pipeline.split_regex = byte_level_split_pattern();
    } else {
      throw unsupported_type(step);
    }
  }
  if (!byte_level) throw unsupported(steps.back(), "a last step");
}

void read_normalizer(const std::vector<Step>& steps, const std::string& where,
                     HfPipeline& pipeline) {
  bool marks_blanks = false;
  for (const Step& step : steps) {
    if (pipeline.kind == HfPipeline::Kind::ByteLevel) throw unsupported_type(step);
    if (step.type == "Prepend" && text(step, "prepend") == kBlankMark) {
      pipeline.dummy_prefix = true;
    } else if (step.type == "Replace" && pattern(step, "String") == " " &&
               text(step, "content") == kBlankMark) {
      marks_blanks = true;
    } else if (step.type == "Prepend" || step.type == "Replace") {
      throw unsupported(step, "this use");
    } else {
      throw unsupported_type(step);
    }
  }
  if (!marks_blanks && pipeline.kind == HfPipeline::Kind::ByteFallback) {
    throw data_error(
        "{}: without a pre-tokenizer it must replace blanks by U+2581; other arrangements are not "
        "supported",
        where);
  }
}

// What undoes the encoding is fixed by the kind; the file must ask for just that.
void check_decoder(const std::vector<Step>& steps, const std::string& where,
                   const HfPipeline& pipeline) {
  bool unmarks_blanks = false;
  bool joins_bytes = false;
  bool strips_prefix = false;
  for (const Step& step : steps) {
    if (pipeline.kind == HfPipeline::Kind::ByteLevel) {
      if (step.type != "ByteLevel") throw unsupported_type(step);
      joins_bytes = true;
    } else if (step.type == "Replace" && pattern(step, "String") == kBlankMark &&
               text(step, "content") == " ") {
      unmarks_blanks = true;
    } else if (step.type == "ByteFallback") {
      joins_bytes = true;
    } else if (step.type == "Strip" && text(step, "content") == " " &&
               int_field(*step.settings, "start", step.where) == 1 &&
               int_field(*step.settings, "stop", step.where).value_or(0) == 0) {
      strips_prefix = true;
    } else if (step.type == "Replace" || step.type == "Strip") {
      throw unsupported(step, "this use");
    } else if (step.type != "Fuse") {
      throw unsupported_type(step);
    }
  }
  const bool fallback = pipeline.kind == HfPipeline::Kind::ByteFallback;
  if (!joins_bytes || unmarks_blanks != fallback || strips_prefix != pipeline.dummy_prefix) {
    throw data_error(
        "{}: does not undo what the normalizer and the pre-tokenizer do; a byte-level file needs "
        "ByteLevel here, one with byte fallback Replace, ByteFallback and Fuse, and Strip where a "
        "prefix is added",
        where);
  }
}

// The steps of TemplateProcessing for one text: at most one token in front of it, none behind.
void read_template(const Step& step, HfPipeline& pipeline) {
  const auto single = step.settings->find("single");
  if (single == step.settings->end() || !single->is_array()) {
    throw unsupported(step, "a template without 'single'");
  }
  bool text_seen = false;
  for (const json& item : *single) {
    if (item.is_object() && item.contains("Sequence") && !text_seen) {
      text_seen = true;
      continue;
    }
    if (!item.is_object() || !item.contains("SpecialToken")) throw unsupported(step, "an item");
    const std::string token =
        string_field(item["SpecialToken"].is_object() ? item["SpecialToken"] : json::object(), "id",
                     step.where)
            .value_or("");
    if (text_seen || pipeline.bos_token) {
      throw unsupported(step, "a second added token ('" + excerpt(token) + "')");
    }
    pipeline.bos_token = token;
  }
  if (!pipeline.bos_token) return;
  const json* found = step.settings;
  for (const std::string& key :
       {std::string("special_tokens"), *pipeline.bos_token, std::string("ids")}) {
    const bool goes_on = found != nullptr && found->is_object() && found->contains(key);
    found = goes_on ? &found->at(key) : nullptr;
  }
  if (found == nullptr || !found->is_array() || found->size() != 1 ||
      !found->front().is_number_integer()) {
    throw data_error("{}: '{}' must stand for exactly one id", step.where,
                     excerpt(*pipeline.bos_token));
  }
  const auto id = found->front().get<std::int64_t>();
  if (id < 0 || id > INT32_MAX) {
    throw data_error("{}: '{}' has id {}, outside 0 to {}", step.where,
                     excerpt(*pipeline.bos_token), id, INT32_MAX);
  }
  pipeline.bos_id = static_cast<TokenId>(id);
}

}  // namespace

HfPipeline read_hf_pipeline(const json& file, const std::filesystem::path& path) {
  HfPipeline pipeline;
  read_pre_tokenizer(steps_of(file, "pre_tokenizer", "pretokenizers", path), pipeline);
  read_normalizer(steps_of(file, "normalizer", "normalizers", path), path.string() + ": normalizer",
                  pipeline);
  check_decoder(steps_of(file, "decoder", "decoders", path), path.string() + ": decoder", pipeline);
  for (const Step& step : steps_of(file, "post_processor", "processors", path)) {
    if (step.type == "TemplateProcessing") {
      read_template(step, pipeline);
    } else if (step.type != "ByteLevel") {  // ByteLevel moves offsets, not tokens
      throw unsupported_type(step);
    }
  }
  return pipeline;
}

}  // namespace fut
