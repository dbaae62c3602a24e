// From the makers' data sheets: bytes and operations a second, those of dense matrices.
#include "apps/gpu_catalog.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>

namespace fut::app {
namespace {

constexpr std::size_t gib(std::size_t count) {
  return count << 30;
}

constexpr std::array<NamedGpu, 7> kGpus = {{
    {"h100", "NVIDIA H100 80GB HBM3", gib(79), {3.35e12, 1979e12, 989e12}},
    {"h100-pcie", "NVIDIA H100 PCIe", gib(79), {2.0e12, 1513e12, 756e12}},
    {"h100-nvl", "NVIDIA H100 NVL", gib(93), {3.9e12, 1671e12, 835e12}},
    {"gh200-96", "NVIDIA GH200 480GB", gib(94), {4.0e12, 1979e12, 989e12}},
    {"h20", "NVIDIA H20", gib(95), {4.0e12, 296e12, 148e12}},
    {"h200", "NVIDIA H200", gib(139), {4.8e12, 1979e12, 989e12}},
    {"h200-nvl", "NVIDIA H200 NVL", gib(139), {4.8e12, 1671e12, 835e12}},
}};

}  // namespace

std::span<const NamedGpu> named_gpus() {
  return kGpus;
}

std::string gpu_names() {
  std::string names;
  for (const NamedGpu& gpu : kGpus)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", gpu.name);
  return names;
}

const NamedGpu* gpu_by_name(std::string_view name) {
  const auto found = std::ranges::find(kGpus, name, &NamedGpu::name);
  return found == kGpus.end() ? nullptr : &*found;
}

const NamedGpu* gpu_of_description(std::string_view description) {
  const auto found = std::ranges::find_if(kGpus, [&](const NamedGpu& gpu) {
    return description.find(fmt::format(" {},", gpu.device_name)) != description.npos;
  });
  return found == kGpus.end() ? nullptr : &*found;
}

}  // namespace fut::app
