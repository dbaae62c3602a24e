// What quantising needs to go on after a layer: the report card so far and hidden states, as bytes
// that PackedWriter::save_progress keeps. Internal to engine/.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/quantize_runner.h"
#include "loader/report_card.h"

namespace fut {

[[nodiscard]] std::vector<std::byte> save_state(const ReportCard& card,
                                                std::span<HiddenStates* const> hidden);
// From bytes of save_state, for as many hidden states of the same sizes.
void restore_state(std::span<const std::byte> bytes, ReportCard& card,
                   std::span<HiddenStates* const> hidden);

}  // namespace fut
