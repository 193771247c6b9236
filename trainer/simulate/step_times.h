#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status/status.h"
#include "common/types/ids.h"
#include "trainer/dataset/random.h"

namespace psd {

/// How long each step of each virtual trainer takes, in virtual time: an ordinary step takes 1 on average.
/// The times of a rank are a function of the text and the rank alone. Used by one thread at a time.
class StepTimes {
 public:
  /// "round_robin": each step takes 1. "seed:S": times drawn from the exponential distribution of mean 1, so
  /// that any trainer is the next with the same chance whatever was before. "straggler:factor=K,seed=S": the
  /// last rank takes K times as long as the others, whose times are as of seed:S, or 1 where S is 0.
  static Result<StepTimes> parse(std::string_view text, uint32_t trainers);
  /// The forms of the text, for people.
  static std::string help();

  /// The time of the rank's next step; each call is of the step after.
  double next(Rank rank);
  /// The text with all its options.
  const std::string& spec() const { return spec_; }

 private:
  StepTimes(std::string spec, uint32_t trainers, uint64_t seed, bool random, double lastFactor);

  std::string spec_;
  bool random_;
  std::vector<Random> draws_;    // of each rank
  std::vector<double> factors_;  // of each rank
};

}  // namespace psd
