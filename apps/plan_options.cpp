// The flags of fut plan and fut doctor, which load nothing.
#include "apps/flag_groups.h"
#include "apps/gpu_catalog.h"
#include "apps/options.h"
#include "engine/memory_needs.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

constexpr const char* kPlanSection = "What is planned for";

constexpr const char* kPlanNotes =
    "Reads headers alone, so it costs nothing to ask. -m is a model as for fut run, or the name of "
    "a "
    "shape\n(llama-3.1-8b, llama-3.1-70b) or a config.json, of which no weights need be here. "
    "Without "
    "--gpu and\n--memory the device of this machine is planned for, with what is free on it now. "
    "Sizes "
    "are those that\nloading allocates; what a GPU's driver takes is an estimate. Times are "
    "rooflines on "
    "paper: what must be\nread over the bandwidth, what must be computed over the peak. No program "
    "is "
    "faster; fut bench measures.\nThe exit code is 4 where it does not fit, which the report says "
    "too.\n";

void set_gpu(PlanOptions& o, const Argument& a) {
  if (gpu_by_name(a.text) == nullptr) {
    throw usage_error(
        "{}: '{}' is no GPU that this program has kernels for; allowed: {}; or give --memory GB",
        a.source, a.text, gpu_names());
  }
  o.gpu = a.text;
}

Flags plan_flags(PlanOptions& o) {
  constexpr double kMostGigabytes = 1e6;
  return {{{"--gpu"},
           "NAME",
           kPlanSection,
           "A GPU that need not be here, empty: " + gpu_names(),
           [&o](const Argument& a) { set_gpu(o, a); },
           false,
           {"--memory", "--device", "--cpu"}},
          {{"--memory"},
           "GB",
           kPlanSection,
           "So many gigabytes (10^9 bytes) free on a GPU, or with --device cpu on a machine",
           set_real(o.memory_gb, {0, kMostGigabytes, true, "above 0, up to 1000000"})},
          {{"-b", "--batch"},
           "N",
           kPlanSection,
           "Sequences that go along together [1]",
           set_integer(o.batch, 1, kMostSequences, "")}};
}

constexpr const char* kDoctorNotes =
    "Says what is here, what is wrong and what to type next. The exit code is 5 where --device "
    "names a "
    "GPU that\ncannot be used, 3 where a quantised copy is damaged; what stops nothing is told and "
    "leaves 0.\n";

}  // namespace

Command plan_command(PlanOptions& o) {
  Command command{
      "plan",
      "Whether a model fits, what takes the memory, how fast it could be; loads nothing",
      std::string(kPlanNotes) + kExitCodes,
      {}};
  Flag model = model_flag(o.model.model);
  model.help =
      "As for fut run; or llama-3.1-8b, llama-3.1-70b, or a config.json "
      "[the demonstration model]";
  command.flags = {std::move(model)};
  append(command.flags, plan_flags(o));
  command.flags.push_back(context_flag(o.model.context_tokens));
  append(command.flags, device_flags(o.model.device));
  append(command.flags, arithmetic_flags(o.model.arithmetic));
  append(command.flags, output_flags(o.output, "Form of the report [text]"));
  append(command.flags, log_flags(o.log));
  return command;
}

Command doctor_command(DoctorOptions& o) {
  Command command{
      "doctor",
      "Driver, GPUs, memory, disks and caches of this machine: what is wrong, what next",
      std::string(kDoctorNotes) + kExitCodes,
      {}};
  command.flags = {{{"--device"},
                    "auto|cpu|cuda[:N]",
                    kModelSection,
                    "The device that has to be usable; auto: a GPU or else the CPU [auto]",
                    [&o](const Argument& a) { o.device = parse_device(a); }},
                   {{"--cache-dir"},
                    "DIR",
                    kModelSection,
                    "Where quantised copies are kept [$XDG_CACHE_HOME/fut, else ~/.cache/fut]",
                    set_text(o.copies.cache_dir, "folder")},
                   {{"--quick"},
                    "",
                    kModelSection,
                    "Leave out the checksums of the copies, which takes reading them",
                    turn_off(o.check_copies)}};
  append(command.flags, output_flags(o.output, "Form of the report [text]"));
  append(command.flags, log_flags(o.log));
  return command;
}

}  // namespace fut::app
