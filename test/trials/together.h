#pragma once

#include <cstdint>

#include <nlohmann/json.hpp>

#include "test/trials/digits_trainer.h"

namespace psd::trials {

/// Several trainers at once, each a thread with a connection of its own.
struct Together {
  uint32_t trainers = 4;
  uint64_t steps = 100;     ///< of each trainer, at most
  double seconds = 600;     ///< at most
  double accuracy = 2;      ///< ends when the test accuracy has come so far
  uint32_t stepMs = 0;      ///< sleep in every step, in the place of a larger model's work
  uint32_t slowStepMs = 0;  ///< that of rank 0; 0: as the others
  bool autoBatch = false;   ///< the daemon deals the samples and chooses how many; the sleep goes with them
  uint32_t garbage = 0;  ///< so many of the last ranks push noise of this deviation instead of gradients …
  double garbageScale = 1000;
  uint32_t evaluateMs = 250;  ///< between two looks at the test accuracy
};

/// {"curve": [{"seconds", "accuracy", "loss", "steps"} …], "steps": {of each rank}, "samples": {of each
/// rank}, "errors": […]}
Result<nlohmann::ordered_json> trainTogether(const Setting& setting, const Together& options);

/// One thread plays `delay` + 1 trainers in turn, each of which pushes what it computed from the parameters
/// as they were `delay` updates ago: the same staleness for each gradient, and the same run each time.
struct Delayed {
  uint32_t delay = 0;
  uint64_t steps = 1000;  ///< in all
  uint64_t evaluateEvery = 50;
};

/// {"curve": [{"steps", "accuracy", "loss"} …]}
Result<nlohmann::ordered_json> trainDelayed(const Setting& setting, const Delayed& options);

}  // namespace psd::trials
