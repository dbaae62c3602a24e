// The card's clock and power while something is measured, as the management library says; nothing where
// there is none. Products of prompts run against the card's power limit, so that a rate without its clock
// says little.
#pragma once

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace fut::test {

class ClockSampler {
 public:
  ClockSampler();
  ~ClockSampler();
  ClockSampler(const ClockSampler&) = delete;
  ClockSampler& operator=(const ClockSampler&) = delete;

  void begin();
  // Medians since begin(): "1455 MHz, 690 W".
  [[nodiscard]] std::string end();

 private:
  void sample();

  using Read = int (*)(void* device, int kind, unsigned* value);
  using ReadPower = int (*)(void* device, unsigned* milliwatts);
  void* device_ = nullptr;
  Read clock_ = nullptr;
  ReadPower power_ = nullptr;
  std::atomic<bool> running_ = false;
  std::vector<unsigned> clocks_, powers_;
  std::thread thread_;
};

}  // namespace fut::test
