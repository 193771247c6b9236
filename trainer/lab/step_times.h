#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status/status.h"
#include "common/types/ids.h"
#include "trainer/dataset/random.h"

namespace psd {

/// The duration of each step of each virtual trainer, in virtual time; a regular step takes 1 on average. The
/// times of a rank depend on the specification and the rank alone. Used by one thread at a time.
class StepTimes {
 public:
  /// Parses a specification. "round_robin": each step takes 1. "seed:S": times from the exponential
  /// distribution of mean 1, so that each trainer is equally likely to be next, independent of the past.
  /// "straggler:factor=K,seed=S": the last rank takes K times as long as the others, whose times are those of
  /// seed:S, or 1 if S is 0.
  static Result<StepTimes> parse(std::string_view text, uint32_t trainers);
  /// The forms of a specification, human-readable.
  static std::string help();

  /// The time of the rank's next step; each call advances by one step.
  double next(Rank rank);
  /// The specification with all its options.
  const std::string& spec() const { return spec_; }

 private:
  StepTimes(std::string spec, uint32_t trainers, uint64_t seed, bool random, double lastFactor);

  std::string spec_;
  bool random_;
  std::vector<Random> draws_;    // by rank
  std::vector<double> factors_;  // by rank
};

}  // namespace psd
