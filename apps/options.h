// What the flags mean: one plain struct for each group of flags, and the tables that fill them.
// `run` and `chat` share most of theirs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/flags.h"
#include "apps/logging.h"
#include "engine/model.h"
#include "engine/precision.h"
#include "engine/prefill_bench.h"
#include "kernels/backend.h"
#include "loader/packed_options.h"
#include "tokenizer/chat_template.h"

namespace fut::app {

enum class OutputFormat { Text, Json, JsonLines, Markdown, Csv };

struct OutputOptions {
  OutputFormat format = OutputFormat::Text;
  std::string file;  // empty: standard output
};

// What a model computes with.
struct ArithmeticOptions {
  Precision precision = Precision::Int4;
  bool precision_given = false;
  KvCacheChoice kv_cache;
  HeadChoice head = HeadChoice::Int8;
  std::optional<PrefillWeights> prefill_weights;  // nullopt: as memory has it
  std::string typed_int4_cache_flag;  // one that is about INT4 caches alone; empty: none was typed
  std::string typed_head_flag;        // the same of the head of int4 and fp8
};

// Quantised copies of checkpoints that nobody asked for by name.
struct CopyOptions {
  std::string cache_dir;  // empty: the XDG rules
  bool keep = true;       // in the cache folder
};

struct ModelOptions {
  std::string model;              // empty: the demonstration model
  std::string model_flag = "-m";  // what messages call it
  DeviceRequest device;
  ArithmeticOptions arithmetic;
  CopyOptions copies;
  std::optional<int> context_tokens;
  bool check_tensors = false;
};

// Where a text comes from; at most one of the two is set.
struct TextSource {
  std::optional<std::string> text;
  std::optional<std::string> file;
  [[nodiscard]] bool given() const { return text.has_value() || file.has_value(); }
};

struct PromptOptions {
  TextSource prompt;
  TextSource system;
  bool interpret_escapes = true;  // in the prompt typed with -p
};

// How a prompt becomes ids.
struct FormOptions {
  bool raw = false;
  std::optional<ChatTemplate> chat_template;  // nullopt: the folder's own
  std::optional<std::string> date;
  std::optional<bool> parse_special;  // nullopt: yes for raw text, no for message bodies
  bool verbose_prompt = false;
};

struct SamplingOptions {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int> top_k;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  int repeat_last_n = 64;
  bool temperature_first = false;
  std::optional<std::uint64_t> seed;
};

enum class Truncate { No, Head, Tail };

struct ReplyOptions {
  std::int64_t max_new_tokens = 1024;  // -1: up to the context
  std::vector<std::string> stop;
  bool ignore_eos = false;
  bool show_special = false;
  int num_logprobs = 0;
  bool logprobs_typed = false;
  Truncate truncate = Truncate::No;
  bool single_turn = false;
};

// Many prompts of a file.
struct BatchOptions {
  std::string input_file;  // JSON Lines; "-": standard input; empty: one prompt
  int replies_at_a_time = 8;
  bool resume = false;
  bool overwrite = false;
  bool flag_typed = false;  // one of those that go with an input file
  [[nodiscard]] bool given() const { return !input_file.empty(); }
};

// What a chat keeps of what was typed.
struct HistoryOptions {
  bool store = true;
  std::string file;  // empty: the XDG rules
  bool file_typed = false;
};

struct GenerateOptions {
  ModelOptions model;
  HistoryOptions history;
  PromptOptions prompt;
  FormOptions form;
  SamplingOptions sampling;
  ReplyOptions reply;
  BatchOptions batch;
  OutputOptions output;
  LogOptions log;
};

struct TokenizeOptions {
  std::string model;
  TextSource text;
  std::string input_file;     // JSON Lines
  std::string messages_file;  // JSON
  bool interpret_escapes = true;
  bool add_bos = true;
  bool parse_special = true;           // in plain text
  bool parse_message_special = false;  // in message bodies
  bool pieces = false;
  bool render = false;
  bool add_generation_prompt = true;
  std::optional<ChatTemplate> chat_template;
  std::optional<std::string> date;
  bool chat_flag_typed = false;  // one that is about conversations
  OutputOptions output;
  LogOptions log;
};

struct QuantizeOptions {
  std::string model;
  std::string target;  // empty: beside the source
  PackedOptions packed;
  std::optional<bool> rotate;           // nullopt: with GPTQ
  bool rotation_seed_is_typed = false;  // and not a variable's, which is for all runs
  std::string calibration_file;         // empty: the text in the program
  std::optional<std::int64_t> calibration_tokens;
  DeviceRequest device;
  bool overwrite = false;
  bool json = false;
  LogOptions log;
};

// Another model to compare with.
struct AgainstOptions {
  std::string model;  // empty: the same as -m
  std::optional<Precision> precision;
};

struct PerplexityOptions {
  ModelOptions model;
  std::string file;  // "-": standard input
  bool wikitext = false;
  std::optional<int> window;
  std::optional<int> max_windows;
  StepKind path = StepKind::Prefill;
  int lock_step = 16;
  bool lock_step_typed = false;
  std::optional<AgainstOptions> against;
  OutputOptions output;
  LogOptions log;
};

struct InspectOptions {
  std::string model;
  bool check_tensors = false;
  std::string plot_file;
  OutputOptions output;
  LogOptions log;
};

// One request after the other, measured from the text to the last token that is written.
struct LatencyOptions {
  bool end_to_end = false;
  std::vector<int> prompt_tokens = {128};
  std::vector<int> reply_tokens = {64};
  std::string plot_file;
  std::string compare_old, compare_new;  // two reports; empty: measures
};

struct BenchOptions {
  ModelOptions model;
  std::string dummy;  // a config.json; empty: the model
  std::vector<int> batches = {1};
  std::vector<int> depths;  // empty: 0 before whole requests, else 2048 or the most there is
  int repetitions = 200;
  int warm_up = 50;
  bool serve = false;               // measures what lines of standard input ask for
  std::vector<PromptPack> prompts;  // measured in place of decode steps
  bool all_prompts = false;         // nobody named the packs: those that do not fit are left out
  int layers = 0;                   // of random weights; 0: the shape's own
  bool energy = false;              // joules of a token, too
  LatencyOptions latency;
  SamplingOptions sampling;
  OutputOptions output;
  LogOptions log;
};

struct PlanOptions {
  ModelOptions model;
  std::string gpu;                  // a name of the catalogue; empty: none
  std::optional<double> memory_gb;  // of a device that is not here
  int batch = 1;
  OutputOptions output;
  LogOptions log;
};

struct DoctorOptions {
  DeviceRequest device;
  CopyOptions copies;
  bool check_copies = true;  // by their checksums
  OutputOptions output;
  LogOptions log;
};

struct ProgramOptions {
  bool version = false;
  bool list_devices = false;
};

// The options live as long as the tables.
[[nodiscard]] Command program_command(ProgramOptions& options);
[[nodiscard]] Command run_command(GenerateOptions& options);
[[nodiscard]] Command chat_command(GenerateOptions& options);
[[nodiscard]] Command tokenize_command(TokenizeOptions& options);
[[nodiscard]] Command quantize_command(QuantizeOptions& options);
[[nodiscard]] Command perplexity_command(PerplexityOptions& options);
[[nodiscard]] Command inspect_command(InspectOptions& options);
[[nodiscard]] Command bench_command(BenchOptions& options);
[[nodiscard]] Command plan_command(PlanOptions& options);
[[nodiscard]] Command doctor_command(DoctorOptions& options);

}  // namespace fut::app
