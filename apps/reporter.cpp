// See the header.
#include "apps/reporter.h"

namespace fut::app {

std::string_view error_kind_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::Runtime:
      return "runtime";
    case ErrorKind::Usage:
      return "usage";
    case ErrorKind::Data:
      return "data";
    case ErrorKind::Capacity:
      return "capacity";
    case ErrorKind::Device:
      return "device";
  }
  return "runtime";
}

std::string json_line(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

void Reporter::configure(const OutputOptions& options) {
  format_ = options.format;
  if (!options.file.empty()) output_ = std::make_unique<Output>(options.file);
}

void Reporter::write(std::string_view bytes) {
  lost_ = true;  // unless the next line returns
  output_->write(bytes);
  lost_ = false;
}

void Reporter::text(std::string_view bytes) {
  const bool json = format_ == OutputFormat::Json || format_ == OutputFormat::JsonLines;
  if (!json) write(bytes);  // text, and tables of it
}

void Reporter::line(const Json& object) {
  if (format_ == OutputFormat::JsonLines) write(json_line(object));
}

void Reporter::finish(bool last_line) {
  if (format_ == OutputFormat::Json) write(json_line(document_));
  if (format_ == OutputFormat::JsonLines && last_line) write(json_line(document_));
  lost_ = true;
  output_->finish();
  lost_ = false;
}

int print(std::string_view text, Reporter& reporter) {
  reporter.configure({});
  reporter.text(text);
  reporter.finish();
  return 0;
}

void Reporter::fail(int code, std::string_view kind, std::string_view message) {
  if (lost_) return;
  document_["error"] = {{"code", code}, {"kind", kind}, {"message", message}};
  if (!is_text()) finish();
}

}  // namespace fut::app
