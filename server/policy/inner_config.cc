#include "server/policy/inner_config.h"

#include <string>

#include <fmt/format.h>

namespace psd {
namespace {

using Type = InnerOptimizer::Type;

constexpr uint64_t kStepsMax = uint64_t{1} << 53;  // exact in JSON numbers and in double
constexpr NumberRange kRateRange{0, 1e6}, kFactorRange{0, 1e9}, kEpsRange{1e-12, 1};
constexpr NumberRange kShareRange{.min = 0, .max = 1, .maxExclusive = true};

void readSgd(ObjectReader& in, InnerOptimizer& inner) {
  inner.momentum = in.number("momentum", 0, kShareRange);
  inner.nesterov = in.boolean("nesterov", false);
  if (inner.nesterov && inner.momentum == 0) in.fail("nesterov", "Nesterov momentum requires a momentum");
}

void readAdam(ObjectReader& in, InnerOptimizer& inner) {
  const auto betas = in.numbers("betas", {inner.betas[0], inner.betas[1]}, kShareRange);
  if (betas.size() == inner.betas.size()) {
    inner.betas = {betas[0], betas[1]};
  } else {
    in.fail("betas", "must hold 2 numbers, not " + std::to_string(betas.size()));
  }
  inner.eps = in.number("eps", inner.eps, kEpsRange);
}

void readSchedule(ObjectReader in, InnerOptimizer& inner) {
  const std::string type = in.choice("type", "constant", {"constant", "cosine"});
  inner.warmupSteps = in.integer("warmup_steps", 0, 0, kStepsMax);
  if (type == "constant") return;
  if (!in.has("total_steps")) in.fail("total_steps", "is required by type 'cosine'");
  inner.totalSteps = in.integer("total_steps", 1, 1, kStepsMax);
  if (in.has("total_steps") && inner.totalSteps <= inner.warmupSteps) {
    in.fail("total_steps",
            fmt::format("must be more than warmup_steps ({}), not {}", inner.warmupSteps, inner.totalSteps));
  }
  inner.rateMin = in.number("lr_min", 0, kRateRange);
  if (inner.rateMin > inner.rate) {
    in.fail("lr_min", fmt::format("must be at most lr ({}), not {}", inner.rate, inner.rateMin));
  }
}

}  // namespace

InnerOptimizer readInnerOptimizer(ObjectReader in) {
  InnerOptimizer inner;
  const std::string type = in.choice("type", "adamw", {"sgd", "adam", "adamw"});
  inner.type = type == "sgd" ? Type::sgd : type == "adam" ? Type::adam : Type::adamw;
  inner.rate = in.number("lr", inner.type == Type::sgd ? 0.01 : 0.001, kRateRange);
  inner.weightDecay = in.number("weight_decay", inner.type == Type::adamw ? 0.01 : 0, kFactorRange);
  if (inner.type == Type::sgd) {
    readSgd(in, inner);
  } else {
    readAdam(in, inner);
  }
  readSchedule(in.object("schedule"), inner);
  return inner;
}

}  // namespace psd
