// See the header.
#include "apps/check/op_trace.h"

#include <cstring>

#include "kernels/numeric/e4m3.h"
#include "kernels/numeric/formats.h"

namespace fut::app {
namespace {

WorkspaceLimits limits_for(int max_tokens, int pages) {
  WorkspaceLimits limits;
  limits.max_tokens = 1;
  limits.max_sequences = 1;
  limits.max_logit_rows = 1;
  limits.max_pages = pages;
  limits.context_tokens = max_tokens;
  return limits;
}

int pages_for(int tokens) {
  return static_cast<int>(layout::pages_for_tokens(tokens));
}

float value_at(DType dtype, const std::byte* at) {
  std::uint16_t half = 0;
  float whole = 0;
  switch (dtype) {
    case DType::F32:
      std::memcpy(&whole, at, sizeof(whole));
      return whole;
    case DType::F16:
      std::memcpy(&half, at, sizeof(half));
      return f16_to_f32(half);
    case DType::BF16:
      std::memcpy(&half, at, sizeof(half));
      return bf16_to_f32(half);
    case DType::U8:
      return static_cast<float>(std::to_integer<int>(*at));
    case DType::E4M3:
      break;
  }
  return e4m3_to_f32(static_cast<std::uint8_t>(*at));
}

}  // namespace

std::vector<float> values_of(Backend& backend, const ConstActivationView& view) {
  const std::int64_t element = dtype_bytes(view.dtype);
  std::vector<float> values;
  std::vector<std::byte> row(static_cast<std::size_t>(view.cols * element));
  for (std::int64_t r = 0; r < view.rows; ++r) {
    backend.download(row, static_cast<const std::byte*>(view.data) + r * view.row_stride * element);
    for (std::int64_t c = 0; c < view.cols; ++c) {
      values.push_back(value_at(view.dtype, row.data() + c * element));
    }
  }
  return values;
}

TracedModel::TracedModel(Backend& backend, const Model& model, const KvCacheOptions& kv_cache,
                         int max_tokens)
    : backend_(backend),
      model_(model),
      cache_(backend, model.config(), kv_cache, pages_for(max_tokens), 1),
      workspace_(backend, model.config(), model.precision(), kv_cache.dtype,
                 limits_for(max_tokens, pages_for(max_tokens))),
      pages_(pages_for(max_tokens)) {
  cache_.clear(backend);
}

void TracedModel::feed(std::int32_t token, std::vector<OpValues>* trace) {
  Batch batch;
  batch.kind = StepKind::Decode;
  batch.sequences = {0};
  batch.token_ids = {token};
  batch.positions = {position_};
  batch.q_indptr = {0, 1};
  batch.kv_indptr = {0, pages_};
  for (int page = 0; page < pages_; ++page) batch.page_table.push_back(page);
  batch.kv_lengths = {++position_};
  batch.raw_slots = {0};
  batch.logit_rows = {0};
  batch.logit_sequences = {0};
  workspace_.upload(backend_, batch);
  Tap tap;
  if (trace != nullptr) {
    tap = [&](std::string_view op, int layer, const ConstActivationView& written) {
      trace->push_back({std::string(op), layer, values_of(backend_, written)});
    };
  }
  forward(backend_, model_, cache_, workspace_, tap);
}

std::vector<float> TracedModel::logits() const {
  return values_of(backend_, ConstActivationView(workspace_.logits()));
}

}  // namespace fut::app
