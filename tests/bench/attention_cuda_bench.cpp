// How long attention of a decode step takes on the GPU, at the shape of Llama-3.1-8B: a graph of launches
// that depend on each other, each over the cache of another layer, so that no page is in the second-level
// cache from the launch before. Prints microseconds a launch and the rate at which pages are read, for
// every way to hand out the work, those that the op takes for short and for long contexts first.
#include <cstdio>

#if FUT_CUDA

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cuda/attention_ops.h"
#include "kernels/numeric/formats.h"
#include "tests/support/on_device.h"

namespace fut::test {
namespace {

constexpr int kQHeads = 32;
constexpr int kKvHeads = 8;
constexpr int kHeadDim = 128;

struct Case {
  int batch;
  int length;
  DType cache = DType::U8;  // BF16, or U8 for INT4
};

class Layers {
 public:
  explicit Layers(const Case& c) : case_(c), int4_(c.cache != DType::BF16) {
    const std::int64_t pages_of_one = layout::pages_for_tokens(c.length);
    const auto num_pages = static_cast<int>(pages_of_one * c.batch);
    const std::int64_t page_bytes = int4_ ? page_.bytes() : 2 * dense_.elements();
    bytes_ = static_cast<double>(page_bytes) / 64 * c.length * c.batch;
    const auto layers = static_cast<int>(std::clamp<double>(3e8 / bytes_, 4, 48));
    fill_batch(num_pages);
    std::vector<std::uint8_t> pages(static_cast<std::size_t>(page_bytes * num_pages));
    fill(pages);
    for (int i = 0; i < layers; ++i) add_layer(num_pages, pages);
  }

  [[nodiscard]] double bytes() const { return bytes_; }
  [[nodiscard]] bool is_int4() const { return int4_; }

  // Microseconds of a launch, as the op itself hands out steps with such contexts.
  double measure(cuda::AttentionContexts contexts) {
    return measure(cuda::plan_attention_decode(case_.batch * kKvHeads, kQHeads / kKvHeads, contexts,
                                               device_.context().machine()));
  }
  double measure(const cuda::AttentionDistribution& distribution) {
    const cuda::Stream& stream = device_.context().stream();
    const cuda::Graph graph(stream, [&] {
      for (const AttentionArgs& a : layers_) {
        cuda::attention_decode(a, device_.context(), distribution);
      }
    });
    constexpr int kRuns = 12;
    const cuda::Event begin, end;
    double best = 1e30;
    for (int i = 0; i < kRuns; ++i) {
      begin.record(stream);
      graph.launch(stream);
      end.record(stream);
      end.synchronize();
      best = std::min(best, static_cast<double>(end.milliseconds_since(begin)));
    }
    return best * 1000 / static_cast<double>(layers_.size());
  }

 private:
  void fill_batch(int num_pages) {
    std::vector<std::int32_t> table, indptr = {0}, lengths, slots, starts = {0};
    for (std::int32_t i = 0; i < num_pages; ++i) table.push_back(i);
    std::shuffle(table.begin(), table.end(), std::mt19937(1));
    for (std::int32_t s = 0; s < case_.batch; ++s) {
      indptr.push_back(num_pages / case_.batch * (s + 1));
      lengths.push_back(case_.length);
      slots.push_back(s);
      starts.push_back(s + 1);
    }
    batch_.num_sequences = batch_.num_tokens = case_.batch;
    batch_.q_indptr = device_.copy(std::span<const std::int32_t>(starts));
    batch_.kv_indptr = device_.copy(std::span<const std::int32_t>(indptr));
    batch_.page_table = device_.copy(std::span<const std::int32_t>(table));
    batch_.kv_lengths = device_.copy(std::span<const std::int32_t>(lengths));
    batch_.positions = batch_.kv_lengths;
    batch_.raw_slots = device_.copy(std::span<const std::int32_t>(slots));
    const std::vector<float> q(static_cast<std::size_t>(case_.batch * kQHeads * kHeadDim), 0.1F);
    const std::vector<std::uint16_t> narrow(q.size(), f32_to_bf16(0.1F));
    q_ = device_.copy(std::span<const float>(q));
    narrow_q_ = device_.copy(std::span<const std::uint16_t>(narrow));
    out_ = device_.copy(std::span<const std::uint16_t>(narrow));
  }

  // Random codes; parameters of ordinary size.
  void fill(std::vector<std::uint8_t>& pages) const {
    std::mt19937 engine(2);
    for (std::size_t i = 0; i + 4 <= pages.size(); i += 4) {
      const auto bits = static_cast<std::uint32_t>(engine());
      const std::uint16_t params[2] = {f32_to_f16(0.1F), f32_to_f16(-0.8F)};
      const std::int64_t in_head = static_cast<std::int64_t>(i) % page_.head_bytes();
      const std::uint32_t narrow = (bits & 0x807F807FU) | 0x3F003F00U;
      if (!int4_) {
        std::memcpy(pages.data() + i, &narrow, 4);
      } else if (in_head < 2 * page_.code_bytes()) {
        std::memcpy(pages.data() + i, &bits, 4);
      } else {
        std::memcpy(pages.data() + i, params, 4);
      }
    }
  }

