// What can be seen of a step's state from the pointers alone.
#include "kernels/step_advance.h"

#include "kernels/check.h"
#include "kernels/op_checks.h"

namespace fut {

void check(const StepState& state) {
  constexpr const char* kOp = "advance";
  const struct {
    const char* name;
    const void* data;
  } arrays[] = {{"next_ids", state.next_ids},
                {"token_ids", state.token_ids},
                {"positions", state.positions},
                {"kv_lengths", state.kv_lengths},
                {"draw_index", state.draw_index},
                {"history_limits", state.history_limits},
                {"history_windows", state.history_windows},
                {"history_begins", state.history_begins},
                {"history_ends", state.history_ends},
                {"end_ids", state.end_ids},
                {"remaining", state.remaining},
                {"finished", state.finished},
                {"step", state.step},
                {"ring", state.ring.data}};
  for (const auto& array : arrays) op_checks::check_array(kOp, array.name, array.data);
  FUT_CHECK(state.rows >= 1 && state.rows <= state.ring.rows, "{}: {} rows, the ring has {}", kOp,
            state.rows, state.ring.rows);
}

}  // namespace fut
