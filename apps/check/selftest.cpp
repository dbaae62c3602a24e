// See the header.
#include "apps/check/selftest.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>

#include "apps/check/op_trace.h"
#include "apps/compare/divergence.h"
#include "apps/flag_groups.h"
#include "apps/model_session.h"
#include "apps/signals.h"
#include "apps/words.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr const char* kText = "The old king";
// What the demonstration model says after it in float32, greedily: the same on every machine.
constexpr std::int32_t kReply[] = {316, 525, 2586, 11,   275, 395, 283, 442,
                                   377, 438, 533,  2145, 11,  399, 283, 316};
constexpr int kReplyTokens = static_cast<int>(std::size(kReply));

[[noreturn]] void fail(const std::string& what) {
  throw runtime_failure("{}", what);
}

// The demonstration model where and as it is asked for. No copy of it is kept.
ModelOptions demo_options(DeviceRequest::Kind device, Precision precision) {
  ModelOptions options;
  options.device.kind = device;
  options.arithmetic.precision = precision;
  options.arithmetic.precision_given = true;
  options.copies.keep = false;
  return options;
}

struct Loaded {
  OpenedModel opened;
  Model model;
};

Loaded load(DeviceRequest::Kind device, Precision precision) {
  const ModelOptions options = demo_options(device, precision);
  OpenedModel opened = open_model(options);
  Model model = load_weights(*opened.backend, opened, options, NoRoom::Fail);
  return {std::move(opened), std::move(model)};
}

Ids run_engine(Engine& engine, const std::vector<Ids>& prompts, bool of_conversation) {
  std::vector<SequenceId> sequences;
  for (const Ids& prompt : prompts) {
    Request request;
    request.prompt = prompt;
    request.max_new_tokens = kReplyTokens;
    request.sampling.sample.temperature = 0;
    request.of_conversation = of_conversation;
    sequences.push_back(engine.submit(std::move(request)));
  }
  Ids reply;
  while (!engine.idle()) {
    throw_if_interrupted();
    for (const TokenEvent& event : engine.step()) {
      if (event.sequence == sequences[0]) reply.push_back(event.token);
    }
  }
  return reply;
}

class Selftest {
 public:
  explicit Selftest(Reporter& reporter) : reporter_(reporter) {
    reporter_.document()["parts"] = Json::array();
  }

  int run() {
    part("tokenizer: bytes in, bytes out", [&] { return tokenizer_part(); });
    part("float32 on the CPU says what it always says", [&] { return float_part(); });
    part("the same bits in company", [&] { return company_part(); });
    part("a conversation goes on from what it has", [&] { return conversation_part(); });
    part("int4 on the CPU", [&] { return int4_part(); });
    part("int4 on the GPU", [&] { return gpu_part(); });
    reporter_.document()["failed"] = failed_;
    reporter_.text(failed_ == 0 ? "all is well\n" : counted(failed_, "part") + " failed\n");
    reporter_.finish();
    return failed_ == 0 ? 0 : static_cast<int>(ErrorKind::Runtime);
  }

