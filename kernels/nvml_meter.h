// What one GPU does now, as NVIDIA's management library tells: clocks, power, temperature, what slows it
// down, the energy that it took. Reads alone; nothing is ever set.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/nvml.h"

namespace fut::nvml {

class Library;

// What is not told is empty.
struct Reading {
  std::optional<int> sm_mhz;  // the clock of the multiprocessors
  std::optional<int> celsius;
  std::optional<double> watts;
  std::uint64_t held_by = 0;  // what holds the clocks below their most; bits of the library
};

// Those of a reading's reasons that slow a GPU down against its will, in words: heat and power. Clocks that
// somebody chose, and those of a GPU that has nothing to do, are none.
[[nodiscard]] std::vector<std::string> slowdowns(std::uint64_t held_by);

class Meter {
 public:
  // Of the GPU with this UUID ("GPU-8c5ff7a2-...").
  explicit Meter(const std::string& uuid);
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;
  ~Meter();

  // Whether library and GPU are there; else nothing is told.
  [[nodiscard]] bool works() const { return device_ != nullptr; }
  [[nodiscard]] Reading read() const;
  // Since the driver was loaded. Empty: the GPU does not count.
  [[nodiscard]] std::optional<double> joules() const;
  [[nodiscard]] std::optional<int> most_sm_mhz() const;
  [[nodiscard]] std::optional<double> most_watts() const;
  [[nodiscard]] std::vector<Process> processes() const;  // that compute on it, this one apart

 private:
  std::unique_ptr<Library> library_;
  struct nvmlDevice_st* device_ = nullptr;
};

}  // namespace fut::nvml
