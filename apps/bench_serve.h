// fut bench --serve: a model that stays and is measured when a line of standard input asks for it.
#pragma once

#include "apps/reporter.h"
#include "engine/decode_bench.h"

namespace fut::app {

// Says that it is ready by writing the reporter's document, then answers each line of standard input by
// a line until there are no more. Throws Usage for a line that asks for nothing.
void serve_bench(Backend& backend, DecodeBench& decode, int num_layers, Reporter& reporter);

}  // namespace fut::app