  void add_layer(int num_pages, const std::vector<std::uint8_t>& pages) {
    AttentionArgs a;
    const auto view = [&](void* data, DType type, int heads) {
      return ActivationView(data, type, case_.batch, heads * kHeadDim, heads * kHeadDim);
    };
    a.q = int4_ ? view(q_, DType::F32, kQHeads) : view(narrow_q_, DType::BF16, kQHeads);
    a.num_q_heads = kQHeads;
    a.num_kv_heads = kKvHeads;
    a.head_dim = kHeadDim;
    a.batch = batch_;
    a.out = view(out_, DType::F16, kQHeads);
    std::uint8_t* data = device_.copy(std::span(pages));
    if (int4_) {
      a.k = a.v = view(q_, DType::F32, kKvHeads);
      a.rotation_block = kHeadDim;
      const layout::KvRawStore store{kKvHeads, kHeadDim};
      const std::vector<std::uint16_t> raw(static_cast<std::size_t>(store.elements() * case_.batch),
                                           f32_to_bf16(0.5F));
      a.kv = KvPagesInt4{data,        num_pages,
                         page_,       device_.copy(std::span<const std::uint16_t>(raw)),
                         case_.batch, store};
    } else {
      a.kv = KvPages{data, num_pages, dense_, DType::BF16};
    }
    layers_.push_back(a);
  }

  static constexpr layout::KvPageInt4 page_{kKvHeads, kHeadDim, kHeadDim};
  static constexpr layout::KvPageDense dense_{kKvHeads, kHeadDim};
  Case case_;
  bool int4_;
  double bytes_ = 0;
  OnDevice device_;
  RaggedBatch batch_;
  float* q_ = nullptr;
  std::uint16_t* narrow_q_ = nullptr;
  std::uint16_t* out_ = nullptr;
  std::vector<AttentionArgs> layers_;
};

void measure(const Case& c) {
  Layers layers(c);
  const auto print = [&](const char* name, double us) {
    std::printf("%s b%d, context %d, %s: %.2f us, %.0f GB/s\n",
                c.cache == DType::BF16 ? "BF16" : "INT4", c.batch, c.length, name, us,
                layers.bytes() / us / 1000);
  };
  print("chosen as short", layers.measure(cuda::AttentionContexts::Short));
  print("chosen as long", layers.measure(cuda::AttentionContexts::Long));
  using cuda::AttentionMeeting;
  for (const cuda::AttentionDistribution& d : {cuda::AttentionDistribution{1, 2},
                                               {1, 8},
                                               {2, 2},
                                               {2, 4},
                                               {4, 2},
                                               {4, 4},
                                               {8, 2},
                                               {8, 4},
                                               {8, 8},
                                               {2, 4, AttentionMeeting::Memory},
                                               {4, 4, AttentionMeeting::Memory},
                                               {8, 4, AttentionMeeting::Memory},
                                               {8, 8, AttentionMeeting::Memory},
                                               {16, 2, AttentionMeeting::Memory},
                                               {16, 4, AttentionMeeting::Memory},
                                               {16, 8, AttentionMeeting::Memory}}) {
    const int blocks = d.blocks * c.batch * kKvHeads;
    if (blocks < 32 || blocks > 512 || (!layers.is_int4() && d.slots < 8)) continue;
    char name[64];
    std::snprintf(name, sizeof(name), "%d blocks in %s, rings of %d", d.blocks,
                  d.meeting == AttentionMeeting::Cluster ? "clusters" : "memory", d.slots);
    print(name, layers.measure(d));
  }
}

}  // namespace
}  // namespace fut::test

int main() {
  using fut::DType;
  using fut::test::Case;
  // 2048: the step that completes a block of 16, which is packed. All others do not.
  // Where short steps end (kLongContext) is to be where the two choices cross.
  for (const Case& c :
       {Case{1, 15}, Case{1, 2040}, Case{1, 2048}, Case{1, 8184}, Case{1, 12280}, Case{1, 16376},
        Case{1, 32760}, Case{1, 131064}, Case{2, 32760}, Case{4, 32760}, Case{8, 2040},
        Case{8, 32760}, Case{32, 2040}, Case{32, 2048}, Case{32, 8184}}) {
    fut::test::measure(c);
  }
  for (const Case& c :
       {Case{1, 2040, DType::BF16}, Case{1, 32760, DType::BF16}, Case{32, 2040, DType::BF16}}) {
    fut::test::measure(c);
  }
  return 0;
}

#else

int main() {
  std::puts("built without CUDA");
  return 0;
}

#endif
