// See the header. Which thread reads which chunk does not matter to anybody: each has its place.
#include "engine/packed_upload.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>

#include "loader/packed_checksums.h"

namespace fut {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWorkers = 16;
constexpr int kPiecesEach = 2;  // one is read into while the other is sent
// Small enough to be in a core's cache still when it is checked, large enough for a copy engine.
constexpr std::size_t kPieceBytes = std::size_t{2} << 20;

int workers_for(std::uint64_t chunks) {
  return static_cast<int>(std::min<std::uint64_t>(chunks, kWorkers));
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

// One of the threads, with its pieces of the staging memory.
class PackedUpload::Worker final : public PackedModel::ChunkReader {
 public:
  Worker(PackedUpload& upload, Staging& staging, int number)
      : upload_(upload), staging_(staging), first_piece_(number * kPiecesEach) {}

  void read(std::uint64_t chunk) {
    const PackedModel::ChunkTimes times = upload_.packed_.read_chunk(chunk, *this);
    times_.read_seconds += times.read_seconds;
    times_.checksum_seconds += times.checksum_seconds;
  }
  [[nodiscard]] const LoadTimes& times() const { return times_; }

  [[nodiscard]] std::span<std::byte> buffer() override {
    const Clock::time_point start = Clock::now();
    turn_ = (turn_ + 1) % kPiecesEach;
    const std::span<std::byte> piece = staging_.take(first_piece_ + turn_);
    times_.wait_seconds += seconds_since(start);
    return piece;
  }

  void take(std::uint64_t offset, std::span<const std::byte> bytes) override {
    const auto ends_before = [](const Wanted& w, std::uint64_t at) {
      return w.info->offset + w.info->bytes <= at;
    };
    const std::uint64_t end = offset + bytes.size();
    const auto& wanted = upload_.wanted_;
    auto it = std::lower_bound(wanted.begin(), wanted.end(), offset, ends_before);
    for (; it != wanted.end() && it->info->offset < end; ++it) {
      const std::uint64_t from = std::max(offset, it->info->offset);
      const std::uint64_t to = std::min(end, it->info->offset + it->info->bytes);
      if (from >= to) continue;
      const auto part = bytes.subspan(static_cast<std::size_t>(from - offset),
                                      static_cast<std::size_t>(to - from));
      const std::uint64_t place = from - it->info->offset;
      if (it->host != nullptr) std::memcpy(it->host + place, part.data(), part.size());
      if (it->device != nullptr) staging_.send(first_piece_ + turn_, part, it->device + place);
    }
  }

 private:
  PackedUpload& upload_;
  Staging& staging_;
  int first_piece_;
  int turn_ = 0;
  LoadTimes times_;
};

std::size_t PackedUpload::staging_bytes(std::uint64_t file_bytes) {
  return static_cast<std::size_t>(workers_for(num_checksum_chunks(file_bytes)) * kPiecesEach) *
         kPieceBytes;
}

std::vector<std::uint64_t> PackedUpload::chunks() const {
  std::vector<std::uint64_t> chunks;
  for (const Wanted& w : wanted_) {
    const PackedModel::Range range = packed_.chunks_of(*w.info);
    const std::uint64_t known = chunks.empty() ? 0 : chunks.back() + 1;
    for (std::uint64_t c = std::max(range.begin, known); c < range.end; ++c) chunks.push_back(c);
  }
  return chunks;
}

void PackedUpload::add_done(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  done_ += bytes;
  if (progress_) progress_(done_, total_);
}

LoadTimes PackedUpload::run(const ParallelFor& parallel_for) {
  const Clock::time_point start = Clock::now();
  std::ranges::sort(wanted_, {}, [](const Wanted& w) { return w.info->offset; });
  const std::vector<std::uint64_t> all = chunks();
  for (const std::uint64_t chunk : all) total_ += packed_.chunk_bytes(chunk);
  const int workers = workers_for(all.size());
  const std::unique_ptr<Staging> staging =
      backend_.make_staging(workers * kPiecesEach, kPieceBytes);
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  const auto work = [&](int number) {
    Worker worker(*this, *staging, number);
    try {
      for (std::size_t i = next++; i < all.size() && !failed; i = next++) {
        worker.read(all[i]);
        add_done(packed_.chunk_bytes(all[i]));
      }
    } catch (...) {
      failed = true;  // the others need not go on
      throw;
    }
    const std::lock_guard lock(mutex_);
    times_.add(worker.times());
  };
  run_parallel(parallel_for, workers, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) work(static_cast<int>(i));
  });
  staging->finish();
  times_.bytes = total_;
  times_.seconds = seconds_since(start);
  return times_;
}

}  // namespace fut
