// See the header.
#include "tests/support/sample_rows.h"

namespace fut::test {

std::vector<std::int32_t> sample_rows(Backend& backend, const std::vector<SampleRow>& rows) {
  std::vector<float> logits;
  std::vector<SampleParams> params;
  std::vector<std::uint64_t> draws;
  std::vector<std::int32_t> history;
  std::vector<std::int32_t> indptr = {0};
  for (const SampleRow& row : rows) {
    logits.insert(logits.end(), row.logits.begin(), row.logits.end());
    params.push_back(row.params);
    draws.push_back(row.draw_index);
    history.insert(history.end(), row.history.begin(), row.history.end());
    indptr.push_back(static_cast<std::int32_t>(history.size()));
  }
  const auto num_rows = static_cast<std::int64_t>(rows.size());
  const auto vocab = static_cast<std::int64_t>(rows[0].logits.size());
  const GuardedMatrix logits_matrix(backend, {num_rows, vocab}, logits);
  const Guarded<SampleParams> params_array(backend, params);
  const Guarded<std::uint64_t> draws_array(backend, draws);
  const Guarded<std::int32_t> history_array(backend, history);
  const Guarded<std::int32_t> indptr_array(backend, indptr);
  const Guarded<std::int32_t> next_ids(backend, std::vector<std::int32_t>(rows.size(), -7));
  backend.sample({logits_matrix.const_view(), params_array.data(), draws_array.data(),
                  history_array.data(), indptr_array.data(), indptr_array.data() + 1,
                  next_ids.data()});
  return next_ids.values();
}

}  // namespace fut::test
