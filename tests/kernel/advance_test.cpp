// advance on the GPU against the same steps on the host, alone and behind sample in a recorded loop
// whose tokens come back through the ring.
#include <algorithm>
#include <gtest/gtest.h>
#include <memory>
#include <random>

#include "kernels/error.h"
#include "kernels/step_advance.h"
#include "tests/support/backends.h"

namespace fut::test {
namespace {

constexpr std::int32_t kRegion = 24;  // ids of a row's history

class SharedRing {
 public:
  SharedRing(Backend& backend, std::int64_t capacity, int rows)
      : buffer_(backend.allocate_shared(
            static_cast<std::size_t>(StepRingView{nullptr, capacity, rows}.bytes()))),
        view_{buffer_.as<std::byte>(), capacity, rows} {
    std::fill_n(view_.data, view_.bytes(), std::byte{0});
  }
  [[nodiscard]] const StepRingView& view() const { return view_; }
  [[nodiscard]] auto poll(std::uint64_t step) const { return fut::poll(view_, step); }

 private:
  DeviceBuffer buffer_;
  StepRingView view_;
};

struct HostState {
  std::vector<std::int32_t> next_ids, token_ids, positions, kv_lengths;
  std::vector<std::uint64_t> draw_index;
  std::vector<std::int32_t> history, limits, windows, begins, ends, end_ids, remaining, finished;

  // Every third row has no history, windows and end ids differ, the second row has nothing left but one.
  HostState(int rows, std::mt19937& random, int vocabulary) {
    history.assign(static_cast<std::size_t>(rows) * kRegion, -77);
    for (int row = 0; row < rows; ++row) {
      next_ids.push_back(0);
      token_ids.push_back(5);
      positions.push_back(static_cast<std::int32_t>(random() % 1000));
      kv_lengths.push_back(positions.back() + 1);
      draw_index.push_back(random());
      const std::int32_t begin = row * kRegion;
      begins.push_back(begin);
      const std::int32_t filled = row % 3 == 2 ? 0 : static_cast<std::int32_t>(random() % 5);
      for (int i = 0; i < filled; ++i) {
        history[static_cast<std::size_t>(begin + i)] =
            static_cast<std::int32_t>(random() % static_cast<unsigned>(vocabulary));
      }
      ends.push_back(begin + filled);
      limits.push_back(row % 3 == 2 ? begin : begin + kRegion);
      windows.push_back(row % 2 == 0 ? kWholeHistory : 5);
      for (int i = 0; i < kMaxEndIds; ++i) {
        const bool given = i < row % (kMaxEndIds + 1);
        end_ids.push_back(given ? 1000 + row + i : kNoToken);
      }
      remaining.push_back(row == 1 ? 1 : 10 + row % 30);
      finished.push_back(row % 7 == 6 ? 1 : 0);
    }
  }

  // The tokens that the ring is to show.
  std::vector<std::int32_t> advance() {
    std::vector<std::int32_t> shown;
    for (std::size_t row = 0; row < next_ids.size(); ++row) {
      const std::int32_t token = next_ids[row];
      shown.push_back(finished[row] != 0 ? kRowFinished : token);
      if (finished[row] != 0) continue;
      if (token == kNoToken) {
        finished[row] = 1;
        continue;
      }
      --remaining[row];
      const auto first = end_ids.begin() + static_cast<std::ptrdiff_t>(row) * kMaxEndIds;
      if (remaining[row] == 0 ||
          std::find(first, first + kMaxEndIds, token) != first + kMaxEndIds) {
        finished[row] = 1;
        continue;
      }
      token_ids[row] = token;
      ++positions[row];
      ++kv_lengths[row];
      ++draw_index[row];
      if (ends[row] == limits[row]) continue;
      history[static_cast<std::size_t>(ends[row]++)] = token;
      if (ends[row] - begins[row] > windows[row]) ++begins[row];
    }
    return shown;
  }
};

class DeviceState {
 public:
  DeviceState(Backend& backend, const HostState& s)
      : backend_(backend),
        next_ids_(backend, s.next_ids),
        token_ids_(backend, s.token_ids),
        positions_(backend, s.positions),
        kv_lengths_(backend, s.kv_lengths),
        draw_index_(backend, s.draw_index),
        history_(backend, s.history),
        limits_(backend, s.limits),
        windows_(backend, s.windows),
        begins_(backend, s.begins),
        ends_(backend, s.ends),
        end_ids_(backend, s.end_ids),
        remaining_(backend, s.remaining),
        finished_(backend, s.finished),
        step_(backend, {0}) {}

  [[nodiscard]] StepState view(const SharedRing& ring) const {
    return {ring.view().rows,   next_ids_.data(),   token_ids_.data(), positions_.data(),
            kv_lengths_.data(), draw_index_.data(), history_.data(),   limits_.data(),
            windows_.data(),    begins_.data(),     ends_.data(),      end_ids_.data(),
            remaining_.data(),  finished_.data(),   step_.data(),      ring.view()};
  }
  void set_next_ids(const std::vector<std::int32_t>& ids) {
    backend_.upload(next_ids_.data(), std::as_bytes(std::span(ids)));
  }
  [[nodiscard]] std::int32_t* next_ids() const { return next_ids_.data(); }