 private:
  // What a part returns is told; what it throws is its failure.
  void part(const std::string& name, const std::function<std::string()>& body) {
    const auto start = std::chrono::steady_clock::now();
    std::string detail;
    bool ok = true;
    try {
      detail = body();
    } catch (const Error& e) {
      ok = false;
      ++failed_;
      detail = e.what();
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    reporter_.document()["parts"].push_back(
        {{"name", name}, {"ok", ok}, {"detail", detail}, {"seconds", seconds.count()}});
    reporter_.text(fmt::format("{:<6} {} ({}): {}\n", ok ? "ok" : "FAILED", name,
                               seconds_text(seconds.count()), detail));
  }

  Loaded& float_model() {
    if (!float_) float_.emplace(load(DeviceRequest::Kind::Cpu, Precision::F32));
    return *float_;
  }
  Ids prompt() { return float_model().opened.folder.tokenizer.encode(kText, {}); }

  std::string tokenizer_part() {
    const Tokenizer& tokenizer = float_model().opened.folder.tokenizer;
    for (const std::string text : {"Hello, world!", "  two  blanks\n\n",
                                   "\xE6\x97\xA5\xE6\x9C\xAC \xF0\x9F\x98\x80", "1234567 don't"}) {
      EncodeOptions plain;
      plain.add_bos = false;
      if (tokenizer.decode(tokenizer.encode(text, plain), true) != text) {
        fail(fmt::format("'{}' does not come back", text));
      }
    }
    return counted(static_cast<std::uint64_t>(tokenizer.vocab_size()), "token");
  }

  // The engine takes the model: loaded anew for each part.
  Engine engine(int sequences) {
    Loaded& model = float_model();
    EngineOptions options;
    options.context_tokens = 128;
    options.max_sequences = sequences;
    options.kv_cache = model.opened.kv_cache;
    const ModelOptions wanted = demo_options(DeviceRequest::Kind::Cpu, Precision::F32);
    return {*model.opened.backend,
            load_weights(*model.opened.backend, model.opened, wanted, NoRoom::Fail), options};
  }

  std::string float_part() {
    Engine alone = engine(1);
    alone_ = run_engine(alone, {prompt()}, false);
    if (!std::ranges::equal(alone_, kReply)) {
      fail(fmt::format("the tokens are {}, and {} were expected", fmt::join(alone_, " "),
                       fmt::join(kReply, " ")));
    }
    return counted(alone_.size(), "token");
  }

  std::string company_part() {
    Engine many = engine(3);
    Ids other = prompt();
    std::ranges::reverse(other);
    const Ids reply = run_engine(many, {prompt(), other, Ids(40, other[0])}, false);
    if (reply != alone_) fail("a reply changes with its neighbours");
    return "three at a time";
  }

  std::string conversation_part() {
    Engine talk = engine(1), whole = engine(1);
    Ids ids = prompt();
    ids.insert(ids.end(), 30, ids.back());
    run_engine(talk, {ids}, true);
    ids.insert(ids.end(), 5, ids.front());
    if (run_engine(talk, {ids}, true) != run_engine(whole, {ids}, false)) {
      fail("what is kept gives another reply than what is computed whole");
    }
    return "two turns";
  }

  // Logits along prompt and expected reply.
  std::vector<std::vector<float>> logits(Loaded& loaded) {
    Ids ids = prompt();
    const std::size_t first = ids.size() - 1;
    ids.insert(ids.end(), std::begin(kReply), std::end(kReply) - 1);
    TracedModel traced(*loaded.opened.backend, loaded.model, loaded.opened.kv_cache,
                       static_cast<int>(ids.size()));
    std::vector<std::vector<float>> rows;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      throw_if_interrupted();
      traced.feed(ids[i]);
      if (i < first) continue;
      rows.push_back(traced.logits());
      if (!std::ranges::all_of(rows.back(), [](float v) { return std::isfinite(v); })) {
        fail("logits are not finite");
      }
    }
    return rows;
  }

  static double mean_kl(const std::vector<std::vector<float>>& a,
                        const std::vector<std::vector<float>>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += divergence(a[i], b[i], 0).kl;
    return sum / static_cast<double>(a.size());
  }

  std::string int4_part() {
    Loaded quantised = load(DeviceRequest::Kind::Cpu, Precision::Int4);
    int4_ = logits(quantised);
    int4_kl_ = mean_kl(logits(float_model()), int4_);
    return fmt::format("KL {:.4f} nats from float32", int4_kl_);
  }

  // What kernels may move the distribution by: less than quantising does.
  std::string gpu_part() {
    for (const DeviceReport& device : list_devices()) {
      if (!device.usable || device.name.starts_with("CPU") || device.name.starts_with("cpu"))
        continue;
      if (int4_.empty()) fail("there is no int4 of the CPU to compare with");
      Loaded gpu = load(DeviceRequest::Kind::Cuda, Precision::Int4);
      const double kl = mean_kl(int4_, logits(gpu));
      if (kl > int4_kl_) {
        fail(fmt::format("KL {:.4f} nats from the CPU, more than quantising costs ({:.4f})", kl,
                         int4_kl_));
      }
      return fmt::format("{}: KL {:.5f} nats from the CPU", device.name, kl);
    }
    return "left out: no usable GPU";
  }

  Reporter& reporter_;
  std::optional<Loaded> float_;
  Ids alone_;
  std::vector<std::vector<float>> int4_;
  double int4_kl_ = 0;
  std::uint64_t failed_ = 0;
};

}  // namespace

Command selftest_command(SelftestOptions& o) {
  Command command{"selftest",
                  "Whether this machine computes what it should, with the demonstration model",
                  std::string("Needs no other model and keeps nothing. Exit code 1 where a part "
                              "fails.\n") +
                      kExitCodes,
                  {}};
  command.flags.push_back(
      {{"--json"}, "", kOutputSection, "The report as one JSON document", turn_on(o.json)});
  append(command.flags, log_flags(o.log));
  return command;
}

int selftest(const SelftestOptions&, Reporter& reporter) {
  return Selftest(reporter).run();
}

}  // namespace fut::app
