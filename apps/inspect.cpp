// fut inspect: what a model folder holds. Reads small files and headers, no device. A folder that has
// no weights or no tokenizer yet is described as far as it goes; what is there has to be sound.
#include <algorithm>
#include <cmath>
#include <optional>

#include "apps/commands.h"
#include "apps/describe_model.h"
#include "apps/error_plot.h"
#include "apps/escape.h"
#include "apps/input_files.h"
#include "apps/logging.h"
#include "apps/model_lookup.h"
#include "apps/output.h"
#include "apps/progress.h"
#include "engine/model_folder.h"
#include "engine/parallel.h"
#include "kernels/error.h"
#include "loader/checkpoint.h"
#include "loader/packed_model.h"

namespace fut::app {
namespace fs = std::filesystem;
namespace {

// The ids that end a reply, with their spelling where there is a tokenizer.
Json describe_ends(const std::vector<TokenId>& ids, const Tokenizer* tokenizer) {
  Json ends = Json::array();
  for (const TokenId id : ids) {
    const bool known = tokenizer != nullptr && id < tokenizer->vocab_size();
    ends.push_back({{"id", id}, {"token", known ? tokenizer->piece(id) : std::string()}});
  }
  return ends;
}

Json describe_tokenizer(const Tokenizer& tokenizer, const std::vector<TokenId>& end_ids) {
  const auto bos = tokenizer.bos_id();
  return {{"kind", tokenizer.kind()},
          {"file", tokenizer.source().filename().string()},
          {"vocab_size", tokenizer.vocab_size()},
          {"bos", bos ? Json{{"id", *bos}, {"token", tokenizer.piece(*bos)}} : Json(nullptr)},
          {"adds_bos", tokenizer.adds_bos()},
          {"ends_a_reply", describe_ends(end_ids, &tokenizer)}};
}

// An unknown template stops a chat, but not a look at the folder.
Json describe_template(const std::filesystem::path& folder) {
  try {
    const auto found = find_chat_template(folder);
    return found ? Json(chat_template_name(*found)) : Json(nullptr);
  } catch (const Error& e) {
    log_warning("{}", e.what());
    return "not recognised";
  }
}

Json describe_generation(const GenerationDefaults& d) {
  Json json = Json::object();
  const auto add = [&](const char* key, const auto& value) {
    if (value) json[key] = *value;
  };
  add("do_sample", d.do_sample);
  add("temperature", d.temperature);
  add("top_k", d.top_k);
  add("top_p", d.top_p);
  add("min_p", d.min_p);
  add("repetition_penalty", d.repetition_penalty);
  return json;
}

// A number, a word, a list or an object on one line: "model.safetensors, tensors 21".
std::string plain(const Json& value) {
  if (value.is_null()) return "none";
  if (value.is_string()) return escape_controls(value.get<std::string>());
  if (value.is_number_float()) {
    const double number = value.get<double>();
    constexpr double kMostWhole = 1e15;
    const bool whole = std::abs(number) < kMostWhole && number == std::trunc(number);
    return whole ? fmt::format("{:.0f}", number) : fmt::format("{:.4g}", number);
  }
  if (!value.is_structured()) return value.dump();
  std::vector<std::string> parts;
  for (const auto& [key, child] : value.items()) {
    const bool named = value.is_object() && key != "name";
    parts.push_back(named ? fmt::format("{} {}", key, plain(child)) : plain(child));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

// "key: value" lines; nested objects are indented, the items of a list have a line each.
void append_lines(std::string& text, const Json& value, int depth) {
  for (const auto& [key, child] : value.items()) {
    const std::string indent(static_cast<std::size_t>(depth) * 2, ' ');
    if (child.is_structured() && child.empty()) {
      text += fmt::format("{}{}: none\n", indent, key);
    } else if (child.is_object()) {
      text += fmt::format("{}{}\n", indent, key);
      append_lines(text, child, depth + 1);
    } else if (child.is_array()) {
      text += fmt::format("{}{}\n", indent, key);
      for (const Json& item : child) text += fmt::format("{}  {}\n", indent, plain(item));
    } else {
      text += fmt::format("{}{}: {}\n", indent, key, plain(child));
    }
  }
}

// The number alone says nothing to people.
void explain_version(Json& document) {
  const Json::json_pointer place("/weights/version");
  if (!document.contains(place)) return;
  document[place] = fmt::format("{} (of the file's layout; another one has to be quantised anew)",
                                plain(document[place]));
}

// A large model has hundreds of matrices: the worst of them for people.
void shorten_report(Json& document) {
  constexpr std::size_t kShown = 8;
  const Json::json_pointer place("/weights/report/matrices");
  if (!document.contains(place) || document[place].size() <= kShown) return;
  Json& matrices = document[place];
  const std::size_t left_out = matrices.size() - kShown;
  matrices.erase(matrices.begin() + kShown, matrices.end());
  matrices.push_back(fmt::format("and {} more: -v, -o json", left_out));
}

bool has_tokenizer(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / "tokenizer.json", ignored) ||
         fs::exists(folder / "tokenizer.model", ignored);
}

// What is gathered on the way.
struct Findings {
  ModelConfig config;
  Json weights, tokenizer, generation;
  std::vector<std::string> notices;

  void add_notices(const std::vector<std::string>& more) {
    notices.insert(notices.end(), more.begin(), more.end());
  }
};

void look_at_tokenizer(const fs::path& folder, Findings& findings) {
  if (has_tokenizer(folder)) {
    const ModelFolder model = read_model_folder(folder);
    findings.config = model.config;
    findings.add_notices(model.notices);
    findings.tokenizer = describe_tokenizer(model.tokenizer, model.end_ids);
    findings.generation = describe_generation(model.generation);
    return;
  }
  findings.config = load_model_config(folder);
  findings.add_notices(findings.config.notices);
  const GenerationDefaults generation = load_generation_defaults(folder);
  std::vector<TokenId> ends = findings.config.eos_token_ids;
  for (const TokenId id : generation.eos_token_ids) {
    if (std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
  }
  findings.tokenizer = {{"file", nullptr}, {"ends_a_reply", describe_ends(ends, nullptr)}};
  findings.generation = describe_generation(generation);
  findings.notices.emplace_back("neither tokenizer.json nor tokenizer.model is there");
}

void check_packed(const PackedModel& packed) {
  packed.verify(parallel_for_on_threads(0), rate_progress("checking"));
}

void look_at_weights(const fs::path& folder, bool check_tensors, Findings& findings) {
  if (!has_weights(folder)) {
    findings.weights = nullptr;
    findings.notices.emplace_back("no weights (*.safetensors) are there");
    return;
  }
  if (!PackedModel::is_packed(folder)) {
    const Checkpoint checkpoint = Checkpoint::open(folder, findings.config);
    findings.add_notices(checkpoint.notices());
    findings.weights = describe_checkpoint(checkpoint, findings.config);
    return;
  }
  const PackedModel packed = PackedModel::open(folder, findings.config);
  findings.add_notices(packed.notices());
  if (check_tensors) check_packed(packed);
  findings.weights = describe_packed(packed, findings.config);
  findings.weights["checksums"] = check_tensors ? "all met" : "not checked; see --check-tensors";
}

// Opened before anything is looked at; no file of the model itself.
std::optional<Output> open_plot(const std::string& file, const std::filesystem::path& folder) {
  if (file.empty()) return std::nullopt;
  std::vector<std::string> inputs;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    inputs.push_back(entry.path().string());
  }
  refuse_input_as_output(file, inputs, "--plot");
  return std::optional<Output>(std::in_place, file);
}

void plot_errors(const Json& document, Output& output) {
  const Json::json_pointer place("/weights/report/matrices");
  if (!document.contains(place) || document.at(place).empty()) {
    throw usage_error(
        "--plot draws the errors of a quantised folder, and {} has no report card; fut quantize "
        "makes such a folder",
        document.at("model").get<std::string>());
  }
  const std::string title = "Errors of " + document.at("model").get<std::string>();
  output.write(error_plot(document.at(place), title));
  output.finish();
}

}  // namespace

int inspect(const InspectOptions& options, Reporter& reporter) {
  const FoundFolder found = find_model_folder(options.model, Wanted::Model);
  std::optional<Output> plot = open_plot(options.plot_file, found.path);
  Findings findings;
  look_at_tokenizer(found.path, findings);
  look_at_weights(found.path, options.check_tensors, findings);
  if (!found.notice.empty()) findings.notices.push_back(found.notice);

  Json& document = reporter.document();
  document["model"] = found.path.string();
  document["config"] = describe_config(findings.config);
  document["weights"] = findings.weights;
  document["tokenizer"] = findings.tokenizer;
  document["chat_template"] = describe_template(found.path);
  document["generation_config"] = findings.generation;
  document["notices"] = findings.notices;
  if (plot) plot_errors(document, *plot);
  if (reporter.is_text()) {
    if (options.log.verbosity < kInfoVerbosity) shorten_report(document);
    explain_version(document);
    std::string text;
    append_lines(text, document, 0);
    reporter.text(text);
  }
  reporter.finish();
  return 0;
}

}  // namespace fut::app
