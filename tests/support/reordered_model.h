// The same model with its channels in another order: hidden and FFN channels the other way round, query
// heads within their groups. Every weight is the same number in another place, so that whatever computes
// it differs by the order of sums alone: the noise floor of any comparison, if sums are wide or narrow as
// those are that are compared (tensor_core_sums.h).
#pragma once

#include <filesystem>

namespace fut::test {

// Writes `target`, a folder, from the checkpoint in `source`.
void write_reordered_model(const std::filesystem::path& source,
                           const std::filesystem::path& target);

}  // namespace fut::test