  void expect_equal(const HostState& s) const {
    EXPECT_EQ(token_ids_.values(), s.token_ids);
    EXPECT_EQ(positions_.values(), s.positions);
    EXPECT_EQ(kv_lengths_.values(), s.kv_lengths);
    EXPECT_EQ(draw_index_.values(), s.draw_index);
    EXPECT_EQ(history_.values(), s.history);
    EXPECT_EQ(limits_.values(), s.limits);
    EXPECT_EQ(windows_.values(), s.windows);
    EXPECT_EQ(begins_.values(), s.begins);
    EXPECT_EQ(ends_.values(), s.ends);
    EXPECT_EQ(end_ids_.values(), s.end_ids);
    EXPECT_EQ(remaining_.values(), s.remaining);
    EXPECT_EQ(finished_.values(), s.finished);
  }
  void expect_step(std::uint64_t step) const {
    EXPECT_EQ(step_.values(), std::vector<std::uint64_t>{step});
  }

 private:
  Backend& backend_;
  Guarded<std::int32_t> next_ids_, token_ids_, positions_, kv_lengths_;
  Guarded<std::uint64_t> draw_index_;
  Guarded<std::int32_t> history_, limits_, windows_, begins_, ends_, end_ids_, remaining_,
      finished_;
  Guarded<std::uint64_t> step_;
};

void expect_rows_advance(Backend& backend) {
  for (const int rows : {1, 2, 3, 8, 31, 32, 200}) {
    std::mt19937 random(static_cast<unsigned>(rows));
    HostState host(rows, random, 2000);
    const SharedRing ring(backend, 4, rows);
    DeviceState device(backend, host);
    for (std::uint64_t step = 0; step < 45; ++step) {
      for (std::int32_t& id : host.next_ids) {
        id = static_cast<std::int32_t>(900 + random() % 300);
        if (random() % 60 == 0) id = kNoToken;
      }
      device.set_next_ids(host.next_ids);
      EXPECT_FALSE(ring.poll(step).has_value());
      backend.advance(device.view(ring));
      backend.synchronize();
      const std::vector<std::int32_t> expected = host.advance();
      const auto shown = ring.poll(step);
      ASSERT_TRUE(shown.has_value());
      EXPECT_EQ(std::vector<std::int32_t>(shown->begin(), shown->end()), expected);
      if (step % 11 == 0 || step == 44) device.expect_equal(host);
    }
    device.expect_step(45);
  }
}

// The logits stay, so penalties and draws alone change what is drawn.
void expect_the_loop_of_the_cpu(Backend& backend) {
  constexpr int kRows = 9;
  constexpr int kVocabulary = 300;
  constexpr std::uint64_t kSteps = 40;
  std::string notice;
  const std::unique_ptr<Backend> cpu = make_backend({.kind = DeviceRequest::Kind::Cpu}, notice);
  std::mt19937 random(3);
  HostState host(kRows, random, kVocabulary);
  std::vector<SampleParams> params(kRows);
  for (std::size_t row = 0; row < kRows; ++row) {
    SampleParams& p = params[row];
    p.temperature = static_cast<float>(row % 3) / 2;
    p.top_p = row % 2 == 0 ? 0.9F : 1.0F;
    p.repetition_penalty = 1.2F;
    p.frequency_penalty = 0.5F;
    p.seed = row;
  }
  const std::vector<float> logits = normal_values(kRows * kVocabulary, 4, 1.5F);
  const SharedRing ring(backend, kSteps, kRows);
  const DeviceState device(backend, host);
  const StepState state = device.view(ring);
  const GuardedMatrix gpu_logits(backend, {kRows, kVocabulary}, logits);
  const Guarded<SampleParams> gpu_params(backend, params);
  const Backend::Procedure step = backend.capture([&] {
    backend.sample({gpu_logits.const_view(), gpu_params.data(), state.draw_index, state.history,
                    state.history_begins, state.history_ends, device.next_ids()});
    backend.advance(state);
  });
  for (std::uint64_t i = 0; i < kSteps; ++i) step();
  for (std::uint64_t i = 0; i < kSteps; ++i) {
    cpu->sample({{logits.data(), kRows, kVocabulary, kVocabulary},
                 params.data(),
                 host.draw_index.data(),
                 host.history.data(),
                 host.begins.data(),
                 host.ends.data(),
                 host.next_ids.data()});
    const std::vector<std::int32_t> expected = host.advance();
    auto shown = ring.poll(i);
    while (!shown) shown = ring.poll(i);
    EXPECT_EQ(std::vector<std::int32_t>(shown->begin(), shown->end()), expected) << i;
  }
  device.expect_equal(host);
}

TEST(Advance, RefusesWhatIsMissing) {
  const std::vector<CpuSetup> setups = cpu_setups();
  Backend& backend = *setups[0].backend;
  std::mt19937 random(1);
  const SharedRing ring(backend, 2, 2);
  const DeviceState device(backend, HostState(2, random, 10));
  StepState state = device.view(ring);
  EXPECT_NO_THROW(check(state));
  state.rows = 3;
  EXPECT_THROW(check(state), Error);
  state = device.view(ring);
  state.finished = nullptr;
  EXPECT_THROW(check(state), Error);
}

TEST(Advance, MovesRowsOnUntilTheyFinish) {
  expect_rows_advance(*cpu_setups()[0].backend);
}
TEST(AdvanceCuda, MovesRowsOnUntilTheyFinish) {
  FUT_REQUIRE_GPU_DEVICE();
  expect_rows_advance(*gpu_backend());
}

TEST(Advance, ALoopBehindSampleGivesTheTokensOfSingleSteps) {
  expect_the_loop_of_the_cpu(*cpu_setups()[0].backend);
}
TEST(AdvanceCuda, ALoopBehindSampleGivesTheTokensOfSingleSteps) {
  FUT_REQUIRE_GPU_DEVICE();
  expect_the_loop_of_the_cpu(*gpu_backend());
}

}  // namespace
}  // namespace fut::test
