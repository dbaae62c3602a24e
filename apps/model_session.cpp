// See the header.
#include "apps/model_session.h"

#include <algorithm>
#include <chrono>
#include <spdlog/spdlog.h>

#include "apps/logging.h"
#include "apps/model_lookup.h"
#include "apps/signals.h"
#include "apps/version.h"
#include "kernels/error.h"
#include "loader/checkpoint.h"

namespace fut::app {
namespace {

// "loading 40 %" over itself on a terminal; also where Ctrl-C is noticed while loading.
class LoadProgress {
 public:
  explicit LoadProgress(bool show) : show_(show) {}
  LoadProgress(const LoadProgress&) = delete;
  LoadProgress& operator=(const LoadProgress&) = delete;
  ~LoadProgress() {
    if (shown_ >= 0) write_to_standard_error("\r              \r");  // as long as the line
  }
  void operator()(std::uint64_t done, std::uint64_t total) {
    throw_if_interrupted();
    const int percent = total == 0 ? 100 : static_cast<int>(done * 100 / total);
    if (!show_ || percent == shown_) return;
    shown_ = percent;
    write_to_standard_error(fmt::format("\rloading {} %", percent));
  }

 private:
  bool show_;
  int shown_ = -1;
};

void tell(const std::vector<std::string>& notices) {
  for (const std::string& notice : notices) spdlog::warn("{}", notice);
}

}  // namespace

OpenedModel open_model(const ModelOptions& options) {
  const FoundFolder found = find_model_folder(options.model, Wanted::Model);
  for (const std::string& place : found.tried) spdlog::info("looked for the model in {}", place);
  if (!found.notice.empty()) spdlog::warn("{}", found.notice);
  std::string notice;
  auto backend = make_backend(options.device, notice);
  // That a build without GPU kernels computes on the CPU is no news.
  if (!notice.empty()) {
    spdlog::log(built_with_cuda() ? spdlog::level::warn : spdlog::level::info, "{}", notice);
  }
  ModelFolder folder = read_model_folder(found.path);
  tell(folder.notices);
  const int context_tokens =
      resolve_context_tokens(folder.config, options.context_tokens.value_or(0));
  return {std::move(backend), std::move(folder), context_tokens};
}

Engine load_engine(OpenedModel& model, const ModelOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const Checkpoint checkpoint = Checkpoint::open(model.folder.path, model.folder.config);
  tell(checkpoint.notices());
  Model weights = [&] {
    LoadProgress progress(standard_error_is_terminal() &&
                          spdlog::default_logger()->level() < spdlog::level::err);
    return Model::load(*model.backend, checkpoint, model.folder.config, std::ref(progress),
                       options.check_tensors);
  }();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  constexpr double kMebibyte = 1 << 20;
  spdlog::info("{}: {:.1f} MiB of weights in {:.2f} s on {}; context {} tokens",
               model.folder.path.string(), static_cast<double>(weights.bytes()) / kMebibyte,
               seconds.count(), model.backend->description(), model.context_tokens);
  EngineOptions engine_options;
  engine_options.context_tokens = model.context_tokens;
  return Engine(*model.backend, std::move(weights), engine_options);
}

}  // namespace fut::app
