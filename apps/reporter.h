// What a command hands back, in the form that -o asks for: text as it comes, one JSON document, or
// JSON Lines. Exactly one document is written, on failure too.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "apps/options.h"
#include "apps/output.h"
#include "kernels/error.h"

namespace fut::app {

using Json = nlohmann::ordered_json;

class Reporter {
 public:
  // Until configure() says more, failures are reported in this format on standard output.
  explicit Reporter(OutputFormat format) : format_(format) {}

  // Opens --output-file. Throws Runtime.
  void configure(const OutputOptions& options);

  [[nodiscard]] OutputFormat format() const { return format_; }
  [[nodiscard]] bool is_text() const { return format_ == OutputFormat::Text; }
  [[nodiscard]] bool is_terminal() const { return output_->is_terminal(); }

  // Text format only: bytes as they are.
  void text(std::string_view bytes);
  // JSON Lines only: one object on its own line, now.
  void line(const Json& object);
  // The document of the whole run: filled in on the way, so that a failure can tell how far it got.
  Json& document() { return document_; }

  // Ends the output: writes the document (JSON) or, where `last_line` is given, the document as the
  // last line (JSON Lines); closes. Throws Runtime where the result was lost.
  void finish(bool last_line = true);
  // The same with an error object in the document. Text: nothing is written.
  void fail(int code, std::string_view kind, std::string_view message);

 private:
  void write(std::string_view bytes);

  OutputFormat format_;
  std::unique_ptr<Output> output_ = std::make_unique<Output>();
  Json document_ = Json::object();
  bool lost_ = false;  // a write failed: nothing more can be said there
};

// A text that is all a command has to say. Returns the exit code. Throws Runtime.
int print(std::string_view text, Reporter& reporter);

// The word for a kind of error: "usage".
[[nodiscard]] std::string_view error_kind_name(ErrorKind kind);

// One line of JSON. Bytes that are not UTF-8 become U+FFFD, as JSON has no way to hold them.
[[nodiscard]] std::string json_line(const Json& value);

}  // namespace fut::app
