// fut bench --serve: a model that stays and is measured when a line of standard input asks for it.
#pragma once

#include <functional>

#include "apps/reporter.h"
#include "kernels/backend.h"

namespace fut::app {

struct ServedBench {
  std::function<Backend::Procedure()> step, layers;  // recorded when first asked for
  int num_layers = 0;
  double flops_layer = 0;  // 0: decode, bound by memory
};
// Says that it is ready by writing the reporter's document, then answers each line of standard input by
// a line until there are no more. Throws Usage for a line that asks for nothing.
void serve_bench(Backend& backend, const ServedBench& bench, Reporter& reporter);

}  // namespace fut::app
