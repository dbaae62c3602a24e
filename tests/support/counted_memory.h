// How much memory a stretch of a test takes at its peak. A test that asks is linked with operators new and
// delete that count: all of C++'s allocations in the process, those of libraries included, as they are asked
// for and not as they are touched. What C libraries take with malloc is not counted.
#pragma once

#include <cstddef>

namespace fut::test {

class MemoryPeak {
 public:
  MemoryPeak();  // counting begins
  // The most that was allocated at a time since then, beyond what was allocated before.
  [[nodiscard]] std::size_t bytes() const;

 private:
  std::size_t before_;
};

}  // namespace fut::test
