#include "server/policy/inner_config.h"

#include <string>

#include <fmt/format.h>

namespace psd {
namespace {

using Type = InnerOptimizer::Type;

constexpr uint64_t kStepsMax = uint64_t{1} << 53;  // exact in JSON numbers and in double
constexpr NumberRange kRateRange{0, 1e6}, kFactorRange{0, 1e9}, kEpsRange{1e-12, 1};
constexpr NumberRange kShareRange{.min = 0, .max = 1, .maxExclusive = true};

void readSgd(ConfigReader& in, InnerOptimizer& inner) {
  in.number({"momentum", "Share of the previous step that is kept."}, inner.momentum, kShareRange);
  in.boolean({"nesterov", "Nesterov momentum; needs `momentum`."}, inner.nesterov);
  if (inner.nesterov && inner.momentum == 0) in.fail("nesterov", "Nesterov momentum requires a momentum");
}

void readAdam(ConfigReader& in, InnerOptimizer& inner) {
  in.numbers({"betas", "Decay rates of the means of the gradient and of its square."}, inner.betas,
             kShareRange);
  in.number({"eps", "Added to the denominator."}, inner.eps, kEpsRange);
}

void readCosine(ConfigReader& in, InnerOptimizer& inner) {
  inner.totalSteps = 1;
  in.integer({"total_steps", "Step at which the cosine ends, warm-up included. More than `warmup_steps`."},
             inner.totalSteps, 1, kStepsMax);
  in.require("total_steps", "is required by type 'cosine'");
  if (in.has("total_steps") && inner.totalSteps <= inner.warmupSteps) {
    in.fail("total_steps",
            fmt::format("must be more than warmup_steps ({}), not {}", inner.warmupSteps, inner.totalSteps));
  }
  in.number({"lr_min", "Learning rate from `total_steps` on. At most `lr`."}, inner.rateMin, kRateRange);
  if (inner.rateMin > inner.rate) {
    in.fail("lr_min", fmt::format("must be at most lr ({}), not {}", inner.rate, inner.rateMin));
  }
}

void readSchedule(ConfigReader in, InnerOptimizer& inner) {
  in.alternatives({"type", "The learning rate after the warm-up."}, "constant",
                  {{"constant", "A constant rate."}, {"cosine", "A rate that falls by a cosine."}},
                  [&inner](ConfigReader& options, std::string_view type) {
                    options.integer({"warmup_steps", "Steps over which the rate rises linearly to `lr`."},
                                    inner.warmupSteps, 0, kStepsMax);
                    if (type == "cosine") readCosine(options, inner);
                  });
}

void readOptions(ConfigReader& in, InnerOptimizer& inner) {
  inner.rate = inner.type == Type::sgd ? 0.01 : 0.001;
  in.number({"lr", "Learning rate."}, inner.rate, kRateRange);
  inner.weightDecay = inner.type == Type::adamw ? 0.01 : 0;
  in.number({"weight_decay",
             "Factor of the weight that is added to the gradient; under `adamw` the weight first shrinks by "
             "`lr` times this."},
            inner.weightDecay, kFactorRange);
  if (inner.type == Type::sgd) {
    readSgd(in, inner);
  } else {
    readAdam(in, inner);
  }
  readSchedule(in.object({"schedule",
                          "Learning rate over the steps of the run: `period` for each closed round, and the "
                          "trainer's own since."}),
               inner);
}

}  // namespace

InnerOptimizer readInnerOptimizer(ConfigReader in) {
  InnerOptimizer inner;
  in.alternatives({"type", "The algorithm; definitions and defaults are LibTorch's."}, "adamw",
                  {{"sgd", "torch.optim.SGD"}, {"adam", "torch.optim.Adam"}, {"adamw", "torch.optim.AdamW"}},
                  [&inner](ConfigReader& options, std::string_view type) {
                    inner.type = type == "sgd" ? Type::sgd : type == "adam" ? Type::adam : Type::adamw;
                    readOptions(options, inner);
                  });
  return inner;
}

}  // namespace psd
