// The half of fut doctor that looks at GPUs.
#include <charconv>
#include <cstdlib>

#include "apps/doctor_findings.h"
#include "apps/processes.h"
#include "apps/words.h"
#include "kernels/backend.h"
#include "kernels/error.h"

namespace fut::app {
namespace {

constexpr int kDeviceCode = static_cast<int>(ErrorKind::Device);

// "cuda:0"; a GPU that the runtime does not show has no number.
std::string place_of(const GpuState& gpu) {
  return gpu.index < 0 ? "gpu" : fmt::format("cuda:{}", gpu.index);
}

int major_of(const std::string& version) {
  int major = 0;
  std::from_chars(version.data(), version.data() + version.size(), major);
  return major;
}

// What to do where the runtime shows no device.
std::string next_without_device(const GpuSurvey& survey) {
  if (survey.kernels_for.empty()) {
    return "build with GPU kernels: cmake --preset cuda && cmake --build --preset cuda; or use "
           "--device cpu";
  }
  if (survey.management_fault == nvml::Fault::DriverUpdated) return "restart the machine";
  if (survey.management_fault == nvml::Fault::DriverNotLoaded) {
    return "sudo modprobe nvidia, or restart the machine";
  }
  if (!survey.driver_cuda.empty() &&
      major_of(survey.driver_cuda) < major_of(survey.runtime_version)) {
    return fmt::format(
        "update the NVIDIA driver: it runs CUDA up to {} and this build has the runtime of {}",
        survey.driver_cuda, survey.runtime_version);
  }
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible != nullptr) {
    return fmt::format("unset CUDA_VISIBLE_DEVICES, which is '{}'", visible);
  }
  return "install the NVIDIA driver, so that nvidia-smi lists the GPU; in a container, start it "
         "with "
         "--gpus all; or use --device cpu";
}

void describe_driver(const GpuSurvey& survey, DoctorFindings& findings) {
  const auto known = [](const std::string& text) {
    return text.empty() ? Json(nullptr) : Json(text);
  };
  findings.document["gpu_kernels_for"] = known(survey.kernels_for);
  findings.document["cuda_runtime"] = known(survey.runtime_version);
  findings.document["driver"] = {{"version", known(survey.driver_version)},
                                 {"cuda", known(survey.driver_cuda)},
                                 {"fault", known(survey.management_reason)}};
  findings.line("kernels", survey.kernels_for.empty()
                               ? "for the CPU alone"
                               : fmt::format("for compute capability {}, with CUDA runtime {}",
                                             survey.kernels_for, survey.runtime_version));
  if (survey.driver_version.empty() && survey.driver_cuda.empty()) {
    return findings.line("driver", survey.management_reason);
  }
  findings.line(
      "driver",
      fmt::format("{}, runs CUDA up to {}{}",
                  survey.driver_version.empty() ? "version unknown" : survey.driver_version,
                  survey.driver_cuda.empty() ? "?" : survey.driver_cuda,
                  survey.management_reason.empty() ? "" : "; " + survey.management_reason));
}

void describe_gpu(const GpuState& gpu, DoctorFindings& findings) {
  Json json = {{"device", place_of(gpu)},
               {"name", gpu.name},
               {"uuid", gpu.uuid},
               {"pci", gpu.pci_bus_id},
               {"compute_capability", gpu.capability},
               {"usable", gpu.fault.empty()},
               {"fault", gpu.fault},
               {"memory", gpu.memory.total_bytes},
               {"free", gpu.memory.free_bytes},
               {"processes", Json::array()}};
  const std::string memory = gpu.memory.free_bytes == 0
                                 ? size_text(gpu.memory.total_bytes)
                                 : fmt::format("{}, {} free", size_text(gpu.memory.total_bytes),
                                               size_text(gpu.memory.free_bytes));
  findings.line(place_of(gpu),
                fmt::format("{}, compute capability {}, {}{}{}, {}", gpu.name,
                            gpu.capability.empty() ? "unknown" : gpu.capability, memory,
                            gpu.pci_bus_id.empty() ? "" : ", PCI " + gpu.pci_bus_id,
                            gpu.uuid.empty() ? "" : ", " + gpu.uuid,
                            gpu.fault.empty() ? "usable" : "not usable: " + gpu.fault));
  for (const nvml::Process& process : gpu.processes) {
    const std::string name = name_or_elsewhere(process_name(process.pid));
    json["processes"].push_back({{"pid", process.pid}, {"name", name}, {"bytes", process.bytes}});
    findings.line("", fmt::format("process {} ({}) uses {}", process.pid, name,
                                  process.bytes == 0 ? "some of it" : size_text(process.bytes)));
  }
  findings.document["devices"].push_back(std::move(json));
}

void tell_of_others(const GpuState& gpu, DoctorFindings& findings) {
  if (!gpu.fault.empty() || gpu.memory.free_bytes == 0) return;
  // Less is what drivers keep for themselves.
  constexpr std::size_t kOwnShare = 20;
  const std::size_t used = gpu.memory.total_bytes - gpu.memory.free_bytes;
  if (used <= gpu.memory.total_bytes / kOwnShare) return;
  findings.problems.push_back(
      {fmt::format("{}: others use {} of its {}", place_of(gpu), size_text(used),
                   size_text(gpu.memory.total_bytes)),
       gpu.processes.empty()
           ? "nvidia-smi may tell who; fut plan -m MODEL says what fits beside them"
           : fmt::format(
                 "end them (process {} first), or see with fut plan -m MODEL what fits beside "
                 "them",
                 gpu.processes.front().pid)});
}

// What a run would take.
void tell_choice(std::string_view choice, DoctorFindings& findings) {
  findings.document["runs_on"] = choice;
  findings.line("runs on", choice);
}

// The first GPU that a run could take.
const GpuState* first_usable(const GpuSurvey& survey) {
  for (const GpuState& gpu : survey.devices) {
    if (gpu.index >= 0 && gpu.fault.empty()) return &gpu;
  }
  return nullptr;
}

// Why no GPU can be taken, in one line.
std::string why_none(const GpuSurvey& survey) {
  for (const GpuState& gpu : survey.devices) {
    if (gpu.index >= 0) return fmt::format("{} {}: {}", place_of(gpu), gpu.name, gpu.fault);
  }
  return survey.fault;
}

void choose_asked(const GpuSurvey& survey, int index, DoctorFindings& findings) {
  for (const GpuState& gpu : survey.devices) {
    if (gpu.index != index) continue;
    if (gpu.fault.empty()) return tell_choice(place_of(gpu), findings);
    findings.problems.push_back(
        {fmt::format("cuda:{} {}", index, gpu.fault),
         fmt::format("use --device cpu, or a GPU of compute capability {} (H100, H200, GH200)",
                     survey.kernels_for),
         kDeviceCode});
    return tell_choice("nothing: the device that was asked for is not usable", findings);
  }
  tell_choice("nothing: the device that was asked for is not there", findings);
  const bool others = first_usable(survey) != nullptr;
  findings.problems.push_back(
      {fmt::format("cuda:{}: {}", index,
                   others ? "there is no GPU of this number" : why_none(survey)),
       others ? fmt::format("use --device {}", place_of(*first_usable(survey)))
              : next_without_device(survey),
       kDeviceCode});
}

// auto: falls to the CPU with one clear line.
void choose_any(const GpuSurvey& survey, DoctorFindings& findings) {
  if (const GpuState* gpu = first_usable(survey)) return tell_choice(place_of(*gpu), findings);
  const std::string why = why_none(survey);
  tell_choice("the CPU: " + why, findings);
  // A machine without any GPU, and a build that wants none, are as they should be.
  const bool has_driver = !survey.driver_version.empty() || !survey.driver_cuda.empty();
  if (survey.devices.empty() && (survey.kernels_for.empty() || !has_driver)) return;
  findings.problems.push_back({"no GPU is used: " + why, next_without_device(survey)});
}

}  // namespace

void look_at_gpus(const DoctorOptions& options, DoctorFindings& findings) {
  const GpuSurvey survey = survey_gpus();
  describe_driver(survey, findings);
  findings.document["devices"] = Json::array();
  for (const GpuState& gpu : survey.devices) describe_gpu(gpu, findings);
  switch (options.device.kind) {
    case DeviceRequest::Kind::Cpu:
      tell_choice("the CPU, as asked for", findings);
      break;
    case DeviceRequest::Kind::Cuda:
      choose_asked(survey, options.device.cuda_index, findings);
      break;
    case DeviceRequest::Kind::Auto:
      choose_any(survey, findings);
      break;
  }
  for (const GpuState& gpu : survey.devices) tell_of_others(gpu, findings);
}

}  // namespace fut::app
