#include "trainer/lab/step_times.h"

#include <cmath>
#include <optional>
#include <utility>

#include "common/text/named_options.h"
#include "common/text/number.h"
#include "common/text/text.h"

namespace psd {
namespace {

constexpr std::string_view kRoundRobin = "round_robin", kSeed = "seed", kStraggler = "straggler";
constexpr double kFactorMax = 1'000'000;

/// Uniform in 0 ≤ x < 1.
double uniform(Random& random) { return static_cast<double>(random.next() >> 11) * 0x1p-53; }

}  // namespace

std::string StepTimes::help() {
  return "round_robin: all steps take the same time; seed:S: random times; straggler[:factor=5,seed=0]: "
         "the "
         "last rank takes `factor` times as long, and a seed above 0 makes times random";
}

StepTimes::StepTimes(std::string spec, uint32_t trainers, uint64_t seed, bool random, double lastFactor)
    : spec_(std::move(spec)), random_(random), factors_(trainers, 1) {
  for (uint32_t rank = 0; rank < trainers; rank++) draws_.emplace_back(seed, rank);
  factors_.back() = lastFactor;
}

Result<StepTimes> StepTimes::parse(std::string_view text, uint32_t trainers) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  if (name == kSeed) {
    const auto seed = toNumber<uint64_t>(rest);
    if (seed) return StepTimes(std::string(text), trainers, *seed, true, 1);
    return Error{ErrorCode::invalidArgument,
                 "'" + printable(text) + "' has no seed; expected a whole number, like seed:7"};
  }
  NamedOptions options("schedule", name, rest);
  double factor = 1;
  uint64_t seed = 0;
  if (name == kStraggler) {
    factor = options.number("factor", 5, 1, kFactorMax);
    seed = options.count("seed", 0, 0, UINT64_MAX);
  } else if (name != kRoundRobin) {
    return Error{ErrorCode::invalidArgument,
                 "'" + printable(text) + "' is not a schedule; expected " + help()};
  }
  PSD_RETURN_IF_ERROR(options.finish());
  return StepTimes(options.spec(), trainers, seed, seed != 0, factor);
}

double StepTimes::next(Rank rank) {
  const double time = random_ ? -std::log1p(-uniform(draws_[rank.value])) : 1;
  return time * factors_[rank.value];
}

}  // namespace psd
