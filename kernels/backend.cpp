// Makes backends. The only file that knows both of them, and the only one that asks whether this is
// a build with CUDA.
#include "kernels/backend.h"

#include <algorithm>
#include <utility>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/error.h"

#if FUT_CUDA
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device.h"
#endif

namespace fut {
namespace {

constexpr std::string_view kUseCpu = "use --device cpu";

// 13000 as "13.0"; empty for 0.
std::string cuda_version_text(int version) {
  if (version == 0) return {};
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

// What the management library adds to a device.
void add_state(const nvml::Device& device, GpuState& state) {
  state.memory = {device.total_bytes, device.free_bytes, false};
  state.processes = device.processes;
}

#if FUT_CUDA

void survey_cuda(const nvml::Report& report, GpuSurvey& survey) {
  survey.kernels_for = fmt::format("{}.{}", cuda::kCapabilityMajor, cuda::kCapabilityMinor);
  const cuda::Versions versions = cuda::runtime_versions();
  survey.runtime_version = cuda_version_text(versions.runtime);
  survey.driver_cuda = cuda_version_text(std::max(versions.driver, report.cuda_version));
  const cuda::Discovery found = cuda::discover_devices();
  survey.fault = found.reason;
  for (const cuda::DeviceInfo& device : found.devices) {
    GpuState state{device.index,
                   device.name,
                   device.uuid,
                   device.pci_bus_id,
                   fmt::format("{}.{}", device.capability_major, device.capability_minor),
                   cuda::capability_fault(device),
                   {device.memory_bytes, 0, false},
                   {}};
    for (const nvml::Device& same : report.devices) {
      if (same.uuid == device.uuid) add_state(same, state);
    }
    survey.devices.push_back(std::move(state));
  }
}

std::vector<DeviceReport> cuda_reports() {
  const cuda::Discovery found = cuda::discover_devices();
  if (found.devices.empty()) return {{"cuda", false, found.reason}};
  std::vector<DeviceReport> reports;
  for (const cuda::DeviceInfo& device : found.devices) {
    std::string fault = cuda::capability_fault(device);
    reports.push_back({cuda::describe(device), fault.empty(), std::move(fault)});
  }
  return reports;
}

std::unique_ptr<Backend> make_cuda(int index, const DeviceRequest& request) {
  const cuda::Discovery found = cuda::discover_devices();
  if (found.devices.empty()) {
    throw device_error("cuda:{}: no CUDA device: {}; {}", index, found.reason, kUseCpu);
  }
  const auto count = static_cast<int>(found.devices.size());
  if (index < 0 || index >= count) {
    throw device_error(
        "cuda:{}: there is no such device, this machine has {} (cuda:0 to cuda:{}); {}", index,
        count, count - 1, kUseCpu);
  }
  const cuda::DeviceInfo& device = found.devices[static_cast<std::size_t>(index)];
  const std::string fault = cuda::capability_fault(device);
  if (!fault.empty()) throw device_error("{}: {}; {}", cuda::describe(device), fault, kUseCpu);
  return std::make_unique<cuda::CudaBackend>(index, request.record_graphs,
                                             request.failing_allocation, request.long_context);
}

#else

constexpr std::string_view kNoCuda =
    "this build has no CUDA support (configure with --preset cuda, or -DFUT_CUDA=ON)";

void survey_cuda(const nvml::Report& report, GpuSurvey& survey) {
  survey.driver_cuda = cuda_version_text(report.cuda_version);
  survey.fault = kNoCuda;
}

std::vector<DeviceReport> cuda_reports() {
  return {{"cuda", false, std::string(kNoCuda)}};
}

std::unique_ptr<Backend> make_cuda(int index, const DeviceRequest& /*request*/) {
  throw device_error("cuda:{}: {}; {}", index, kNoCuda, kUseCpu);
}

#endif

}  // namespace

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : owner_(std::exchange(other.owner_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  DeviceBuffer old(std::move(other));
  std::swap(owner_, old.owner_);
  std::swap(data_, old.data_);
  std::swap(bytes_, old.bytes_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (owner_ != nullptr && data_ != nullptr) owner_->deallocate(data_);
}

std::vector<DeviceReport> list_devices() {
  std::vector<DeviceReport> reports = {{cpu::describe_machine(), true, ""}};
  for (DeviceReport& report : cuda_reports()) reports.push_back(std::move(report));
  return reports;
}

GpuSurvey survey_gpus() {
  const nvml::Report report = nvml::look();
  GpuSurvey survey;
  survey.driver_version = report.driver_version;
  survey.management_fault = report.fault;
  survey.management_reason = report.reason;
  survey_cuda(report, survey);
  // Those that the runtime does not show.
  for (const nvml::Device& device : report.devices) {
    if (std::ranges::any_of(survey.devices,
                            [&](const GpuState& known) { return known.uuid == device.uuid; })) {
      continue;
    }
    GpuState state;
    state.index = -1;
    state.name = device.name;
    state.uuid = device.uuid;
    state.capability = device.capability_major == 0
                           ? std::string()
                           : fmt::format("{}.{}", device.capability_major, device.capability_minor);
    state.fault =
        survey.fault.empty() ? "hidden from CUDA programs (CUDA_VISIBLE_DEVICES)" : survey.fault;
    add_state(device, state);
    survey.devices.push_back(std::move(state));
  }
  return survey;
}

std::unique_ptr<Backend> make_backend(const DeviceRequest& request, std::string& notice) {
  if (request.kind == DeviceRequest::Kind::Cuda) return make_cuda(request.cuda_index, request);
  if (request.kind == DeviceRequest::Kind::Auto) {
    const std::vector<DeviceReport> reports = cuda_reports();
    for (std::size_t i = 0; i < reports.size(); ++i) {
      if (reports[i].usable) return make_cuda(static_cast<int>(i), request);
    }
    notice = fmt::format("running on the CPU: {}: {}", reports[0].name, reports[0].reason);
  }
  return std::make_unique<cpu::CpuBackend>(request.cpu_threads, cpu::available_memory_bytes(),
                                           *cpu::usable_vector_loops().back(),
                                           request.failing_allocation, request.long_context);
}

}  // namespace fut
