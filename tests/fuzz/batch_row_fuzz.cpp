// A file of rows from anybody: every row is refused with its place, or is one prompt or conversation with
// settings that the flags would take; and the line of its reply can be written whatever its id is.
#include <cmath>
#include <string>
#include <string_view>

#include "apps/batch_row.h"
#include "tests/fuzz/fuzz_case.h"

namespace {

using namespace fut;
using namespace fut::app;
using test::require;

bool inside(const std::optional<float>& value, float least, float most) {
  return !value || (std::isfinite(*value) && *value >= least && *value <= most);
}

void check_settings(const BatchRow& row) {
  const SamplingOptions& s = row.sampling;
  require(inside(s.temperature, 0, 1e9F) && inside(s.top_p, 0, 1) && inside(s.min_p, 0, 1) &&
              inside(s.presence_penalty, -1000, 1000) && inside(s.frequency_penalty, -1000, 1000),
          "a setting of the sampler out of its range");
  require(
      !s.repetition_penalty || (std::isfinite(*s.repetition_penalty) && *s.repetition_penalty > 0),
      "a penalty out of its range");
  require((!s.top_k || *s.top_k >= 0) && s.repeat_last_n >= -1, "a count out of its range");
  const ReplyOptions& r = row.reply;
  require(r.max_new_tokens == -1 || (r.max_new_tokens > 0 && r.max_new_tokens <= INT32_MAX),
          "a reply of no length");
  require(r.num_logprobs >= 0 && r.num_logprobs <= 100, "too many log probabilities");
  for (const std::string& stop : r.stop) require(!stop.empty(), "an empty stop string");
}

void check_row(const InputRow& row, const GenerateOptions& options) {
  const Json id = batch_row_id(row.text);
  const std::string line = json_line({{"id", id}});
  require(Json::parse(line)["id"] == id, "an id that changes on its way");
  try {
    const BatchRow parsed = parse_batch_row(row.text, row.place, options);
    require(parsed.prompt.has_value() == parsed.messages.empty(),
            "neither prompt nor conversation");
    require(!parsed.form.raw || (parsed.messages.empty() && !parsed.system), "a raw conversation");
    check_settings(parsed);
  } catch (const Error& refusal) {
    const std::string_view what = refusal.what();
    require(what.starts_with(row.place + ": "), "a refusal without its place");
    require(what.size() > row.place.size() + 12, "a refusal that says nothing");
    require(what.size() < 1024 && what.find('\n') == what.npos, "a refusal that nobody can read");
    require(refusal.kind() == ErrorKind::Data || refusal.kind() == ErrorKind::Usage,
            "a refusal of another kind");
    (void)json_line({{"message", what}});
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = test::as_text(data, size);
  std::vector<InputRow> rows;
  const bool any = test::accepted([&] { rows = split_rows(text, "rows.jsonl"); });
  require(any == (text.find_first_not_of(" \t\r\n") != text.npos), "rows are lost or made up");
  const GenerateOptions options;
  for (const InputRow& row : rows) {
    require(row.text.find('\n') == row.text.npos, "a row of two lines");
    check_row(row, options);
  }
  return 0;
}
