// Each block that is there is read in full; then all of them have to agree.
#include "loader/rope_config.h"

#include <optional>

#include "kernels/error.h"
#include "loader/describe.h"

namespace fut {
namespace {

constexpr double kMaxTheta = 1e12;
constexpr double kMaxFactor = 1e6;
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 24;

bool same_scaling(const RopeParams& a, const RopeParams& b) {
  return a.scaling == b.scaling && a.factor == b.factor && a.low_freq_factor == b.low_freq_factor &&
         a.high_freq_factor == b.high_freq_factor &&
         a.original_max_position_embeddings == b.original_max_position_embeddings;
}

// The kind of scaling: `rope_type`, or `type` as older files call it. "default" where neither is
// there and nothing else in the block asks for scaling.
std::string scaling_kind(const JsonObject& block) {
  const std::optional<std::string> rope_type = block.string("rope_type");
  const std::optional<std::string> type = block.string("type");
  if (rope_type && type && *rope_type != *type) {
    block.fail("rope_type",
               fmt::format("the same as {}, which is {}", block.name_of("type"), quote(*type)));
  }
  if (rope_type) return *rope_type;
  if (type) return *type;
  if (block.find("factor") != nullptr) block.fail_missing("rope_type");
  return "default";
}

// Everything but theta.
RopeParams read_block(const JsonObject& block) {
  RopeParams params;
  if (block.number("partial_rotary_factor", 0, 1).value_or(1) != 1) {
    block.fail("partial_rotary_factor", "1");
  }
  const std::string kind = scaling_kind(block);
  if (kind == "default") return params;
  if (kind != "llama3" && kind != "linear") {
    block.fail(block.find("rope_type") != nullptr ? "rope_type" : "type",
               "default, linear or llama3; other kinds of scaling are not supported");
  }
  params.factor = block.required_number("factor", 1, kMaxFactor);
  if (kind == "linear") {
    params.scaling = RopeParams::Scaling::Linear;
    return params;
  }
  params.scaling = RopeParams::Scaling::Llama3;
  params.low_freq_factor = block.required_number("low_freq_factor", 1e-6, kMaxFactor);
  params.high_freq_factor = block.required_number("high_freq_factor", 1e-6, kMaxFactor);
  if (params.high_freq_factor <= params.low_freq_factor) {
    block.fail("high_freq_factor",
               fmt::format("more than {}, which is {}", block.name_of("low_freq_factor"),
                           params.low_freq_factor));
  }
  params.original_max_position_embeddings =
      block.required_integer("original_max_position_embeddings", 1, kMaxPositions);
  return params;
}

std::optional<double> read_theta(const JsonObject& config,
                                 const std::optional<JsonObject>& parameters) {
  const std::optional<double> top = config.number("rope_theta", 1, kMaxTheta);
  if (!parameters) return top;
  const std::optional<double> nested = parameters->number("rope_theta", 1, kMaxTheta);
  if (top && nested && *top != *nested) {
    parameters->fail("rope_theta", fmt::format("the same as {}, which is {}",
                                               config.name_of("rope_theta"), *top));
  }
  return nested ? nested : top;
}

}  // namespace

RopeParams read_rope_params(const JsonObject& config, std::vector<std::string>& notices) {
  const std::optional<JsonObject> scaling = config.object("rope_scaling");
  const std::optional<JsonObject> parameters = config.object("rope_parameters");
  RopeParams params;
  if (scaling) params = read_block(*scaling);
  if (parameters) {
    const RopeParams nested = read_block(*parameters);
    if (scaling && !same_scaling(params, nested)) {
      config.fail("rope_parameters", "the same as rope_scaling, or one of the two left out");
    }
    params = nested;
  }
  const std::optional<double> theta = read_theta(config, parameters);
  if (!theta) {
    notices.push_back(
        fmt::format("config.json has no rope_theta; using the default {}", params.theta));
  }
  params.theta = theta.value_or(params.theta);
  return params;
}

}  // namespace fut
